"""Numbers that the values of tensors decide, and what a capture assumes of them.

    n = lengths.max().item()      symbolic: the region reads it; code behind the region asks the tensor again
    assert n <= x.shape[1]        assumed: the region checks it, and the frame runs eager if it does not hold
    h, w = grid.tolist()          of integer inputs: speculated on, see `speculation.py`

Where Python needs a number that is symbolic, the capture begins again, and breaks at the instruction that made it
(or speculates on its value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from types import CodeType
from typing import cast, final

import torch

import kiln.capture.interpreter.control_flow as control_flow
from kiln.capture.interpreter.breaks import DataDependentValue, GraphBreak, PastStep
from kiln.capture.interpreter.core import CaptureState, Value, refuse_varying
from kiln.capture.interpreter.frame import Computing, SymbolicFrame, running_frame
from kiln.capture.interpreter.speculation import Speculation, Speculations, constant_truth, may_decide
from kiln.capture.interpreter.speculation import known_truth as known_condition
from kiln.capture.interpreter.torch_warnings import note_warnings
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import all_nodes, symbols_read
from kiln.graph.trace.condition import computed_size, equality, evaluate, inputs_of, integer_value, is_buffer, size_read
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.finish import changes_inputs
from kiln.graph.trace.finite import truth_if_finite
from kiln.graph.trace.log import Target
from kiln.plan.errors import ASSUMED
from kiln.plan.host_operators import NAMESPACE
from kiln.plan.overloads import is_random, written_arguments
from kiln.runtime.heard_warnings import hearing
from kiln.support.errors import KilnError
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic.comparisons import compare
from kiln.symbolic.env import DataDependentSize, FalseAssertion, NoHint
from kiln.symbolic.expr import Expr, Symbol
from kiln.symbolic.node import SymNode, from_sym
from kiln.symbolic.relation import Relation, rel_eq
from kiln.symbolic.values import AllOf, AnyOf, Given, Real, Truth, assume_truth, invert, known_truth, truth_for
from kiln.tensor.spec import ScalarSpec

LARGEST_SPECULATED = 64
"""Elements of a tensor whose values are speculated on."""

LENGTH = "Python reads a list of unknown length"
"""Why an instruction is needed whose numbers may stay symbolic, once there are as many as in this call."""

OBJECT_READ = "Python reads what its sides leave in an object"
NUMBER_READ = "Python reads a number that its sides leave"
COPY_SEEN = "a copy of what one side leaves would be seen"
LENGTH_CHANGED, KEYS_CHANGED = "it changes the length of a list", "it changes the keys of a dict"
LATER = frozenset((OBJECT_READ, NUMBER_READ, COPY_SEEN, LENGTH_CHANGED, KEYS_CHANGED))
"""Why sides cannot be joined where they meet first; they may be where they return."""

JOINED_FIRST = "what follows where its sides meet cannot be in them"
"""Why sides are joined where they meet first, though a value is one of two then."""

COPY_CHOSEN = "the code behind the region chooses between a tensor and what is a copy of it"
LENGTH_READ = "Python reads a list that one of its sides extends"
"""Why the graph breaks where the list is read, and not at the branch."""

CHOOSING = frozenset((JOINED_FIRST, COPY_CHOSEN, LENGTH_READ))
"""Needs of jumps whose sides are joined all the same; their results are chosen behind the region."""

GUARDED = "its sides leave other values than numbers"
"""Why a jump on numbers of the caller is not computed in front of the region."""

Instruction = tuple[CodeType, int]
Place = tuple[int, ...]
"""Of a tensor in the result of a torch call: the indices that lead to it."""


@final
@dataclass(frozen=True, slots=True)
class DataNumber:
    """A number that the region finds: the item of `tensor`, or its size along `dim`."""

    tensor: Value
    dim: int | None
    node: Node
    """The value of the tensor when it was read."""
    step: PastStep


@final
@dataclass(frozen=True, slots=True)
class Assumption:
    """That a condition on values is `expected`; without a tensor, the region itself checks it."""

    step: PastStep
    tensor: FakeTensor | None = None
    node: Node | None = None
    expected: bool = True
    need: ValueNeeded | None = None
    """Raised where it cannot be assumed, if not the step is where the graph breaks then."""


@final
@dataclass
class DataValues:
    """The numbers of one capture that depend on data."""

    numbers: dict[Symbol | Given, DataNumber] = field(default_factory=dict)
    steps: dict[Symbol | Given, tuple[Instruction, PastStep, str]] = field(default_factory=dict)
    """Where each was made, and why a break there is needed if Python reads it."""
    items: dict[Node, Value] = field(default_factory=dict)
    """The numbers by what was read of a tensor; of the sides of branches, those around what is interpreted now."""
    assumptions: list[Assumption] = field(default_factory=list)
    formulas: dict[object, Value] = field(default_factory=dict)
    """Tensors of sides of branches that have what is computed from numbers."""
    speculated: dict[Node, torch.Tensor] = field(default_factory=dict)


@final
@dataclass
class DataSizes:
    """Sizes that data decide, of the tensors that instructions make: by their place in the result, none for itself."""

    made: dict[Instruction, dict[Place, tuple[int, ...]]] = field(default_factory=dict)
    """In this attempt."""
    known: dict[Instruction, dict[Place, tuple[int, ...]]] = field(default_factory=dict)
    """At graph breaks, as earlier attempts found them."""

    def add(self, at: Instruction, place: Place, dim: int) -> None:
        found = self.made.setdefault(at, {})
        found[place] = tuple({*found.get(place, ()), dim})


@final
class ValueNeeded(Exception):
    """Python needs a number that the instruction `made_at` kept symbolic, or it takes both sides, which it cannot."""

    def __init__(self, made_at: Instruction, step: PastStep, reason: str = "") -> None:
        super().__init__(made_at)
        self.made_at = made_at
        self.step = step
        self.reason = reason


class SizesMatch(Exception):
    """A torch call fails unless two sizes, one of which data decide, are equal: the next attempt takes them to be."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(relation)
        self.relation = relation


def call_on_fakes(s: CaptureState, target: Target, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """The result of a torch call on fakes.

    Raises:
        SizesMatch: if it fails or warns, and asked whether sizes are equal that were taken to differ.
    """
    env, nodes = s.recorder.env, len(s.recorder.nodes)
    first, unbacked = len(env.differing), len(env.unbacked)
    frame = running_frame(s)
    s.part(Computing).note(frame)
    call = partial(s.recorder.call, target, args, kwargs, stack=frame.locations())
    with hearing() as heard:
        try:
            result = call()
        except (GraphBreak, NoHint, DataDependentSize):
            raise
        except Exception as error:
            stated = error.details.get("relation") if isinstance(error, FalseAssertion) else None
            if isinstance(stated, Relation) and stated in env.differing:
                raise SizesMatch(stated) from None
            if len(env.differing) > first:
                raise SizesMatch(env.differing[-1]) from None
            raise
    if heard and len(env.differing) > first:
        raise SizesMatch(env.differing[-1])
    if heard:
        note_warnings(s, target, heard, nodes, call if len(env.unbacked) == unbacked else None)
    return result


def past_step(frame: SymbolicFrame) -> PastStep:
    """The current step of `frame`."""
    return PastStep(frame.number, frame.step, frame.location())


def is_needed(s: CaptureState) -> bool:
    """Whether an earlier attempt found that Python needs the number which the current instruction makes."""
    frame = running_frame(s)
    return bool(s.needed) and s.needed.get((frame.code, frame.at), LENGTH) != LENGTH


@contextmanager
def none_needed(s: CaptureState) -> Iterator[None]:
    """What is recorded inside is not what the current instruction makes: where the sides of a branch meet, that is the
    last one of a side."""
    needed, s.needed = s.needed, {}
    try:
        yield
    finally:
        s.needed = needed


def number_made(s: CaptureState, number: Symbol | Given, tensor: Value, fake: torch.Tensor, dim: int | None) -> None:
    """Note that the current instruction made `number`."""
    frame, found = running_frame(s), s.part(DataValues)
    step = past_step(frame)
    found.numbers[number] = DataNumber(tensor, dim, s.recorder.node_of(fake), step)
    found.steps[number] = (frame.code, frame.at), step, ""


def number_read(s: CaptureState, fake: torch.Tensor, read: Callable[[], Value]) -> Value:
    """The number in a tensor; in a side of a branch that which was read in front of it, where the side can have none of
    its own."""
    found, node = s.part(DataValues).items, s.recorder.node_of(fake)
    known = found.get(node) if s.counters.nested and not s.function_modes else None
    made = found[node] = read() if known is None else known
    return made


def constants_decide(s: CaptureState, number: Expr | Relation) -> bool:
    """Whether a formula or relation of numbers from data is computed from constants alone."""
    numbers = s.part(DataValues).numbers
    found = [numbers.get(symbol) for symbol in number.free_symbols()]
    return bool(found) and all([made is not None and not inputs_of(s.recorder, made.node) for made in found])


def size_made(s: CaptureState, place: Place, dim: int) -> None:
    """Note that data decide a size of the tensor at `place` in what the current instruction makes."""
    frame = running_frame(s)
    s.part(DataSizes).add((frame.code, frame.at), place, dim)


def number_hidden(s: CaptureState, symbol: Symbol) -> None:
    """Note that the current instruction made a number that is no result, such as the offset of `x[i]`.

    One that buffers of modules decide, such as a padding, seldom changes: it is speculated on, but for a whole graph,
    whose buffers may count.
    """
    frame = running_frame(s)
    s.part(DataValues).steps[symbol] = (frame.code, frame.at), past_step(frame), ""
    node = size_read(s.recorder, symbol) if s.policy.speculate_values and not s.policy.whole else None
    if node is not None and all([is_buffer(record.source) for record in inputs_of(s.recorder, node)]):
        speculated_size(s, symbol)


def value_needed(s: CaptureState, error: KilnError) -> ValueNeeded | None:
    """For an error about numbers without a value: where the first of them was made."""
    found = s.part(DataValues).steps
    unknown = cast(tuple[Symbol | Given, ...], error.details.get("unknown", ()))
    return next((ValueNeeded(*found[number]) for number in unknown if number in found), None)


def will_fix(s: CaptureState, number: Value, value: object) -> None:
    """Call before the value of a number is read, which a guard then fixes: the guard names the line that runs."""
    simple = s.recorder.env.simplify(value) if s.policy.varying and isinstance(value, Expr) else value
    symbols = simple.free_symbols() if s.policy.varying and isinstance(simple, Expr | Relation) else ()
    for record in s.recorder.inputs if symbols else ():
        if isinstance(record.spec, ScalarSpec) and record.spec.value in symbols:
            refuse_varying(s, number, record.source)
    if s.frame is not None:
        s.recorder.symbols.location = s.frame.location(of_program=True)


def speculated_value(s: CaptureState, fake: torch.Tensor) -> torch.Tensor | None:
    """The value of a small tensor that depends on integer inputs alone; the call checks that it is the same."""
    if not s.policy.speculate_values or fake.is_meta:
        return None
    env = s.recorder.env
    sizes = [from_sym(size) for size in fake.shape if isinstance(size, torch.SymInt)]
    unknown = [
        symbol for size in sizes if isinstance(size, Expr) and not env.has_hint(size) for symbol in size.free_symbols()
    ]
    if not all([env.has_hint(symbol) or speculated_size(s, symbol) for symbol in unknown]):
        return None
    node = integer_value(s.recorder, fake, LARGEST_SPECULATED)
    return speculated(s, node) if node is not None and may_decide(s, node, is_needed(s)) else None


def speculated(s: CaptureState, node: Node) -> torch.Tensor:
    """The value of `node` in this call, which the check in front of the region asks for."""
    known = s.part(DataValues).speculated
    value = known.get(node)
    if value is None:
        value = known[node] = evaluate(s.recorder, node)
        condition = equality(s.recorder, node, value)
        s.part(Speculations).assumed[condition] = Speculation(condition, True, running_frame(s).location())
    return value


def speculated_size(s: CaptureState, symbol: Symbol) -> bool:
    """Take a size that integer inputs decide as what it is in this call, which the call checks.

    One that is at least a number of the program (`minlength`) is taken to be that number, which the region checks.
    """
    env = s.recorder.env
    smallest = env.declared[symbol].lo
    if smallest > 0 and assume_integer(s, rel_eq(symbol, smallest)):
        return True
    node = size_read(s.recorder, symbol) if s.policy.speculate_values else None
    if node is None or not may_decide(s, node, is_needed(s)):
        return False
    found = s.part(DataValues).steps
    relation = rel_eq(symbol, int(speculated(s, node)))
    if env.known(relation) is False:  # what was taken as likely is wrong: the next attempt knows
        if symbol not in found:
            return False
        raise ValueNeeded(*found[symbol])
    env.assume(relation, checked=True)
    return env.known(relation) is True


def assume(s: CaptureState, tensor: FakeTensor | None = None, expected: bool = True) -> None:
    """Assume that a tensor is true (or false), or what the shape environment has noted as a check."""
    node = None if tensor is None else s.recorder.node_of(tensor)
    s.part(DataValues).assumptions.append(Assumption(past_step(running_frame(s)), tensor, node, expected))


def assumed_truth(s: CaptureState, fake: FakeTensor) -> bool | None:
    """The truth value of a tensor that a jump tests, if the other side of the jump raises."""
    expected = expected_truth(running_frame(s)) if s.policy.assumes else None
    if expected is None or in_operator(running_frame(s)) or any(size != 1 for size in fake.shape):
        return None
    known = constant_truth(s.recorder, fake)
    if known is not None:
        return known
    assume(s, fake, expected)
    return expected


def finite_truth(s: CaptureState, fake: torch.Tensor) -> bool | None:
    """The truth of a question whether floats are finite: that they are is assumed, and the region checks it."""
    truth = answer_if_finite(s, fake)
    if truth is not None:
        assume(s, cast(FakeTensor, fake), truth)
    return truth


def answer_if_finite(s: CaptureState, fake: torch.Tensor) -> bool | None:
    asked = s.policy.speculate and s.policy.assumes_likely
    if not (isinstance(fake, FakeTensor) and asked and all(size == 1 for size in fake.shape)):
        return None  # a wrapper of a transform is no fake
    return truth_if_finite(s.recorder.node_of(fake))


def likely_truth(s: CaptureState, fake: torch.Tensor) -> bool | None:
    """The truth value of a tensor that is constant or speculated on, else if all floats are finite."""
    known = known_condition(s, fake)
    return finite_truth(s, fake) if known is None else known


def in_operator(frame: SymbolicFrame) -> bool:
    """Whether a control flow operator of torch is interpreted as plain Python, as its fallback in eager is not."""
    outer: object = frame
    while isinstance(outer, SymbolicFrame):
        if outer.code.co_filename == control_flow.__file__:
            return True
        outer = outer.parent
    return False


def assumed_relation(s: CaptureState, number: torch.SymInt | torch.SymFloat | torch.SymBool) -> bool | None:
    """The truth value of a number that data decide and a jump tests, if the other side of the jump raises."""
    node: SymNode = number.node
    if node.has_hint() or not s.policy.assumes or isinstance(node.value, Real):
        return None
    expected = expected_truth(running_frame(s))
    truth = compare(node.env, "ne", node.value, 0, None) if isinstance(node.value, Expr) else node.value
    assert isinstance(truth, bool | Relation | AllOf | AnyOf)
    if expected is None and s.policy.whole:
        expected = truth_in_call(s, truth)
    return None if expected is None else assume_integer(s, truth, expected)


def truth_in_call(s: CaptureState, truth: Truth) -> bool | None:
    """What a question about numbers that data decide is answered with in this call, if those data may decide."""

    def number(symbol: Symbol) -> int:
        if env.has_hint(symbol):
            return env.hint(symbol)
        node = computed_size(s.recorder, symbol)
        if node is None or not may_decide(s, node, needed=True):
            raise DataDependentValue(operation=str(symbol))
        return int(evaluate(s.recorder, node))

    env = s.recorder.env
    try:
        return truth_for(truth, number)
    except DataDependentValue:
        return None


def assume_integer(s: CaptureState, truth: Truth, expected: bool = True) -> bool | None:
    """The truth of a comparison of integers that data decide: `expected`, which the region checks, if it is open; that
    of a side of a branch, where the side is taken."""
    env = s.recorder.env
    known = known_truth(env, truth)
    if known is None and s.policy.assumes:
        if s.counters.nested and isinstance(truth, Relation):
            assume(s, relation_in_region(s, truth), expected)
            return expected
        assume_truth(env, truth if expected else invert(truth), running_frame(s).location())
        assume(s)
        return expected
    return known


def relation_in_region(s: CaptureState, relation: Relation) -> FakeTensor:
    """The truth of a relation of integers, as a tensor of the region."""
    call = partial(s.recorder.call, stack=running_frame(s).locations())
    difference = call(torch.full, [(), s.recorder.symbols.sym(relation.difference)], {"dtype": torch.int64})
    return cast(FakeTensor, call(RELATIONS[relation.kind], [difference, 0], {}))


RELATIONS = {"le": torch.le, "eq": torch.eq, "ne": torch.ne}
"""By the kind of a relation."""


def refuse_unchecked(s: CaptureState, graph: Graph) -> None:
    """Break where something was assumed if eager cannot run `graph` again, since it calls operators with unknown
    effects, or changes inputs and does not check what was assumed before that; or where the tensor of a number was
    changed after it had been read."""
    runs_once = (bool(graph.writes) or calls_opaque(graph)) and not s.policy.whole
    checks_first = s.policy.own_regions and not calls_opaque(graph)
    found = s.part(DataValues)
    for assumption in found.assumptions:
        tensor = assumption.tensor
        changed = tensor is not None and s.recorder.node_of(tensor) is not assumption.node
        if changed or (runs_once and not checks_first):
            stop = DataDependentValue(operation="an assertion on values").before(assumption.step)
            raise assumption.need or stop
    env = s.recorder.env
    late = symbols_read(all_nodes(graph)) - symbols_read(graph.nodes) if checks_first else None
    for check in env.checks if runs_once else ():
        for symbol in check.relation.free_symbols():
            unchecked = late is None or symbol in late
            if unchecked and symbol in found.steps and not isinstance(env.simplify(symbol), int):  # not speculated on
                raise ValueNeeded(*found.steps[symbol])


def calls_opaque(graph: Graph) -> bool:
    """Whether it calls an operator with unknown effects. Those of one that draws from torch's own random generator are
    known: the generator is put back."""
    return any(node.op.name == "opaque" and not only_draws(str(node.attrs["target"])) for node in all_nodes(graph))


def only_draws(target: str) -> bool:
    """Or reads a clock."""
    return target.startswith(("aten.", NAMESPACE)) and is_random(target) and not written_arguments(target)


def refuse_changed(s: CaptureState, number: DataNumber) -> None:
    """Break where a number was read if its tensor was changed afterwards."""
    fake = number.tensor.torch_arg(s)
    assert isinstance(fake, FakeTensor)
    if number.dim is None and s.recorder.node_of(fake) is not number.node:
        raise DataDependentValue(operation="Tensor.item").before(number.step)


def is_checked(s: CaptureState) -> bool:
    """Whether the region may find that what was assumed does not hold."""
    return s.policy.speculate and bool(s.part(DataValues).assumptions or s.recorder.env.checks)


STRAIGHT = ("LOAD_", "BUILD_", "FORMAT_", "BINARY_", "UNARY_", "COMPARE_", "CONTAINS_", "IS_OP", "CALL", "KW_NAMES",
            "PUSH_NULL", "POP_TOP", "COPY", "SWAP", "LIST_", "DICT_", "CONVERT_", "MAKE_FUNCTION", "NOP", "STORE_FAST",
            "IMPORT_", "PRECALL", "SET_FUNCTION_ATTRIBUTE")  # fmt: skip
"""Beginnings of the names of instructions that neither jump nor change anything outside of the frame."""
LONGEST_RAISE = 96


def surely_raises(frame: SymbolicFrame, start: int) -> bool:
    """Whether the instructions from `start` end in a `raise`, whichever way their forward jumps go."""
    handlers = frame.decoded.handlers
    waiting, seen = [start], set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if at >= len(frame.decoded) or len(seen) > LONGEST_RAISE:
            return False
        instruction = frame.decoded.instruction(at)
        name = instruction.name
        if name == "RAISE_VARARGS":
            if handlers[at] is not None:
                return False
        elif name == "JUMP" and instruction.arg > at:
            waiting.append(instruction.arg)
        elif name.startswith(("POP_JUMP_IF_", "JUMP_IF_")) and instruction.arg > at:
            waiting += [at + 1, instruction.arg]
        elif name.startswith(STRAIGHT):
            waiting.append(at + 1)
        else:
            return False
    return True


def expected_truth(frame: SymbolicFrame) -> bool | None:
    """For a conditional jump one of whose sides raises: the truth value of the other side. None: neither, or both."""
    return raises_at(frame, frame.at)


def raises_at(frame: SymbolicFrame, at: int) -> bool | None:
    """`expected_truth` of the instruction `at`."""
    instruction = frame.decoded.instruction(at)
    when = JUMPS.get(instruction.name)
    if when is None:
        return None
    jumping, falling = surely_raises(frame, instruction.arg), surely_raises(frame, at + 1)
    return None if jumping == falling else (not when if jumping else when)


JUMPS: Mapping[str, bool] = {"POP_JUMP_IF_TRUE": True, "POP_JUMP_IF_FALSE": False}


def conditions(s: CaptureState) -> list[tuple[FakeTensor, bool]]:
    """What the transformed code checks on results of the region, and what they must be.

    A region that changes inputs checks them itself, before it does, and so does a whole program: they become checks
    of its graph.
    """
    found = [assumption for assumption in s.part(DataValues).assumptions if assumption.tensor is not None]
    if not s.policy.whole and not (s.policy.own_regions and changes_inputs(s.recorder.inputs)):
        return [(assumption.tensor, assumption.expected) for assumption in found if assumption.tensor is not None]
    for decided in s.part(Speculations).assumed.values():
        check(s, decided.node, decided.expected, decided.location)
    for assumption in found:
        check(s, s.recorder.node_of(assumption.tensor), assumption.expected, assumption.step.location())  # type: ignore[arg-type]
    return []


def check(s: CaptureState, node: Node, expected: bool, location: Location) -> None:
    """Let the graph fail where the truth of `node`, of one element, is not `expected`."""
    emit = s.recorder.emit
    node = emit.convert(node, torch.bool)
    node = emit.node("reshape", node, sizes=()) if node.tensor.rank else node
    node = node if expected else emit.pointwise("logical_not", node)
    emit.node("assert", node, message=f"{ASSUMED} at {location.text()}")
