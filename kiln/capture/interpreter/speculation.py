"""Speculation on truth values of inputs (integers, CPU scalars), with a check in front of the region and a side exit.

    if mask.all():              if not check(mask): return side_exit(x, mask)
        return f(x)       =>    return region(x)                                  region is f alone
    return g(x, mask)

A branch on values of a tensor would break the graph. If the condition depends on inputs alone that seldom change, it
is computed on the real inputs, the capture continues with that branch, and the transformed code computes the condition
again before anything else. If it differs, the call goes to the side exit: another dispatcher of the same function,
which captures the other branch. The caller of the capture bounds the chain of side exits (`make_exit` is None); at its
end the branch breaks the graph.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import field
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import cast, final

import torch

from kiln.capture.bytecode.assemble import Assembler, Label, arguments_of
from kiln.capture.interpreter.core import SPECULATED_VALUES, CaptureState, Value
from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.trace import InputRecord
from kiln.graph.trace.condition import condition_graph, evaluate_condition, inputs_of, speculative_condition
from kiln.graph.trace.constant_value import comparison_truth
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.recorder import Recorder
from kiln.runtime.guards.source import FormulaSource, LocalSource, Source
from kiln.runtime.numbers import attempted
from kiln.runtime.speculation_check import SpeculationCheck, SpeculationPlan
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv
from kiln.symbolic.expr import Expr
from kiln.symbolic.values import BRANCHES, IN_FRONT, Given, Real, Truth, has_hints, hinted_real

Number = int | float | Expr | Real


@final
@dataclass(frozen=True, slots=True)
class Speculation:
    """The capture assumed that the condition `node` is always `expected`."""

    node: Node
    expected: bool
    location: Location

    def text(self) -> str:
        where = self.location.text()
        return f"assumes that the condition at {where} is {self.expected}; another variant runs where it is not"


def run_eagerly(graph: Graph, constants: Mapping[str, torch.Tensor]) -> SpeculationPlan:
    """Computes the conditions with eager's kernels."""
    return SpeculationPlan(fx_view(graph, constants).forward)


@final
@dataclass(frozen=True, slots=True)
class NumberCheck:
    """The capture assumed that `compare(left, right)` of floats from outside is `expected`."""

    compare: Callable[[float, float], bool]
    left: Number
    right: Number
    expected: bool = True
    under: tuple[Truth, ...] = ()
    """It is asked where these hold: the sides of branches in which it was assumed."""


@final
@dataclass(frozen=True, slots=True)
class ComputedNumber:
    """`formula`, an input of the region that is computed in front of it; of type `kind`, as in the captured call."""

    name: str
    formula: Real
    kind: type[int | float]
    under: tuple[Truth, ...] = ()
    """Where one of these does not hold, it is not computed."""


@final
@dataclass
class Speculations:
    """What a capture assumes of the values of its inputs."""

    assumed: dict[Node, Speculation] = field(default_factory=dict)
    """By the tested node of the graph."""
    numbers: dict[NumberCheck | ComputedNumber, torch.SymInt | torch.SymFloat | None] = field(default_factory=dict)
    """In order, with what stands for the number in the capture."""
    in_region: dict[tuple[str, tuple[Number, ...]], tuple[TorchCall, torch.SymInt]] = field(default_factory=dict)
    """Of `number_in_region`, with the call that reads it, which leaves the log with the nested graph that it is in."""
    under: tuple[Truth, ...] = ()
    """What holds in the side of a branch that is interpreted now (`number_branches.py`)."""

    def __bool__(self) -> bool:
        return bool(self.assumed or self.numbers)


def number_truth(s: CaptureState, function: Callable[[float, float], bool], left: Number, right: Number) -> bool | None:
    """`function(left, right)` for floats from outside, which the call checks; None if it cannot be speculated on."""
    env = s.recorder.env
    if not (s.policy.speculate and has_hints(env, left) and has_hints(env, right)):
        return None
    truth, found = bool(function(hinted_real(env, left), hinted_real(env, right))), s.part(Speculations)
    left, right = without_data(env, left), without_data(env, right)
    found.numbers[NumberCheck(function, left, right, truth, found.under)] = None
    return truth


def without_data(env: ShapeEnv, number: Number) -> Number:
    """A number that is known in this call, as it is computed in front of the region: sizes that data decide, which are
    speculated on, are what they are taken to be."""
    if isinstance(number, Real):
        return Real(
            number.op, tuple([arg if isinstance(arg, Given) else without_data(env, arg) for arg in number.args])
        )
    if isinstance(number, Expr) and not number.free_symbols().isdisjoint(env.unbacked):
        return env.simplify(number)
    return number


def number_in_front(s: CaptureState, function: str, *args: Number) -> torch.SymInt | torch.SymFloat | None:
    """`function(*args)`, a row of `IN_FRONT`, as an input of the region.

    None if data decide, or if it raises or is a negative integer in this call; in other calls a check finds that.
    """
    env = s.recorder.env
    if not (s.policy.speculate and all([has_hints(env, arg) for arg in args])):
        return None
    args = tuple([without_data(env, arg) for arg in args])
    formula, found = Real(function, args), s.part(Speculations)
    if function in BRANCHES:
        number = attempted(operator.pos, hinted_real(env, formula))
    else:
        number = attempted(IN_FRONT[function], *[hinted_real(env, arg) for arg in args])
    if number is None:
        return None
    for known, value in found.numbers.items():
        under = found.under[: len(known.under)]
        if isinstance(known, ComputedNumber) and known.formula == formula and known.under == under:
            return value
    made = ComputedNumber(f"{function}_{len(found.numbers)}", formula, type(number), found.under)
    scalar = found.numbers[made] = s.recorder.add_scalar(number, made.name, FormulaSource(made.name), formula)
    if found.under and isinstance(scalar, torch.SymInt):
        env.conditional.add(scalar.node.value)
    return scalar


def rounded_number(s: CaptureState, rounding: Rounding, value: Number) -> int | torch.SymInt | None:
    """`rounding` of a float: speculated on if it comes from outside, in its first call, else computed in front.

    None if it can be neither.
    """
    env = s.recorder.env
    if not (s.policy.speculate and isinstance(value, Real) and has_hints(env, value)):
        return None
    number = hinted_real(env, value)
    if not math.isfinite(number):
        return None
    if s.policy.speculate_values == SPECULATED_VALUES and any(value.givens()):
        rounded = rounding(number)
        return rounded if number_truth(s, ROUNDS_TO[rounding], value, rounded) else None
    return cast(torch.SymInt | None, number_in_front(s, rounding.__name__, value))


def floors_to(value: float, number: float) -> bool:
    return math.isfinite(value) and math.floor(value) == number


def ceils_to(value: float, number: float) -> bool:
    return math.isfinite(value) and math.ceil(value) == number


def truncates_to(value: float, number: float) -> bool:
    return math.isfinite(value) and math.trunc(value) == number


def rounds_to(value: float, number: float) -> bool:
    return math.isfinite(value) and round(value) == number


Rounding = Callable[[float], int]
ROUNDS_TO: Mapping[Rounding, Callable[[float, float], bool]] = {
    math.floor: floors_to,
    math.ceil: ceils_to,
    math.trunc: truncates_to,
    round: rounds_to,
}


def constant_truth(recorder: Recorder, fake: torch.Tensor) -> bool | None:
    """The truth value of a tensor of one element, if it is the same in every call."""
    known = recorder.constant_value(fake)
    if known is not None:
        return bool(known)
    return comparison_truth(recorder.node_of(fake), recorder.constants)


def may_decide(s: CaptureState, node: Node, needed: bool = False) -> bool:
    """Whether the inputs that `node` is computed from may be taken as they are in this call.

    `needed`: an earlier attempt has found that Python cannot do without the value.
    """
    carries = s.policy.carries
    if carries is None:
        return s.policy.speculate
    return all(
        [x.real is not None and is_as_before(s, x) and carries(x.real, needed) for x in inputs_of(s.recorder, node)]
    )


def is_as_before(s: CaptureState, record: InputRecord) -> bool:
    """Whether the program has not changed a tensor from outside so far."""
    return isinstance(record.fake, FakeTensor) and s.recorder.node_of(record.fake) is record.node


def known_truth(s: CaptureState, fake: torch.Tensor) -> bool | None:
    """The truth value of a tensor if it is constant or can be speculated on, else None."""
    if fake.dim() and not all(isinstance(size, int) and size == 1 for size in fake.shape):
        return None
    s.counters.unguarded += 1
    known = constant_truth(s.recorder, fake)
    if known is not None:
        return known
    if not s.policy.assumes:
        return None
    node = speculative_condition(s.recorder, fake)
    if node is None or not may_decide(s, node):
        return None
    assumed = s.part(Speculations).assumed
    found = assumed.get(node)
    if found is None:
        assert s.frame is not None
        found = assumed[node] = Speculation(
            node, evaluate_condition(s.recorder, node), s.frame.location(of_program=True)
        )
    return found.expected


def are_exact_floats(*values: Value) -> bool:
    """Whether integers of the program among numbers are what they are as floats, as Python compares them."""
    known = [value.real() for value in values if value.is_constant and value.python_type() is int]
    return all(abs(number) <= 2**53 for number in known)


def comparison_in_region(s: CaptureState, function: Callable[..., object], left: Value, right: Value) -> FakeTensor:
    """The truth of a comparison of floats that were taken from tensors, as a tensor of the region."""
    assert s.frame is not None
    numbers = [
        s.recorder.call(torch.scalar_tensor, (value.torch_arg(s),), {"dtype": torch.float64}, stack=s.frame.locations())
        for value in (left, right)
    ]
    result = s.recorder.call(function, numbers, {}, stack=s.frame.locations())
    assert isinstance(result, FakeTensor)
    return result


CompileSpeculation = Callable[[Graph, Mapping[str, torch.Tensor]], SpeculationPlan]
"""(graph of truth values, its constants) -> plan."""


@final
@dataclass(frozen=True, slots=True)
class Prologue:
    """The check of a capture, its inputs, and the side exit for when it fails."""

    check: SpeculationCheck
    records: list[InputRecord]
    side_exit: Callable[..., object]

    def sources(self) -> list[Source]:
        """The sources of the inputs that the guards collect."""
        return [record.source for record in self.records if is_bound(record)]


def is_bound(record: InputRecord) -> bool:
    """Whether the guards collect it: not arguments of the function, numbers that become tensors or are computed."""
    unbound = type(record.source) in (LocalSource, FormulaSource) or bool(record.offset)
    return not unbound and record.given is None


def make_prologue(
    s: CaptureState,
    function: types.FunctionType,
    make_exit: Callable[[types.FunctionType], Callable[..., object]],
    compile_speculation: CompileSpeculation,
) -> Prologue | None:
    """None if there are no speculations."""
    speculations = list(s.part(Speculations).assumed.values())
    if not speculations:
        return None
    graph, records = condition_graph(s.recorder, [speculation.node for speculation in speculations])
    plan = compile_speculation(graph, s.recorder.constants)
    check = SpeculationCheck(plan, tuple([speculation.expected for speculation in speculations]))
    for speculation in speculations:
        s.events.emit("note", text=speculation.text())
    return Prologue(check, records, make_exit(function))


def write_prologue(
    head: Assembler,
    prologue: Prologue,
    leave: Callable[[Callable[..., object]], None],
    bindings: str,
    collected: list[Source],
    write_unbound: Callable[[InputRecord], None],
) -> None:
    """`if not check(...): return side_exit(<all arguments>)`; `bindings` holds the objects at `collected`."""
    passed = Label()
    head.const(prologue.check)
    for record in prologue.records:
        if is_bound(record):
            head.op("LOAD_FAST", bindings).const(collected.index(record.source)).op("BINARY_SUBSCR")
        else:
            write_unbound(record)
    head.call(len(prologue.records))
    head.jump_if(True, passed)
    leave(prologue.side_exit)
    head.op("RETURN_VALUE")
    head.label(passed)


def write_exit(head: Assembler, side_exit: Callable[..., object], code: types.CodeType) -> None:
    """Push the result of the side exit, called like the function: slots become positional and keyword arguments."""
    names = list(arguments_of(code))
    keywords = names.pop() if code.co_flags & CO_VARKEYWORDS else None
    rest = names.pop() if code.co_flags & CO_VARARGS else None
    count = code.co_argcount
    head.const(side_exit).null_for_callable()
    for name in names[:count]:
        head.op("LOAD_FAST", name)
    head.op("BUILD_LIST", count)
    if rest is not None:
        head.op("LOAD_FAST", rest).op("LIST_EXTEND", 1)
    head.op("LIST_TO_TUPLE")
    only = names[count:]
    for name in only:
        head.const(name).op("LOAD_FAST", name)
    head.op("BUILD_MAP", len(only))
    if keywords is not None:
        head.op("LOAD_FAST", keywords).op("DICT_UPDATE", 1)
    head.call_spread(keywords=True)
