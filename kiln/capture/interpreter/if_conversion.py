"""If-conversion: both sides of a jump on the truth of a tensor, as one `cond` in the graph.

    if gate < 0.1:             gate = rand([])
        y = x                  y = cond(gate < 0.1, x, true=@0, false=@1)       @0 = x, @1 = layer(x)
    else:                 =>   return y + 1
        y = layer(x)
    return y + 1

Each side is interpreted up to where the sides meet. What they leave there, in local variables and on the stack, is
joined: equal values stay, tensors become results of the `cond`. Where other values differ, the sides go on to the next
instruction at which they meet; at last, or where what lies between cannot be nested, they are `Choice`s. Sides that
return meet behind the last instruction: the rest of the function is in one of them, and in the outermost function what
they return is chosen behind the region. Sides that cannot be nested graphs break the graph, like any test of a tensor;
of branches within one another the outermost.

Changes of Python objects are taken back behind each side (`side_changes.py`), and joined (`joined_values.py`).

Inputs that a side changes in place, such as running statistics, are results of the `cond` too, written back behind it.
In eager a side may leave a tensor that existed before; a result of `cond` is a copy of it (`visible_copies.py`). Where
one side alone makes a result of the region require gradients, the graph is broken, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field, replace
from functools import partial
from itertools import product
from typing import cast, final

import torch

from kiln.capture.bytecode.liveness import live_locals
from kiln.capture.bytecode.postdominators import RETURNS, meeting_points
from kiln.capture.interpreter.branch_versions import (
    Beyond,
    SideVersions,
    count_once,
    counts_of,
    differences,
    versions_counted,
    versions_of_inputs,
)
from kiln.capture.interpreter.builtins.torch_functions import SETTERS, set_mode
from kiln.capture.interpreter.copied_tensors import made_by, require_no_views, written_to_copies
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import (
    CHOOSING,
    COPY_CHOSEN,
    GUARDED,
    JOINED_FIRST,
    LATER,
    LENGTH_CHANGED,
    DataValues,
    ValueNeeded,
    answer_if_finite,
    constants_decide,
    expected_truth,
    past_step,
    relation_in_region,
)
from kiln.capture.interpreter.frame import SymbolicFrame, read_variables, run_to, running_frame
from kiln.capture.interpreter.joined_values import (
    Differs,
    Joining,
    Pair,
    hold_formula,
    note_messages,
    read_by,
    unlike,
    write_messages,
)
from kiln.capture.interpreter.nested_calls import (
    Calls,
    Modes,
    all_values,
    captured_by,
    changed_modes,
    frame_values,
    is_single,
    mode_values,
    modes_before,
    operator_of,
    reachable,
    record,
    taken_from_log,
    without_progress,
)
from kiln.capture.interpreter.side_assumptions import Held, assumed_behind, assumptions_taken
from kiln.capture.interpreter.side_changes import Meeting, SideChanges, changes_taken_back, messages_since, met
from kiln.capture.interpreter.variables.choice import Choice, ChosenResults
from kiln.capture.interpreter.variables.counted_range import may_be_counted
from kiln.capture.interpreter.variables.function import Cell
from kiln.capture.interpreter.variables.iterators import ITERATORS, remaining
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import RegionInputs, Tensor, from_torch
from kiln.capture.interpreter.visible_copies import choose_behind, is_choosable, note_copy
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.trace.autograd_edges import edge_of, edges_behind, leaf_of
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow
from kiln.graph.trace.nested_graphs import NotNested
from kiln.graph.trace.storage_view import root_of
from kiln.runtime.control_flow import run_branch
from kiln.support.records import dataclass
from kiln.symbolic import Expr
from kiln.symbolic.comparisons import compare
from kiln.symbolic.node import SymNode
from kiln.symbolic.relation import Relation
from kiln.symbolic.values import Real, known_truth

MOST_MEETINGS = 3
"""At so many places it is tried to join the sides."""
MOST_NESTED = 8
"""So many branches are within one another at most, and so many turns a loop makes in a side that its jump leaves."""
MOST_REPEATED = 2
"""The rest of the function is repeated in each side at so many levels: each doubles it."""
TOO_LONG = "the branches in it are too long"
MOST_CALLS = 500
"""Torch calls in front of a branch in a side: a loop over a model is not unrolled before it is known to be too long."""
MOST_REPLAYED = 4000
"""Torch calls of branches within others: each of these records them again."""
MakeItem = Callable[[CaptureState], Value]


@final
@dataclass
class Conversions:
    """The jumps of one capture that are being converted."""

    active: set[object] = field(default_factory=set)
    first: int = 0
    """The number of torch calls in front of the outermost branch."""
    replayed: int = 0
    """The torch calls of branches within others."""
    truths: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Version and truth of the conditions of the sides that are interpreted, by the `id` of the tensor."""
    varying: list[tuple[FakeTensor, ValueNeeded]] = field(default_factory=list)
    """Results that require gradients after one side alone."""


@final
@dataclass(frozen=True, eq=False)
class AtJump:
    """What the frame held at the jump."""

    locals: dict[str, Value]
    stack: list[Value | None]
    handled: list[Value]

    def restore(self, frame: SymbolicFrame, ip: int) -> None:
        frame.locals.clear()
        frame.locals.update(self.locals)
        frame.stack[:] = self.stack
        frame.handled[:] = self.handled
        frame.kwnames = ()
        frame.running, frame.finished, frame.delegates = True, False, False  # a side may have returned or yielded
        frame.ip = ip


@final
@dataclass(frozen=True, eq=False)
class SideValues:
    """One side: its torch calls, and what it leaves where the sides meet."""

    calls: Calls
    values: list[Value | None]
    end: int
    """The instruction in front of which it stopped."""
    changed: list[FakeTensor]
    """The inputs of the region that it changes in place, such as running statistics."""
    changes: SideChanges
    """The changes of Python objects."""
    modes: Modes
    """Modes of torch that it leaves with other values."""
    holds: Held | None
    """What it assumes of values."""
    versions: SideVersions


def take_both_sides(
    frame: SymbolicFrame,
    condition: Value,
    targets: tuple[int, int],
    pushed: MakeItem | None = None,
    is_turn: bool = True,
) -> bool:
    """Go on where the sides of a jump meet, with their results; False if there are reasons not to try.

    `targets`: where the frame goes on if the condition is true, and if it is false. `pushed` makes what the
    true side begins with on the stack; if that is the item of a turn, the sides meet at the head of the loop.

    Raises:
        ValueNeeded: if it fails; the next attempt breaks the graph.
    """
    s, here = frame.state, (frame.code, frame.at)
    need = s.needed.get(here, GUARDED)
    if need not in (GUARDED, *CHOOSING, *LATER) or s.function_modes:
        return False
    if not isinstance(condition, Tensor) or not is_single(condition):
        return False
    found = s.part(Conversions)
    known = found.truths.get(id(condition.fake))
    if known is not None and known[0] == condition.fake.storage_view.storage.version:
        frame.ip = targets[0 if known[1] else 1]
        return True
    option = s.policy.control_flow
    if option == "python" or (option == "cpu" and condition.fake.device.type != "cpu"):
        return False
    meetings = meetings_of(frame, MOST_MEETINGS, option == "graph") if pushed is None or not is_turn else [frame.at]
    may_be_finite = answer_if_finite(s, condition.fake) is not None
    if not meetings and (may_be_finite and option != "graph"):
        return False
    active = found.active
    later = need in LATER and pushed is None and len(active) < MOST_REPEATED and ends_in_return(frame)
    if need in LATER and not later and need != LENGTH_CHANGED:  # the graph breaks where the list is read
        return False
    if later or not meetings:
        meetings = [len(frame.decoded)]
    elif need == JOINED_FIRST:
        meetings = meetings[:1]
    key = frame.number, frame.at, *[remaining(s, item) for item in frame.stack if isinstance(item, ITERATORS)]
    failed = ValueNeeded(here, past_step(frame), "they leave values that no tensor is, and that differ")
    if key in active or len(active) == MOST_NESTED:
        raise NotNested("its sides hold themselves, or too many branches")
    if active and len(s.recorder.calls) - found.first > MOST_CALLS:
        raise NotNested(TOO_LONG)
    found.first = found.first if active else len(s.recorder.calls)
    active.add(key)
    meeting = meetings[0]
    read_variables(frame)
    entry = AtJump(dict(frame.locals), list(frame.stack), list(frame.handled))
    began, versioned = versions_of_inputs(s), set(s.recorder.versioned)
    try:
        for exact, meeting in product((True, False)[len(meetings) == 1 :], meetings):
            sides = [
                interpreted_side(
                    *(frame, entry, truth_known(s, condition.fake, truth)),
                    *(target, meeting, pushed if truth else None),
                )
                for truth, target in zip((True, False), targets, strict=True)
            ]
            note_replayed(s, sides)
            try:
                values = joined(frame, entry, condition, sides, failed, exact, meeting)
            except Differs:
                continue
            count_once(s, began, versioned, [side.versions for side in sides])
            leave(frame, entry, meeting, sides, values)
            return True
    except (NotNested, TraceBreak) as problem:
        failed.reason = problem.reason if isinstance(problem, TraceBreak) else str(problem)
        if meeting != meetings[0]:
            failed.reason = JOINED_FIRST
            raise failed from problem
    finally:
        active.discard(key)
    if active and not may_be_finite:
        raise NotNested(failed.reason)  # the side that it is in cannot be nested either
    raise failed


def note_replayed(s: CaptureState, sides: Sequence[SideValues]) -> None:
    found = s.part(Conversions)
    if len(found.active) > 1:
        found.replayed += sum(number_of_calls(side.calls) for side in sides)
    if found.replayed > MOST_REPLAYED:
        raise NotNested(TOO_LONG)


def number_of_calls(calls: Calls) -> int:
    logs = [log for call in calls if isinstance(call.target, ControlFlow) for log in call.target.logs]
    return len(calls) + sum(number_of_calls(log.calls) for log in logs)


def condition_of(frame: SymbolicFrame, value: Symbolic) -> Value:
    """What a jump tests as a tensor: a comparison of numbers that data decide becomes one, others stay as they are."""
    s = frame.state
    need = s.needed.get((frame.code, frame.at), JOINED_FIRST)
    if need not in (*CHOOSING, LENGTH_CHANGED) or expected_truth(frame) is not None:
        return value
    node: SymNode = value.node.node
    number = node.value
    if node.has_hint() or isinstance(number, Real):
        return value
    if need == LENGTH_CHANGED and isinstance(number, Expr | Relation) and constants_decide(s, number):
        return value
    relation = compare(node.env, "ne", number, 0, None) if isinstance(number, Expr) else number
    if not isinstance(relation, Relation) or known_truth(node.env, relation) is not None:
        return value
    return from_torch(s, relation_in_region(s, relation))


def meetings_of(frame: SymbolicFrame, most: int, at_return: bool) -> list[int]:
    """Where it is tried to join the sides; with `at_return` behind the last instruction, too: where they return.

    Later than where they meet, the rest of the function would be in each of them.
    """
    found = meeting_points(frame.decoded, frame.at, most)
    if found and only_returns(frame, found[0]) and leaves_region(frame):
        return [len(frame.decoded)]
    return [*found, len(frame.decoded)] if at_return and len(found) < most and ends_in_return(frame) else found


def ends_in_return(frame: SymbolicFrame) -> bool:
    """Whether the sides meet nowhere, or not at the head of a loop that goes on."""
    found = meeting_points(frame.decoded, frame.at, len(frame.decoded))
    return not found or (found[-1] > frame.at and frame.decoded.instruction(found[-1]).name != "FOR_ITER")


def leaves_region(frame: SymbolicFrame) -> bool:
    """Whether what a frame returns is the result of the compiled function: its callers return it as it is."""
    while isinstance(frame.parent, SymbolicFrame):
        after = frame.parent.decoded.instruction(frame.parent.ip).name
        if frame.is_generator or not frame.continuation.keeps_result or after != "RETURN_VALUE":
            return False
        frame = frame.parent
    return True


def only_returns(frame: SymbolicFrame, at: int) -> bool:
    """Whether the code from `at` on returns variables, or a new container with them."""
    instruction = frame.decoded.instruction
    while instruction(at).name.startswith(
        ("LOAD_FAST", "LOAD_CONST", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST")
    ):
        at += 1
    return instruction(at).name in RETURNS


def interpreted_side(
    frame: SymbolicFrame,
    entry: AtJump,
    knowing: AbstractContextManager[None],
    target: int,
    meeting: int,
    pushed: MakeItem | None = None,
) -> SideValues:
    """The side that begins at `target`, with what is known in it. Raises NotNested."""
    s = frame.state
    entry.restore(frame, target)
    before = contents_of_inputs(s)
    held = [item for item in (*entry.locals.values(), *entry.stack) if item is not None and not is_short(s, item)]
    done, modes, versions = list[SideChanges](), mode_values(s), list[SideVersions]()
    with knowing, versions_counted(s, versions):
        run = partial(run_side, frame, meeting, held, pushed)
        calls, left = taken_from_log(s, python_taken_back(s, done), run)
    if left[0]:  # the branch is recorded in the modes that it leaves
        calls = (*taken_from_log(s, nullcontext(), partial(log_modes, s, modes_before(s, left[0], modes)))[0], *calls)
    if frame.handled != entry.handled:
        raise NotNested("it leaves an exception handler")
    end, values = frame.ip, [returned(frame)] if meeting == len(frame.decoded) else None
    if values is None:
        end, values = meeting, [*[frame.locals.get(name) for name in live_names(frame, meeting)], *frame.stack]
    return SideValues(calls, values, end, restored_inputs(s, before), done[0], *left, versions[0])


def is_short(s: CaptureState, value: Value) -> bool:
    """Whether the side may take the items of an iterator from before it."""
    left = remaining(s, value)
    return left is not None and left <= MOST_NESTED and not may_be_counted(s, value)


def run_side(
    frame: SymbolicFrame, meeting: int, held: Sequence[Value | None], pushed: MakeItem | None
) -> tuple[Modes, Held | None]:
    """What it leaves besides values."""
    s = frame.state
    modes, data, first = mode_values(s), s.part(DataValues), len(s.recorder.calls)
    assumptions, told_before = len(data.assumptions), s.effects.snapshot()
    for name, value in frame.locals.items():
        frame.locals[name] = known_side(s, value) or value
    frame.stack[:] = [known_side(s, value) for value in frame.stack]
    if pushed is not None:
        frame.push(pushed(s))
    run_to(frame, meeting, held)
    read = read_by(s.recorder.calls[first:])
    told = [value for message in messages_since(s, told_before) for value in message.values()] if read else []
    for left_value in [*frame.locals.values(), *frame.stack, *told] if read else ():
        hold_formula(s, left_value, read)
    holds, left = assumptions_taken(s, assumptions), changed_modes(s, modes)
    for (setter, scope), before in modes_before(s, left, modes).items():
        setter(*scope, before)
    return left, holds


def log_modes(s: CaptureState, modes: Modes) -> None:
    for (setter, scope), value in modes.items():
        s.recorder.set_state(SETTERS[setter][0], (*scope, value) if scope else value)


def known_side(s: CaptureState, value: Value | None) -> Value | None:
    """Of a choice whose condition a side knows, the value that it is there."""
    while isinstance(value, Choice) and isinstance(value.condition, Tensor):
        known = s.part(Conversions).truths.get(id(value.condition.fake))
        chosen = None if known is None else value.left if known[1] else value.right
        if chosen is None:
            break
        value = chosen
    return value


@contextmanager
def truth_known(s: CaptureState, condition: FakeTensor, truth: bool) -> Iterator[None]:
    """A side may test the same condition again."""
    truths = s.part(Conversions).truths
    before = truths.get(id(condition))
    truths[id(condition)] = condition.storage_view.storage.version, truth
    yield
    if before is None:
        del truths[id(condition)]


@contextmanager
def python_taken_back(s: CaptureState, done: list[SideChanges]) -> Iterator[None]:
    with without_progress(s), changes_taken_back(s, done), written_to_copies(s):
        yield


def returned(frame: SymbolicFrame) -> Value | None:
    """What the return in front of the frame gives."""
    instruction = frame.decoded.instruction(frame.ip)
    return frame.stack[-1] if instruction.name == "RETURN_VALUE" else frame.state.const(instruction.arg)


Contents = dict[int, tuple[int, Node]]
"""Version and value of the storages of inputs, by `id`."""


def contents_of_inputs(s: CaptureState) -> Contents:
    found: Contents = {}
    for given in s.recorder.inputs:
        if type(given.fake) is FakeTensor:
            storage = given.fake.storage_view.storage
            found[id(storage)] = storage.version, root_of(storage).node
    return found


def restored_inputs(s: CaptureState, before: Contents) -> list[FakeTensor]:
    """The inputs that a side has changed in place; they have their contents of before again."""
    changed: list[FakeTensor] = []
    for given in s.recorder.inputs:
        if type(given.fake) is not FakeTensor:
            continue
        storage = given.fake.storage_view.storage
        version, value = before.get(id(storage), (0, given.node))
        if storage.version != version:
            changed.append(given.fake)
            root = root_of(storage)
            storage.version, root.version, root.node = version, version, value
    return changed


def live_names(frame: SymbolicFrame, at: int) -> list[str]:
    names = live_locals(frame.decoded)[at]
    return [name for name in frame.code.co_varnames if name in names and name not in frame.cells]


def leave(
    frame: SymbolicFrame, entry: AtJump, meeting: int, sides: Sequence[SideValues], values: Sequence[Value | None]
) -> None:
    """Go on where the sides meet, with the joined values."""
    if meeting == len(frame.decoded):
        ends = [side.end for side in sides]
        taking = [end for end in ends if frame.decoded.instruction(end).name == "RETURN_VALUE"]
        entry.restore(frame, taking[0] if taking else ends[0])
        frame.stack[:] = values if taking else []
    else:
        put_values(frame, entry, meeting, values)


def put_values(frame: SymbolicFrame, entry: AtJump, meeting: int, values: Sequence[Value | None]) -> None:
    names = live_names(frame, meeting)
    entry.restore(frame, meeting)
    for name, value in zip(names, values, strict=False):
        frame.locals.pop(name, None)
        if value is not None:
            frame.locals[name] = value
    frame.stack[:] = values[len(names) :]


# What both sides leave.


def joined(
    frame: SymbolicFrame,
    entry: AtJump,
    condition: Tensor,
    sides: Sequence[SideValues],
    failed: ValueNeeded,
    exact: bool,
    meeting: int,
) -> list[Value | None]:
    """The values of both sides as one, and the objects that they changed. `exact`: no value is a choice.

    Raises:
        Differs: if the values cannot be joined where the sides meet.
    """
    s = frame.state
    left, right = sides
    entry.restore(frame, frame.ip)
    frame.saved = frame.stack.copy()  # it holds values of the sides
    if left.modes != right.modes:
        raise NotNested("it leaves a mode of torch with another value")
    for (setter, scope), value in left.modes.items():
        set_mode(s, setter, *scope, value)
    returns = meeting == len(frame.decoded)
    exits = returns and leaves_region(frame) and not s.policy.whole
    changes = [side.changes for side in sides]
    known = reachable(all_values(s)) if exits or any(found.changes for found in changes) else set()
    made = made_by(left.calls), made_by(right.calls)
    meetings = lasting(frame, sides, met(s, changes, known, made), returns)
    written = [meeting for meeting in meetings if isinstance(meeting.change.value, Tensor)]
    require_no_views(s, [meeting.change for meeting in written])
    joining = Joining(known, made, {id(meeting.change.value) for meeting in written})
    joining.exits = exits
    joining.read = read_by(left.calls), read_by(right.calls)
    values = [left.values, right.values]
    joining.note_sides(s, values, meetings, exact)
    note_messages(s, joining, changes)
    if joining.chooses:
        joining.condition, joining.need = kept_condition(s, condition), failed
    own = {id(state) for meeting in written for state in (meeting.left, meeting.right)}
    sides, held = with_assumptions(s, sides)
    beyond = differences(s, [side.versions for side in sides])
    sides, counts = with_counts(s, sides, beyond, condition.fake.device)
    results = joined_tensors(s, condition, sides, [*joining.all_pairs(), *held, *counts], failed, own)
    found = [results.pop() for _ in beyond]
    if held:
        assumed_behind(s, results.pop(), next(side.holds[1] for side in sides if side.holds is not None))
    joining.take_results(results)
    done = joining.build_sides(s, values, meetings, changes)
    write_messages(s, joining, changes)
    for counted in beyond:
        counted.note(s, cast(Tensor, found.pop()), len(s.part(Conversions).active) == 1)
    return done


def lasting(frame: SymbolicFrame, sides: Sequence[SideValues], meetings: list[Meeting], returns: bool) -> list[Meeting]:
    """Without what is gone where the sides meet: iterators of loops that are left; of a frame that returns, its cells
    and the containers that it has made."""
    s, kinds = frame.state, (*ITERATORS, Cell, List, Dict) if returns else ITERATORS
    passing = {id(found) for found in meetings if isinstance(found.change.value, kinds) and not is_given(found)}
    if not passing:
        return meetings
    own = [*sides[0].values, *sides[1].values, *(() if returns else frame.cells.values())]
    states = [state for found in meetings if id(found) not in passing for state in (found.left, found.right)]
    held = reachable([*frame_values(s, frame.parent), *own, *states, *s.effects])
    return [found for found in meetings if id(found) not in passing or id(found.change.value) in held]


def is_given(meeting: Meeting) -> bool:
    """Whether what is changed is a container from outside."""
    value = meeting.change.value
    return isinstance(value, List | Dict) and (value.source is not None or value.original is not None)


def with_assumptions(s: CaptureState, sides: Sequence[SideValues]) -> tuple[list[SideValues], list[Pair]]:
    """What the sides assume as one more result; a side that assumes nothing gives True."""
    like = next((side.holds[0].fake for side in sides if side.holds is not None), None)
    if like is None:
        return list(sides), []
    done, pair = list[SideValues](), list[Tensor]()
    kwargs = {"dtype": torch.bool, "device": like.device}
    for side in sides:
        if side.holds is None:
            more, made = taken_from_log(s, nullcontext(), lambda: s.recorder.call(torch.full, [(), True], kwargs))
            side = replace(side, calls=(*side.calls, *more))
            pair.append(from_torch(s, made))  # type: ignore[arg-type]
        else:
            pair.append(side.holds[0])
        done.append(side)
    return done, [(pair[0], pair[1])]


def with_counts(
    s: CaptureState, sides: Sequence[SideValues], beyond: Sequence[Beyond], device: torch.device
) -> tuple[list[SideValues], list[Pair]]:
    """How often the sides change inputs as more results, where one does more often than the other."""
    done, made = list[SideValues](), list[list[Value]]()
    for number, side in enumerate(sides):
        more, counts = taken_from_log(s, nullcontext(), partial(counts_of, s, beyond, number, device))
        done.append(replace(side, calls=(*side.calls, *more)))
        made.append(counts)
    return done, cast(list[Pair], list(zip(*made, strict=True)))


def kept_condition(s: CaptureState, condition: Tensor) -> Value:
    """The condition as it is now, for the code behind the region."""
    return from_torch(s, s.recorder.call("clone", [condition.fake], {}, stack=running_frame(s).locations()))  # type: ignore[arg-type]


def joined_tensors(
    s: CaptureState,
    condition: Tensor,
    sides: Sequence[SideValues],
    pairs: Sequence[Pair],
    failed: ValueNeeded,
    own: set[int],
) -> list[Value]:
    """Record the `cond` whose results are the `pairs`; `own`: tensors whose memory from before nothing sees again."""
    changed = list({id(fake): fake for side in sides for fake in side.changed}.values())
    if not pairs and not changed:
        if any(call.target != "item" for side in sides for call in side.calls):
            raise NotNested("nothing is left of its calls")
        return []
    for a, b in pairs:
        if a is not None and b is not None:
            require_alike(a, b)
    done = [with_outputs(s, side.calls, pairs, n) for n, side in enumerate(sides)]
    for _, outputs in done:
        if len({id(fake.storage_view.storage) for fake in outputs}) < len(outputs):
            raise NotNested("its results share memory")
    captured = captured_by(done, ())
    require_own_memory(changed, [*captured, *[tensor.fake for pair in pairs for tensor in pair if tensor is not None]])
    places = {id(fake): number for number, fake in enumerate(captured)}
    changes = tuple([places[id(fake)] for fake in changed])
    target = operator_of("cond", done, captured, run_branch, lets_gradients_be_absent=True, changes=changes)
    try:
        results = record(s, target, [condition.fake, *captured])
    except RuntimeError as problem:  # of autograd: a value that a gradient needs was changed in place
        raise NotNested("its torch calls raise apart from the region") from problem
    versions = ValueNeeded(failed.made_at, failed.step, "they raise the version of a tensor, which is read")
    for fake in (*changed, *[result.fake for result in results if isinstance(result, Tensor)]):
        s.part(RegionInputs).joined[id(fake.storage_view.storage)] = versions
    choosing, kept = s.needed.get(failed.made_at) in (JOINED_FIRST, COPY_CHOSEN), None
    for (a, b), result in zip(pairs, results, strict=True):
        left = [t for t in (a, b) if t is not None and id(t) not in own]
        can = len(left) == 2 and is_choosable(s, left, result, captured, changed)
        note_copy(s, left, result, captured, failed, can and not choosing)
        if can and choosing:
            kept = kept or kept_condition(s, condition)
            choose_behind(s, kept, left, result, captured)
        if a is not None and b is not None and a.fake.requires_grad is not b.fake.requires_grad:
            s.part(Conversions).varying.append((result.fake, failed))  # type: ignore[attr-defined]
    return results


def with_outputs(s: CaptureState, calls: Calls, pairs: Sequence[Pair], side: int) -> tuple[Calls, list[FakeTensor]]:
    """The calls and results of a side. What it does not leave is zeros, which nothing reads."""
    outputs = list[FakeTensor]()
    for pair in pairs:
        own, other = pair[side], pair[1 - side]
        if own is None:
            assert other is not None
            more, made = taken_from_log(s, nullcontext(), partial(unread, s, other.fake))
            calls = (*calls, *more)
            outputs.append(made)
        else:
            outputs.append(own.fake)
    return calls, outputs


def unread(s: CaptureState, like: FakeTensor) -> FakeTensor:
    """Zeros of its sizes; none in a dimension that data decide on the side that makes it."""
    kwargs = {"dtype": like.dtype, "device": like.device}
    unknown = [isinstance(size, torch.SymInt) and not size.node.has_hint() for size in like.shape]
    if any(unknown):
        sizes = [0 if data else size for data, size in zip(unknown, like.shape, strict=True)]
        return cast(FakeTensor, s.recorder.call(torch.zeros, [sizes], kwargs))
    made = s.recorder.call(torch.empty_strided, [tuple(like.shape), like.stride()], kwargs)
    if 0 not in like.stride():  # equal in every run, so that a run can be compared with eager's
        made = s.recorder.call("zero_", [made], {})
    assert isinstance(made, FakeTensor)
    return made


def require_own_memory(changed: Sequence[FakeTensor], used: Sequence[FakeTensor]) -> None:
    """Refuse changes of tensors that have gradients or that are also used through views."""
    for fake in changed:
        storage = fake.storage_view.storage
        if fake.requires_grad or fake.storage_view.step is not None or storage.unwritable:
            raise NotNested("it changes a view or a tensor with gradients")
        if any(other is not fake and other.storage_view.storage is storage for other in used):
            raise NotNested("it changes a tensor that it uses through a view")


def require_alike(a: Tensor, b: Tensor) -> None:
    problem = unlike(a, b)
    if problem is not None:
        raise NotNested(problem)


# Results that require gradients after one side alone.


def refuse_varying_gradients(s: CaptureState, outputs: Sequence[FakeTensor]) -> None:
    """Break where a result of the region requires gradients after one side of a branch alone."""
    varying, chosen = s.part(Conversions).varying, s.part(ChosenResults).by_fake
    if has_varying_gradient(s, [fake for fake in outputs if id(fake) not in chosen]):
        raise varying[0][1]


def has_varying_gradient(s: CaptureState, tensors: Iterable[FakeTensor]) -> bool:
    """Whether one of them requires gradients after one side of a branch alone."""
    blocked = {fake.grad_fn for fake, _ in s.part(Conversions).varying}
    return bool(blocked) and any([each.requires_grad and not reaches_leaf(each, blocked) for each in tensors])


def reaches_leaf(output: FakeTensor, blocked: Collection[object]) -> bool:
    """Whether a path through autograd's graph leads from `output` to a leaf, beside the `blocked` functions."""
    edges = edges_behind([edge_of(output)], blocked.__contains__)
    return output.is_leaf or any(leaf_of(function) is not None for function, _ in edges)
