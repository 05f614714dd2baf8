"""Writes the eager replay of a region: its torch calls as data, which the second derivative differentiates.

    3  function  torch.nn.functional.gelu  (%0,)      =>      [["torch._C._nn:gelu"], [["value", 0]], [], 2]

Not every region can be replayed from the inputs that the backward has: the old contents of a large overwritten input
are gone. The error of the second derivative gives that reason. Random numbers and small old contents are saved.
Needs: a recorder whose trace has just been finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import MethodType
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.trace import Recorder, Trace
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.log import ControlFlow, NestedLog, RegisterHook, Target, TorchCall, leaves
from kiln.graph.trace.recorder import changes_state
from kiln.graph.trace.set_data import set_data
from kiln.runtime.eager_replay import HOOK, METHOD, SET_STATE, EagerReplayData
from kiln.runtime.guards.constant import Json, NotSerialisable, constant_to_json
from kiln.runtime.guards.reference import named_path
from kiln.symbolic import Expr, Symbol
from kiln.symbolic.values import Given, Real

SYMBOLIC = (torch.SymInt, torch.SymFloat)
MOST_OLD = 1 << 18
"""Bytes of an overwritten input that every forward copies, in case that there will be a second derivative."""


@final
class NotReplayable(Exception):
    """The reason why a region cannot be replayed."""


def write_eager_replay(recorder: Recorder, trace: Trace, joint: Graph) -> EagerReplayData:
    """The replay of a trace, or why there is none. `joint`: its graph with its gradients."""
    try:
        written, needed = written_inputs(trace)
        writer = EagerReplayWriter(recorder, trace.used_inputs)
        calls = [writer.call(call) for call in live_calls(trace.calls, trace.fake_outputs, writer.bound)]
        outputs = [writer.number(output) for output in trace.fake_outputs]
    except NotReplayable as problem:
        return EagerReplayData(b"", reason=str(problem))
    program = {
        "calls": calls,
        "outputs": outputs,
        "symbols": writer.symbols,
        "written": written,
        "floats": bool(writer.floats),
        "sizes_from_data": writer.reads_sizes,
        "nonlinear": [call.number for call in trace.calls if is_nonlinear(call, recorder)],
        "state": recorder.state_at_start,
    }
    data = json.dumps(program, separators=(",", ":")).encode()
    constants, functions = tuple(writer.constants), tuple(writer.functions)
    return EagerReplayData(data, constants, functions=functions, old=needed, unread=unread_inputs(trace, joint))


def unread_inputs(trace: Trace, joint: Graph) -> tuple[int, ...]:
    """Inputs on which no gradient depends, such as the statistics of a batch norm, or what is added to a result."""
    found = ancestors(output.value for output in joint.outputs[len(trace.graph.outputs) :])
    return tuple([number for number, record in enumerate(trace.used_inputs) if id(record.node) not in found])


def written_inputs(trace: Trace) -> tuple[list[int], tuple[int, ...]]:
    """Numbers of the inputs that the region overwrites, and of those whose old contents a replay needs: the forward
    saves these. A replay works on copies of both."""
    numbers = {id(record.node): number for number, record in enumerate(trace.used_inputs)}
    written = [numbers[id(write.target)] for write in trace.graph.writes]
    if not written:
        return [], ()
    needed = ancestors(output.value for output in trace.graph.outputs if output.requires_grad)
    owner: dict[int, str] = {}
    old: list[int] = []
    for number, record in enumerate(trace.used_inputs):
        if number in written and (id(record.node) in needed or record.requires_grad):
            if record.requires_grad or record.real is None or record.real.nbytes > MOST_OLD:
                raise NotReplayable(f"it changes `{record.name}`, whose old contents its results depend on")
            old.append(number)
        if isinstance(record.fake, FakeTensor):
            other = owner.setdefault(id(record.view.storage), record.name)
            if other != record.name:
                raise NotReplayable(f"it changes inputs, and `{record.name}` and `{other}` share memory")
    return written, tuple(old)


def ancestors(roots: Iterable[Node]) -> set[int]:
    """The ids of the roots and of everything they are computed from."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found.add(id(node))
            waiting.extend(node.inputs)
    return found


def live_calls(calls: Sequence[TorchCall], outputs: Sequence[object], bound: set[str]) -> list[TorchCall]:
    """The calls that the outputs need, those with effects, and those that register hooks, which change gradients.

    A call is needed, too, for a number that no input gives (those in `bound` do), if it is the first that gives it.
    """
    makers: dict[str, TorchCall] = {}
    for call in calls:
        for leaf in leaves(call.result):
            for number, *_ in readable_numbers(leaf):
                if isinstance(number, Symbol) and str(number) not in bound:
                    makers.setdefault(str(number), call)
    live = {id(leaf) for leaf in leaves(list(outputs))}
    kept: list[TorchCall] = []
    for call in reversed(calls):
        kept_anyway = call.effects or call.kind == "setstate" or isinstance(call.target, RegisterHook)
        if kept_anyway or id(call) in live or any(id(leaf) in live for leaf in leaves(call.result)):
            kept.append(call)
            given = list(leaves((call.args, call.kwargs)))
            live.update([id(leaf) for leaf in given])
            live.update([id(makers[name]) for name in symbols_in(given) if name in makers])
    kept.reverse()
    return kept


def symbols_in(values: Iterable[object]) -> set[str]:
    """The symbols of numbers among the arguments of a call."""
    expressions = [value.node.value for value in values if isinstance(value, SYMBOLIC)]
    return {str(symbol) for expr in expressions if isinstance(expr, Expr) for symbol in expr.free_symbols()}


@final
class EagerReplayWriter:
    """Numbers values by identity (the trace keeps them alive) and writes calls in these numbers."""

    def __init__(self, recorder: Recorder, inputs: Sequence[InputRecord]) -> None:
        self.recorder = recorder
        self.numbers = {id(record.fake): number for number, record in enumerate(inputs) if record.given is None}
        self.floats = {record.given: number for number, record in enumerate(inputs) if record.given is not None}
        self.count = len(inputs)
        self.symbols = symbol_bindings(inputs)
        self.bound = {str(name) for name, *_ in self.symbols}
        self.made: dict[str, list[Json]] = {}
        """Symbols for sizes that data decide, and the first result that each is read off."""
        self.reads_sizes = False
        self.constants: list[torch.Tensor] = []
        self.paths: dict[Target, str] = {}
        self.functions: list[Callable[..., object]] = []

    def number(self, value: object) -> int:
        found = self.numbers.get(id(value))
        if found is None:
            raise NotReplayable(f"a result is a {type(value).__name__} that no call made")
        return found

    def call(self, call: TorchCall) -> list[Json]:
        if call.kind == "setstate":
            (value,) = call.args
            return [
                str(call.target),
                self.rows(value if isinstance(value, tuple) else (value,)),
                [],
                SET_STATE,
                call.number,
            ]
        if changes_autograd(call):
            raise NotReplayable(f"it calls {call.name}")
        if isinstance(call.target, ControlFlow):
            return [self.operator(call.target), self.rows(call.args), [], self.result(call.result), call.number]
        args = self.rows(call.args)
        kwargs: list[Json] = [["tuple", [name, self.row(value)]] for name, value in call.kwargs.items()]
        return [self.target(call), args, kwargs, self.result(call.result), call.number]

    def target(self, call: TorchCall) -> Json:
        if isinstance(call.target, str):
            return call.target
        if isinstance(call.target, RegisterHook):
            return [self.function(call.target), HOOK]
        if isinstance(call.target, MethodType) and isinstance(call.target.__self__, type):
            return self.custom_function(call.target)
        path = self.paths.get(call.target)
        if path is None:
            path = self.paths[call.target] = named_path(call.target)
        if not path:
            raise NotReplayable(f"{call.name} cannot be imported by name")
        return [path]

    def custom_function(self, apply: MethodType) -> Json:
        """`apply` of an `autograd.Function`: by its class, or, where that has no import path, itself."""
        if path := named_path(apply.__self__):
            return [path, METHOD, apply.__name__]
        return [self.function(apply)]

    def function(self, function: Callable[..., object]) -> int:
        """The number of a function without an import path."""
        if function not in self.functions:
            self.functions.append(function)
        return self.functions.index(function)

    def operator(self, target: ControlFlow) -> Json:
        """Its function, its counts, and its logs, whose values have numbers of their own."""
        counts: list[Json] = [target.carried, target.rows]
        return [named_path(target.run), counts, [self.nested(log) for log in target.logs]]

    def nested(self, log: NestedLog) -> Json:
        numbers, count, made = self.numbers, self.count, self.made
        self.numbers, self.made = {id(argument): number for number, argument in enumerate(log.arguments)}, {}
        self.count = len(log.arguments)
        calls: list[Json] = [self.call(call) for call in live_calls(log.calls, log.outputs, self.bound)]
        outputs: list[Json] = [self.row(output) for output in log.outputs]
        self.numbers, self.count, self.made = numbers, count, made
        return {"calls": calls, "outputs": outputs}

    def rows(self, values: Iterable[object]) -> list[Json]:
        return [self.row(value) for value in values]

    def row(self, value: object) -> Json:
        number = self.numbers.get(id(value))
        if number is not None and isinstance(value, (torch.Tensor, *SYMBOLIC)):
            return ["value", number]
        if isinstance(value, torch.Tensor):
            return self.constant(value)
        if isinstance(value, SYMBOLIC):
            return self.expression(value)
        if isinstance(value, torch.SymBool):
            return bool(value)
        if isinstance(value, slice):
            return ["slice", self.rows((value.start, value.stop, value.step))]
        if isinstance(value, dict):
            return ["dict", [["tuple", [self.row(key), self.row(item)]] for key, item in value.items()]]
        if isinstance(value, list | tuple) and type(value) in (list, tuple, torch.Size):
            kind = "size" if type(value) is torch.Size else "list" if type(value) is list else "tuple"
            return [kind, self.rows(value)]
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

    def expression(self, value: torch.SymInt | torch.SymFloat) -> Json:
        return self.formula(value.node.value)

    def formula(self, expr: object) -> Json:
        if isinstance(expr, int | float):
            return expr
        if isinstance(expr, Given) and expr in self.floats:
            return ["value", self.floats[expr]]
        if isinstance(expr, Real):
            return ["real", [expr.op, *[self.formula(arg) for arg in expr.args]]]
        symbols = {str(symbol) for symbol in expr.free_symbols()} - self.bound if isinstance(expr, Expr) else None
        if symbols is None or not symbols <= self.made.keys():
            raise NotReplayable(f"neither an input nor the result of a call gives the number {expr}")
        self.reads_sizes |= bool(symbols)
        read: list[Json] = [self.made[name] for name in sorted(symbols)]
        return ["size from data", [str(expr), read]] if read else ["expr", str(expr)]

    def result(self, value: object) -> Json:
        if isinstance(value, list | tuple):
            return [self.result(item) for item in value]
        if isinstance(value, dict):
            raise NotReplayable("a call returns a dict")
        if not isinstance(value, (torch.Tensor, *SYMBOLIC)):
            return None
        if id(value) not in self.numbers:
            self.numbers[id(value)] = self.count
            for size, attribute, axis in readable_numbers(value):
                if isinstance(size, Symbol):
                    self.made.setdefault(str(size), [str(size), self.count, attribute, axis])
            self.count += 1
        return self.numbers[id(value)]


def is_nonlinear(call: TorchCall, recorder: Recorder) -> bool:
    """Whether the backward of a function, or a hook, was found not to be linear in gradients."""
    target = call.target
    owner = target.on_fake() if isinstance(target, RegisterHook) else getattr(target, "__self__", None)
    return isinstance(owner, Hashable) and owner in recorder.nonlinear


def changes_autograd(call: TorchCall) -> bool:
    """Hooks and the like would be run, or set, a second time."""
    target = call.target
    if target is set_data:
        return True
    return isinstance(target, str) and changes_state(target) and (target[-1] != "_" or target == "requires_grad_")


def symbol_bindings(inputs: Sequence[InputRecord]) -> list[list[Json]]:
    """Where each symbol is first read: `["s0", 1, "stride", 0]`."""
    found: dict[str, list[Json]] = {}
    for number, record in enumerate(inputs):
        for value, attribute, axis in readable_numbers(record.fake):
            if isinstance(value, Symbol):
                found.setdefault(str(value), [str(value), number, attribute, axis])
    return list(found.values())


def readable_numbers(value: object) -> Sequence[tuple[object, str, int]]:
    """The sizes and strides of a tensor, or a number, and how each is read. A wrapper has none: its parts do."""
    if isinstance(value, FakeTensor) and not value.is_outer:
        spec = value.storage_view.spec
        sizes = [(size, "size", axis) for axis, size in enumerate(spec.sizes)]
        return sizes + [(stride, "stride", axis) for axis, stride in enumerate(spec.strides)]
    return [(value.node.value, "value", 0)] if isinstance(value, SYMBOLIC) else []
