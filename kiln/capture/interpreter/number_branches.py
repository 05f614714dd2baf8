"""Both sides of a jump on a number of the caller: what they leave is computed in front of the region.

    if self.epoch % 30 == 0:           lr = if_zero(epoch % 30, lr * 0.1, lr)
        self.lr *= 0.1          =>     self.lr = lr

A guard on such a condition would cost a variant for each way through a schedule of learning rates, a warm-up or a
counter. The sides may change objects and call functions, but leave nothing else that differs than numbers and truths,
and call nothing of torch: a variant that computes only what its side needs is worth a compile then. Where sides cannot
be joined, the condition is guarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast, final

from kiln.capture.bytecode.loops import ends_loop
from kiln.capture.interpreter.breaks import AS_CONSTANT
from kiln.capture.interpreter.changed_numbers import have_many_values
from kiln.capture.interpreter.computed_numbers import value_of_number
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.data_values import GUARDED, ValueNeeded, past_step
from kiln.capture.interpreter.frame import SymbolicFrame, read_variables
from kiln.capture.interpreter.if_conversion import AtJump, SideValues, interpreted_side, lasting, leave, meetings_of
from kiln.capture.interpreter.joined_values import Differs, Joining, equal_constants
from kiln.capture.interpreter.nested_calls import all_values, effects_so_far, reachable
from kiln.capture.interpreter.side_changes import met
from kiln.capture.interpreter.speculation import Number, Speculations
from kiln.capture.interpreter.variables.mapping import MOST_COMPARED, Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.sets import Set
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Overrides
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.trace.log import Target
from kiln.graph.trace.nested_graphs import NotNested
from kiln.runtime.guards.constant import is_constant
from kiln.support.records import dataclass
from kiln.symbolic.comparisons import compare
from kiln.symbolic.env import ConditionalNumber
from kiln.symbolic.expr import Symbol
from kiln.symbolic.node import SymNode, to_sym
from kiln.symbolic.relation import Relation
from kiln.symbolic.values import (
    AllOf,
    AnyOf,
    Truth,
    all_of,
    any_of,
    invert,
    known_truth,
    truth_as_number,
)
from kiln.tensor.spec import ScalarSpec

MOST_MEETINGS = 2
MOST_NESTED = 6
"""Each level interprets the sides within it once for each of both sides and each meeting."""

MOST_FAILURES = 8
"""After so many attempts that began the capture again, truths are guarded."""


@final
@dataclass
class NumberBranches:
    """The jumps of one capture both of whose sides are interpreted now."""

    depth: int = 0


def take_both_numbers(frame: SymbolicFrame, condition: Symbolic, targets: tuple[int, int]) -> bool:
    """Go on where the sides of a jump meet, with numbers computed in front; False: its truth has to be guarded.

    `targets`: where the frame goes on if the condition is true, and if it is false.

    Raises:
        ValueNeeded: if it fails and left what cannot be taken back; the next attempt guards the truth.
    """
    s, part = frame.state, frame.state.part(NumberBranches)
    here, behind, saved = (frame.code, frame.at), frame.ip, (frame.saved, frame.consumed)
    if here in s.needed or list(s.needed.values()).count(GUARDED) >= MOST_FAILURES:
        return False
    if s.function_modes or part.depth >= MOST_NESTED or not s.policy.speculate:
        return False
    truth = open_truth(s, condition)
    if truth is None:
        return False
    under = s.part(Speculations).under
    if truth in under or invert(truth) in under:
        frame.ip = targets[0 if truth in under else 1]
        return True
    read_variables(frame)
    entry = AtJump(dict(frame.locals), list(frame.stack), list(frame.handled))
    meetings = meetings_of(frame, MOST_MEETINGS, frame.parent is not None and not frame.is_generator)
    before = progress(s)
    part.depth += 1
    try:
        with without_torch(s):
            for meeting in meetings:
                sides = [
                    interpreted_side(frame, entry, assuming(s, holds), target, meeting)
                    for holds, target in zip((truth, invert(truth)), targets, strict=True)
                ]
                try:
                    values = joined(frame, entry, truth, sides, meeting == len(frame.decoded))
                except Differs:
                    continue
                leave(frame, entry, meeting, sides, values)
                return True
    except (NotNested, TraceBreak, ConditionalNumber):
        pass
    finally:
        part.depth -= 1
    if progress(s) != before:
        raise ValueNeeded(here, past_step(frame), GUARDED)
    entry.restore(frame, behind)
    frame.at = here[1]
    frame.saved, frame.consumed = saved
    return False


def refuse_counting(frame: SymbolicFrame, condition: Symbolic) -> None:
    """Break where a number of the caller decides if a loop is left, and had another value in each of several compiles:
    the body is compiled once then, and serves all turns. So does the resume function behind such a break."""
    s = frame.state
    truth = open_truth(s, condition)
    if truth is None or s.policy.whole:
        return
    broken_here = frame.is_resumed and frame.begin in (frame.at + 1, frame.decoded.instruction(frame.at).arg)
    if (broken_here or have_many_values(s, symbols_of(truth))) and ends_loop(frame.decoded, frame.at):
        raise condition.unsupported(AS_CONSTANT, "it decides if a loop is left, and differs from call to call")


def progress(s: CaptureState) -> tuple[object, ...]:
    """What an attempt that fails may not have added to: guards of what one side alone reads, too."""
    return effects_so_far(s), len(s.recorder.calls), len(s.guards)


def open_truth(s: CaptureState, condition: Symbolic) -> Truth | None:
    """The truth of a number, if numbers of the caller decide it and it is not known."""
    node: SymNode = condition.node.node
    if condition.python_type() is float or not node.has_hint():
        return None
    truth = node._truth()
    if isinstance(truth, bool) or known_truth(node.env, truth) is not None:
        return None
    return truth if symbols_of(truth) <= caller_numbers(s) else None


def caller_numbers(s: CaptureState) -> set[object]:
    return {record.spec.value for record in s.recorder.inputs if isinstance(record.spec, ScalarSpec)}


def symbols_of(truth: Truth) -> frozenset[Symbol]:
    if isinstance(truth, AllOf | AnyOf):
        return frozenset().union(*map(symbols_of, truth.parts))
    return truth.free_symbols() if isinstance(truth, Relation) else frozenset()


@contextmanager
def assuming(s: CaptureState, truth: Truth) -> Iterator[None]:
    """What is assumed and computed in a side is asked and computed where it is taken."""
    found, env = s.part(Speculations), s.recorder.env
    outer, found.under = found.under, (*found.under, truth)
    env.in_side = True
    try:
        yield
    finally:
        found.under, env.in_side = outer, bool(outer)


@contextmanager
def without_torch(s: CaptureState) -> Iterator[None]:
    """Raise NotNested where a side calls torch."""

    def refuse(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value | None:
        raise NotNested("it calls torch")

    overrides = s.part(Overrides)
    outer, overrides.call = overrides.call, refuse
    try:
        yield
    finally:
        overrides.call = outer


def joined(
    frame: SymbolicFrame, entry: AtJump, truth: Truth, sides: list[SideValues], returns: bool
) -> list[Value | None]:
    """The values of both sides as one, and the objects that they changed.

    Raises:
        Differs: if the values cannot be joined where the sides meet.
    """
    s = frame.state
    left, right = sides
    entry.restore(frame, frame.ip)
    frame.saved = frame.stack.copy()  # it holds values of the sides
    if left.holds or right.holds or left.modes or right.modes:
        raise NotNested("it assumes something of tensors, or changes a mode")
    changes = [side.changes for side in sides]
    if any(found.messages for found in changes):
        raise NotNested("it writes a message")
    known = reachable(all_values(s))
    meetings = lasting(frame, sides, met(s, changes, known, (set(), set())), returns)
    joining = Joining(known, (set(), set()), set(), choose_number=partial(chosen, s, truth))
    values = [left.values, right.values]
    joining.note_sides(s, values, meetings, exact=True)
    if joining.chooses or joining.pairs:
        raise NotNested("it leaves other values than numbers")
    return joining.build_sides(s, values, meetings, changes)


def chosen(s: CaptureState, truth: Truth, a: Value, b: Value) -> Value | None:
    """`a` where `truth` holds, else `b`: numbers of one type, or truths."""
    values = [number_of(s, value) for value in (a, b)]
    if None in values or a.python_type() is not b.python_type():
        return None
    env = s.recorder.env
    if a.python_type() is bool:
        left, right = [value if isinstance(value, bool | Relation | AllOf | AnyOf) else None for value in values]
        if left is None or right is None:
            return None
        joint = any_of(all_of(truth, left), all_of(invert(truth), right))
        made: Truth | Number | None = joint
        if not env.conditional.isdisjoint(symbols_of(joint)):
            holds = cast(Number | None, value_of_number(s, "if_zero", truth_as_number(joint), 0, 1))
            made = None if holds is None else compare(env, "ne", holds, 0, None)
    else:
        made = number_by(s, truth, *cast(list[Number], values))
    return None if made is None else s.wrap(to_sym(made, env), None)


def number_of(s: CaptureState, value: Value) -> object:
    """The number or truth that a value is; None: it is something else, or data decide it."""
    if isinstance(value, Symbolic):
        return value.node.node.value if value.node.node.has_hint() else None
    return value.constant(s) if value.is_constant and value.python_type() in (bool, int, float) else None


def number_by(s: CaptureState, truth: Truth, left: Number, right: Number) -> Number | None:
    """A number that is computed in front of the region; None if it cannot be."""
    if isinstance(truth, bool):
        return left if truth else right
    if isinstance(truth, AllOf | AnyOf) or truth.kind == "ne":
        test = truth.difference if isinstance(truth, Relation) else truth_as_number(truth)
        return cast(Number | None, value_of_number(s, "if_zero", test, right, left))
    row = "if_zero" if truth.kind == "eq" else "if_not_positive"
    return cast(Number | None, value_of_number(s, row, truth.difference, left, right))


# Items that a number of the caller chooses from constants.


def contained(s: CaptureState, container: Value, item: Value) -> Value | None:
    """`item in container`, which a jump may take both sides of; None: no number of the caller is looked for."""
    among = equalities(s, container, item)
    return None if among is None else s.wrap(to_sym(any_of(*among.values()), s.recorder.env), None)


def chosen_item(s: CaptureState, container: Value, key: Value) -> Value | None:
    """`container[key]` in the side of a branch where it is known to be there; None: it is not, or no number."""
    among = equalities(s, container, key)
    if not among or not s.part(Speculations).under or any_of(*among.values()) not in s.part(Speculations).under:
        return None
    first, *rest = [(truth, container.get_item(s, s.const(token))) for token, truth in among.items()]
    result: Value | None = first[1]
    for truth, item in rest:
        if result is not None and not equal_constants(s, item, result):
            result = chosen(s, truth, item, result)
    return result


def equalities(s: CaptureState, container: Value, item: Value) -> dict[int | float, Truth] | None:
    """By number in a container of constants, that an integer of the caller is equal to it."""
    native = container.native if isinstance(container, Object) and container.native is not None else container
    if not (isinstance(item, Symbolic) and item.python_type() is int and isinstance(native, Dict | Set | List | Tuple)):
        return None
    if isinstance(native, Dict) and native.counted:
        return None
    tokens = [found.real() for found in native.items(s)] if isinstance(native, List | Tuple) else list(native.items(s))
    numbers = [token for token in tokens if isinstance(token, int | float) and type(token) is not bool]
    if len(numbers) > MOST_COMPARED or not all(map(is_constant, tokens)) or not item.node.node.has_hint():
        return None
    for value in native.items(s) if isinstance(native, List | Tuple) else ():
        value.constant(s)  # guarded: it may come from outside
    found = {number: compare(s.recorder.env, "eq", item.node.node.value, number, None) for number in numbers}
    truths = {number: truth for number, truth in found.items() if truth is not False}
    numbers_only = truths and all(isinstance(truth, Relation) for truth in truths.values())
    return truths if numbers_only and symbols_of(any_of(*truths.values())) <= caller_numbers(s) else None  # type: ignore[return-value]
