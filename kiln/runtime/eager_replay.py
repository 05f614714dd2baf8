"""Runs the torch calls of a region by eager operators: what create_graph=True differentiates.

    {"inputs": 2, "symbols": [["s0", 0, "size", 0]], "outputs": [3],
     "calls": [[["torch._C._nn:gelu"], [["value", 0]], [], 2, 0],     %2 = gelu(%0)
               ["sum", [["value", 2], -1], [], 3, 1]]}                 %3 = %2.sum(-1)

    replay = EagerReplay(data, constants)
    results = replay(x, weight)              # under autograd and the modes of the capture

The backward of a region is a compiled plan, which cannot be differentiated; the calls of its forward, run eagerly, can.
A replay is data, written by the pipeline: names of methods, import paths of functions, values by number (the inputs,
then the results in order), sizes as expressions over symbols that are read off the inputs, the number of each call.
The random numbers that a call drew in the forward are given, and stand in for those that it draws now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol, TypedDict, cast, final

import torch
from torch._ops import OpOverload

from kiln.runtime.autocast_nesting import forget_casts
from kiln.runtime.guards.constant import Json, constant_from_json
from kiln.runtime.guards.reference import load_named
from kiln.support.dispatch_mode import DispatchMode
from kiln.support.records import dataclass
from kiln.symbolic import parse_int
from kiln.symbolic.expr import evaluate
from kiln.symbolic.values import REAL_OPS
from kiln.tensor.encoding import decode_tensor, encode_tensor

TENSOR = "replayed/"
"""Prefix of the sections that hold tensors."""


SETTERS: dict[str, Callable[..., object]] = {
    "grad_enabled": torch._C._set_grad_enabled,
    "autocast": torch.set_autocast_enabled,
    "autocast_dtype": torch.set_autocast_dtype,
    "autocast_cache": torch.set_autocast_cache_enabled,
    "autocast_nesting": forget_casts,
    **{
        f"{name}_sdp": getattr(torch._C, f"_set_sdp_use_{name}")
        for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
        if hasattr(torch._C, f"_set_sdp_use_{name}")
    },
}
"""The function for a change of mode in the log."""
Run = Callable[..., tuple[torch.Tensor, ...]]
Row = list[object]
"""A call: target, arguments, named arguments, results, number."""


class CallLog(Protocol):
    """A recording of torch calls."""

    def call(self, target: Callable[..., object] | str, args: list[object], kwargs: dict[str, object]) -> object: ...
    def set_state(self, kind: str, value: object) -> None: ...


NO_DRAWS: Mapping[int, Sequence[torch.Tensor]] = {}
Replace = Callable[[torch.Tensor], torch.Tensor]
NOTHING: Mapping[int, Replace] = {}
FILLING = frozenset(("uniform_", "normal_", "exponential_", "bernoulli_", "random_"))
FRESH = frozenset(("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli"))


@final
class DrawnBefore(DispatchMode):
    """Gives random operators the numbers of an earlier run. An operator that it does not know draws again, which the
    second derivative notices."""

    def __init__(self, draws: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.draws = list(draws)

    def __torch_dispatch__(  # type: ignore[override]
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::").partition(".")[0]
        if torch.Tag.nondeterministic_seeded not in func.tags or not self.draws:
            return func(*args, **kwargs)
        if name in FILLING and self.draws[0].shape == args[0].shape:
            return args[0].copy_(self.draws.pop(0))
        if name in FRESH:
            made = self.draws.pop(0).clone()
            return made.to(args[0].dtype) if name == "bernoulli" else made
        if name == "native_dropout" and args[2] is not False:
            mask = self.draws.pop(0).to(torch.bool)
            return args[0] * mask * (0.0 if args[1] == 1 else 1 / (1 - args[1])), mask
        return func(*args, **kwargs)


class NestedCalls(TypedDict):
    """A branch or a body: its values are numbered from its arguments on."""

    calls: list[Row]
    outputs: list[object]


@final
class EagerReplay:
    """`replay(*inputs)`: the results that the user sees. `data` is parsed at the first call."""

    def __init__(
        self, data: bytes, constants: Sequence[torch.Tensor] = (), functions: Sequence[Callable[..., object]] = ()
    ) -> None:
        self.data = data
        self.constants = constants
        self.functions = functions
        self._versions: list[int] | None = None
        """Of the results, when all calls have been made."""

    @cached_property
    def program(self) -> dict[str, Any]:
        program: dict[str, Any] = json.loads(self.data)
        find_targets(program["calls"], self.functions)
        return program

    @cached_property
    def stays_eager(self) -> bool:
        """No `log` can record branches, loops and hooks, which run as Python, nor numbers; others must be run once."""
        is_python = any(isinstance(row[0], ControlFlowTarget | HookTarget) for row in self.program["calls"])
        return is_python or any(self.program[kind] for kind in ("nonlinear", "floats", "sizes_from_data"))

    def __call__(
        self,
        *inputs: Any,
        draws: Mapping[int, Sequence[torch.Tensor]] = NO_DRAWS,
        replaced: Mapping[int, Replace] = NOTHING,
        arrives: Callable[[torch.Tensor], None] | None = None,
        log: CallLog | None = None,
    ) -> tuple[Any, ...]:
        """`draws`: random numbers by call, and at `~number` the old contents of an overwritten input. `replaced`: by
        number of a result, what later calls read in its place. `arrives` gets the gradients that backwards get which
        are not linear. `log` makes the calls."""
        program = self.program
        written = frozenset(program["written"])
        values = [
            (log.call("clone", [value], {}) if log else draws.get(~number, (value,))[0].clone())
            if number in written
            else value
            for number, value in enumerate(inputs)
        ]
        run = _Run(dict(enumerate(values)), symbol_values(program["symbols"], inputs), self.constants)
        run.log = log
        if arrives is not None:
            run.watched, run.arrives = frozenset(program["nonlinear"]), arrives
        if replaced:
            if self._versions is None:
                first = self(*inputs, draws=draws)
                self._versions = [getattr(result, "_version", 0) for result in first]
            run.replacing = Replacing(program["outputs"], self._versions, replaced, {})
        with ambient(program["state"]):
            run.calls(program["calls"], draws)
        results = [run.values[number] for number in program["outputs"]]
        if run.replacing is not None:
            results = [run.replacing.made.get(number, result) for number, result in enumerate(results)]
        return tuple(results)


@final
@dataclass(frozen=True, slots=True)
class Replacing:
    """Replaces results once the last call has written to them. `made` has them as they were, by number."""

    outputs: Sequence[int]
    versions: Sequence[int]
    replaced: Mapping[int, Replace]
    made: dict[int, torch.Tensor]

    def after_call(self, values: dict[int, torch.Tensor]) -> None:
        for number, replacement in self.replaced.items():
            result = values.get(self.outputs[number])
            if number not in self.made and result is not None and result._version == self.versions[number]:
                self.made[number] = result
                values[self.outputs[number]] = replacement(result)


@final
class _Run:
    """One replay: values by number."""

    def __init__(self, values: dict[int, Any], symbols: Mapping[str, int], constants: Sequence[torch.Tensor]) -> None:
        self.log: CallLog | None = None
        self.values = values
        self.symbols = symbols
        self.constants = constants
        self.replacing: Replacing | None = None
        self.watched: frozenset[int] = frozenset()
        self.arrives: Callable[[torch.Tensor], None] | None = None

    def calls(self, rows: Sequence[Row], draws: Mapping[int, Sequence[torch.Tensor]] = NO_DRAWS) -> None:
        for target, args, kwargs, result, number in rows:
            with DrawnBefore(draws[cast(int, number)]) if number in draws else nullcontext():
                self.call(target, cast(Json, args), cast(Json, kwargs), result)
            if number in self.watched:
                found = cast(Row, args)[0] if isinstance(target, HookTarget) else result
                self.watch(found if isinstance(found, list) else [found])
            if self.replacing is not None:
                self.replacing.after_call(self.values)

    def watch(self, numbers: Sequence[object]) -> None:
        """Numbers of results, or the row of an argument."""
        for tensor in [self.values[number] for number in numbers if isinstance(number, int)]:
            if tensor.requires_grad:
                tensor.register_hook(self.arrives)

    def nested(self, log: NestedCalls) -> Callable[..., tuple[object, ...]]:
        """A branch, or the body of a loop, as a function of its arguments."""

        def body(*arguments: object) -> tuple[object, ...]:
            run = _Run(dict(enumerate(arguments)), self.symbols, self.constants)
            run.calls(log["calls"])
            return tuple(run.arguments(log["outputs"]))

        return body

    def call(self, target: Any, args: Json, kwargs: Json, result: Any) -> None:
        given: list[object] = self.arguments(args)
        named: dict[str, object] = dict(self.arguments(kwargs))
        if result == SET_STATE:
            SETTERS[target](*given)
            if self.log is not None:
                self.log.set_state(target, tuple(given))
        elif self.log is not None:
            self.bind(result, self.log.call(target, given, named))
        elif isinstance(target, str):
            self.bind(result, getattr(given[0], target)(*given[1:], **named))
        elif isinstance(target, ControlFlowTarget):
            self.bind(result, target.run(*target.counts, *map(self.nested, target.logs), *given))
        else:
            self.bind(result, target(*given, **named))

    def arguments(self, rows: Any) -> list[Any]:
        return [self.value(row) for row in rows]

    def value(self, row: Any) -> object:
        if not isinstance(row, list):
            return row
        kind, content = row
        reader = READERS.get(kind)
        return constant_from_json(row) if reader is None else reader(self, content)

    def bind(self, positions: Any, value: Any) -> None:
        if isinstance(positions, list):
            for position, part in zip(positions, value, strict=True):
                self.bind(position, part)
        elif positions is not None:
            self.values[positions] = value


@final
@dataclass(frozen=True, slots=True)
class ControlFlowTarget:
    """`run(carried, rows, *functions, *arguments)`; each of the `logs` is a function."""

    run: Run
    counts: tuple[int, int]
    logs: Sequence[NestedCalls]


@final
@dataclass(frozen=True, slots=True)
class HookTarget:
    """`register(tensor, *captured)` registers a hook of the program on the tensor."""

    register: Callable[..., object]

    def __call__(self, *arguments: object) -> object:
        return self.register(*arguments)


METHOD, HOOK = "method", "hook"


def find_targets(rows: Sequence[Row], functions: Sequence[Callable[..., object]]) -> None:
    """The functions of calls, in place of their paths, or of their numbers in `functions`."""
    for row in rows:
        if isinstance(row[0], str):
            continue
        path, *operator = cast(list[object], row[0])
        row[0] = functions[path] if isinstance(path, int) else load_named(cast(str, path))
        if operator[:1] == [METHOD]:
            row[0] = getattr(row[0], cast(str, operator[1]))
        elif operator == [HOOK]:
            row[0] = HookTarget(cast(Callable[..., object], row[0]))
        elif operator:
            counts, logs = cast("tuple[tuple[int, int], Sequence[NestedCalls]]", operator)
            row[0] = ControlFlowTarget(cast(Run, row[0]), counts, logs)
            for log in logs:
                find_targets(log["calls"], functions)


SET_STATE = "set"
"""Stands for the results of a call that changes a mode."""

READERS: Mapping[str, Callable[[_Run, Any], object]] = {
    "value": lambda run, number: run.values[number],
    "tensor": lambda run, number: run.constants[number],
    "expr": lambda run, text: evaluate(parse_int(text), run.symbols),
    "size from data": lambda run, row: evaluate(
        parse_int(row[0]), {**run.symbols, **symbol_values(row[1], run.values)}
    ),
    "real": lambda run, row: REAL_OPS[row[0]](*run.arguments(row[1:])),
    "list": lambda run, rows: run.arguments(rows),
    "tuple": lambda run, rows: tuple(run.arguments(rows)),
    "size": lambda run, rows: torch.Size(run.arguments(rows)),  # `x.new` makes data of a tuple
    "dict": lambda run, rows: dict(run.arguments(rows)),
    "slice": lambda run, rows: slice(*run.arguments(rows)),
}
"""Kinds of arguments besides constants, which are written as in guards."""


def symbol_values(bindings: Sequence[Any], values: Sequence[Any] | Mapping[int, Any]) -> dict[str, int]:
    """Each symbol with its number in these values. `["s0", 1, "stride", 0]`: the first stride of the second."""
    found: dict[str, int] = {}
    for name, position, what, axis in bindings:
        found[name] = int(values[position] if what == "value" else getattr(values[position], what)(axis))
    return found


def ambient_state() -> dict[str, Json]:
    """The modes that decide what a torch call does and that the log of the capture does not contain."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return {
        "autocast": [[device, str(torch.get_autocast_dtype(device)).removeprefix("torch.")] for device in devices],
        "cache": torch.is_autocast_cache_enabled(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


@contextmanager
def ambient(state: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the modes of `state`, with gradients on."""
    dtype = torch.get_default_dtype()
    wanted = getattr(torch, state["dtype"])
    lowered = dict(state["autocast"])
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if device in lowered or torch.is_autocast_enabled(device):
                low = getattr(torch, lowered.get(device, "bfloat16"))
                stack.enter_context(
                    torch.autocast(device, dtype=low, enabled=device in lowered, cache_enabled=state["cache"])
                )
        if wanted is not dtype:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(wanted)
        yield


@final
@dataclass(frozen=True, slots=True)
class EagerReplayData:
    """What `kiln.runtime.eager_replay` runs; `data` is empty where there is a reason not to. `functions` cannot be
    imported by name: with such, it is for this process only. `old`: overwritten inputs that the forward saves;
    `unread`: inputs that may change before it is run."""

    data: bytes
    constants: tuple[torch.Tensor, ...] = ()
    reason: str = ""
    functions: tuple[Callable[..., object], ...] = ()
    old: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()

    def sections(self) -> dict[str, bytes]:
        """What `read_eager_replay` reads."""
        tensors = {f"{TENSOR}{number}": encode_tensor(tensor) for number, tensor in enumerate(self.constants)}
        return {"replay": self.data, "no_replay": self.reason.encode(), **tensors}


def read_eager_replay(sections: Mapping[str, memoryview]) -> EagerReplayData:
    count = sum(name.startswith(TENSOR) for name in sections)
    constants = tuple(decode_tensor(bytes(sections[f"{TENSOR}{number}"])) for number in range(count))
    return EagerReplayData(bytes(sections["replay"]), constants, bytes(sections["no_replay"]).decode())
