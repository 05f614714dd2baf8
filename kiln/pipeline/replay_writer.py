"""The log of a recording as a `Replay`: what the second derivative of a region is made from.

    3  function  torch.nn.functional.gelu  (%0,)      =>      [["torch._C._nn:gelu"], [["value", 0]], [], 2]

Not every region can be run again from the inputs that backward has: one that draws random numbers would draw others,
one whose results depend on the old contents of an input that it overwrites no longer has them. Those get the reason
instead, which the error of the second derivative tells.
Needs: a recorder whose trace was finished a moment ago.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.graph.trace import Recorder, Trace
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.recorder import changes_state
from kiln.runtime.eager_replay import SET_STATE
from kiln.runtime.guards.constant import Json, NotSerialisable, constant_to_json
from kiln.runtime.guards.reference import path_of
from kiln.symbolic import Expr, Symbol

NUMBERS = (torch.SymInt, torch.SymFloat)


@final
class NotReplayable(Exception):
    """The reason why a region cannot be run again."""


@final
@dataclass(frozen=True, slots=True)
class ReplayData:
    """What `kiln.runtime.eager_replay.Replay` takes; `data` is empty where there is a reason not to."""

    data: bytes
    constants: tuple[torch.Tensor, ...] = ()
    reason: str = ""


def write_replay(recorder: Recorder, trace: Trace) -> ReplayData:
    """The replay of a trace, or why there is none."""
    try:
        written = written_inputs(trace)
        refuse_random(trace)
        if any(record.given is not None for record in trace.used_inputs):
            raise NotReplayable("a number of the caller is one of its inputs")
        writer = ReplayWriter(recorder, trace.used_inputs)
        calls = [writer.call(one) for one in live_calls(trace.calls, trace.fake_outputs)]
        outputs = [writer.number(one) for one in trace.fake_outputs]
    except NotReplayable as problem:
        return ReplayData(b"", reason=str(problem))
    program = {
        "calls": calls,
        "outputs": outputs,
        "symbols": writer.symbols,
        "written": written,
        "state": recorder.state_at_start,
    }
    return ReplayData(json.dumps(program, separators=(",", ":")).encode(), tuple(writer.constants))


def refuse_random(trace: Trace) -> None:
    for node in trace.graph.nodes:
        if node.op.kind is Kind.RANDOM:
            raise NotReplayable("it draws random numbers, which would be others")


def written_inputs(trace: Trace) -> list[int]:
    """Numbers of the inputs that the region overwrites: a replay works on copies of them."""
    places = {id(record.node): number for number, record in enumerate(trace.used_inputs)}
    written = [places[id(write.target)] for write in trace.graph.writes]
    if not written:
        return []
    roots = [output.value for output in trace.graph.outputs if output.requires_grad]
    needed = reached(roots)
    memory: dict[int, str] = {}
    for number, record in enumerate(trace.used_inputs):
        if number in written and (id(record.node) in needed or record.requires_grad):
            raise NotReplayable(f"it changes `{record.name}`, whose old contents its results depend on")
        if isinstance(record.fake, FakeTensor):
            other = memory.setdefault(id(record.origin.storage_view.storage), record.name)
            if other != record.name:
                raise NotReplayable(f"it changes inputs of which `{record.name}` and `{other}` share memory")
    return written


def reached(roots: Iterable[Node]) -> set[int]:
    """Everything that these nodes are computed from."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found.add(id(node))
            waiting.extend(node.inputs)
    return found


def live_calls(calls: Sequence[TorchCall], outputs: Sequence[Any]) -> list[TorchCall]:
    """The calls that the outputs need, and those that change something."""
    live = {id(one) for one in leaves(list(outputs))}
    kept: list[TorchCall] = []
    for call in reversed(calls):
        if call.effects or call.kind == "setstate" or any(id(one) in live for one in leaves(call.result)):
            kept.append(call)
            live.update([id(one) for one in leaves((call.args, call.kwargs))])
    kept.reverse()
    return kept


def leaves(value: Any) -> list[Any]:
    """What nested containers contain."""
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in leaves(one)]
    if isinstance(value, dict):
        return leaves(list(value.values()))
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    return [value]


@final
class ReplayWriter:
    """Numbers for values, found by identity (the trace holds them)."""

    def __init__(self, recorder: Recorder, inputs: Sequence[InputRecord]) -> None:
        self.recorder = recorder
        self.numbers = {id(record.fake): number for number, record in enumerate(inputs)}
        self.count = len(inputs)
        self.symbols = symbol_bindings(inputs)
        self.known = {name for name, *_ in self.symbols}
        self.constants: list[torch.Tensor] = []
        self.paths: dict[Any, str] = {}

    def number(self, value: Any) -> int:
        found = self.numbers.get(id(value))
        if found is None:
            raise NotReplayable(f"a result is a {type(value).__name__} that no call made")
        return found

    def call(self, call: TorchCall) -> list[Json]:
        if call.kind == "setstate":
            (value,) = call.args
            return [str(call.target), self.rows(value if isinstance(value, tuple) else (value,)), [], SET_STATE]
        if changes_autograd(call):
            raise NotReplayable(f"it calls {call.name}")
        args = self.rows(call.args)
        kwargs: list[Json] = [["tuple", [key, self.row(one)]] for key, one in call.kwargs.items()]
        return [self.target(call), args, kwargs, self.result(call.result)]

    def target(self, call: TorchCall) -> Json:
        if isinstance(call.target, str):
            return call.target
        path = self.paths.get(call.target)
        if path is None:
            path = self.paths[call.target] = path_of(call.target)
        if not path:
            raise NotReplayable(f"no import finds {call.name}")
        return [path]

    def rows(self, values: Iterable[Any]) -> list[Json]:
        return [self.row(one) for one in values]

    def row(self, value: Any) -> Json:
        found = self.numbers.get(id(value))
        if found is not None and isinstance(value, (torch.Tensor, *NUMBERS)):
            return ["value", found]
        if isinstance(value, torch.Tensor):
            return self.constant(value)
        if isinstance(value, NUMBERS):
            return self.expression(value)
        if isinstance(value, torch.SymBool):
            return bool(value)
        if isinstance(value, slice):
            return ["slice", self.rows((value.start, value.stop, value.step))]
        if isinstance(value, dict):
            return ["dict", [["tuple", [self.row(key), self.row(one)]] for key, one in value.items()]]
        if type(value) in (list, tuple, torch.Size):
            return ["list" if type(value) is list else "tuple", self.rows(value)]
        try:
            return constant_to_json(value)
        except NotSerialisable as problem:
            raise NotReplayable(str(problem)) from problem

    def constant(self, value: torch.Tensor) -> Json:
        real = self.recorder.real_of(value) if isinstance(value, FakeTensor) else value
        if real is None:
            raise NotReplayable("a call takes a tensor that is neither an input nor the result of a call")
        self.constants.append(real)
        return ["tensor", len(self.constants) - 1]

    def expression(self, value: Any) -> Json:
        what = value.node.value
        if isinstance(what, int | float):
            return what
        if not isinstance(what, Expr) or not {str(one) for one in what.free_symbols()} <= self.known:
            raise NotReplayable(f"no input tells the number {what}")
        return ["expr", str(what)]

    def result(self, value: Any) -> Json:
        if isinstance(value, list | tuple):
            return [self.result(one) for one in value]
        if isinstance(value, dict):
            raise NotReplayable("a call returns a dict")
        if not isinstance(value, (torch.Tensor, *NUMBERS)):
            return None
        if id(value) not in self.numbers:
            self.numbers[id(value)] = self.count
            self.count += 1
        return self.numbers[id(value)]


def changes_autograd(call: TorchCall) -> bool:
    """Hooks and the like would be run, or set, a second time."""
    target = call.target
    return isinstance(target, str) and changes_state(target) and (target[-1] != "_" or target == "requires_grad_")


def symbol_bindings(inputs: Sequence[InputRecord]) -> list[list[Json]]:
    """Where each symbol is read first: `["s0", 1, "stride", 0]`."""
    found: dict[str, list[Json]] = {}
    for number, record in enumerate(inputs):
        for value, what, axis in shown_by(record):
            if isinstance(value, Symbol):
                found.setdefault(str(value), [str(value), number, what, axis])
    return list(found.values())


def shown_by(record: InputRecord) -> list[tuple[Any, str, int]]:
    """The sizes and strides of a tensor, or a number, and how each is read."""
    if isinstance(record.fake, FakeTensor):
        spec = record.origin.storage_view.spec
        sizes = [(one, "size", axis) for axis, one in enumerate(spec.sizes)]
        return sizes + [(one, "stride", axis) for axis, one in enumerate(spec.strides)]
    return [(record.fake.node.value, "value", 0)] if isinstance(record.fake, NUMBERS) else []
