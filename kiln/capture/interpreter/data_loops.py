"""Loops that the values of tensors end, as one `while_loop` in the graph.

    for i in range(100):                  %5 = while_loop(0, False, x0, test=@0, body=@1)
        x = step(x)                  =>   @0 = i < 100 and not left
        if error(x) < 1e-3: break         @1 = i + 1, error(step(x)) < 1e-3, step(x)

The graph breaks at the condition first, since no number of turns is known. The capture begins again, and where it comes
to the head of that loop, a turn is interpreted as a function (`bytecode/loops.py`): of the tensors and numbers that
turns change, which are tensors in the graph. An `if` that leaves the loop is a branch whose sides return. A `for` may
go on elsewhere behind its last turn (an `else`, another return): a branch behind the loop decides. What a turn assumes
of values (that a divisor is not zero) is one more tensor; the loop ends where it does not hold.

What has another type or layout behind the first turn, such as a best loss that is None at first, is no reason to give
up: the first turn is interpreted by itself, and the loop begins with the second. What cannot be a function of tensors
(a list that grows, an effect, a number that Python needs) leaves the loop as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import pairwise
from math import inf
from types import CodeType, FunctionType
from typing import cast, final

import torch

import kiln.capture.interpreter.control_flow as control_flow
from kiln.capture.bytecode.loops import Loop, loops_at, turn_code
from kiln.capture.bytecode.resume import Entry, ResumeOrigin, parameter, resume_function, unused_number
from kiln.capture.interpreter.breaks import DataDependentBranch, DataDependentValue, GraphBreak, Raised
from kiln.capture.interpreter.builtins.control_flow_operators import placeholder, same_sizes
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.data_values import (
    RELATIONS,
    Assumption,
    DataValues,
    Instruction,
    ValueNeeded,
    past_step,
    relation_in_region,
)
from kiln.capture.interpreter.frame import CODES, Heads, SymbolicFrame, read_variables
from kiln.capture.interpreter.if_conversion import (
    has_varying_gradient,
    take_both_sides,
    unread,
)
from kiln.capture.interpreter.joined_values import LARGEST, NUMBERS
from kiln.capture.interpreter.nested_calls import (
    Calls,
    Flat,
    Interpreted,
    captured_by,
    flat,
    frame_values,
    interpreted,
    operator_of,
    reachable,
)
from kiln.capture.interpreter.nested_calls import record as record_call
from kiln.capture.interpreter.side_assumptions import assumed_behind, assumptions_taken
from kiln.capture.interpreter.variables.counted_range import CountedRange
from kiln.capture.interpreter.variables.function import Cell
from kiln.capture.interpreter.variables.sequence import SequenceIterator, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import RegionInputs, Tensor, from_torch, record
from kiln.capture.interpreter.visible_copies import Copies, Copy
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.prims.meta import same_strides
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow, leaves
from kiln.graph.trace.nested_graphs import NotNested
from kiln.graph.trace.nested_logs import dense, is_differentiated
from kiln.runtime.control_flow import run_while
from kiln.support.records import dataclass
from kiln.symbolic import Expr, ShapeEnv, Symbol, rel_le
from kiln.symbolic.expr import Atom, Extremum, FloorDiv, Quotient, product
from kiln.symbolic.node import from_sym
from kiln.symbolic.relation import Relation
from kiln.tensor.spec import TensorSpec

MOST_LOOPS = 4
"""So many loops of a capture are tried, and each again behind its first turn."""
MOST_ADDED = 2**31
"""So much a turn may add to an integer, which begins below 2**62: after 2**31 turns it still has 64 bits."""
LEFT_IN_PYTHON = "a loop on data is no loop of the graph"


class LoopInGraph(Exception):
    """The graph breaks in a loop that may be in it as a whole; `skipped`: so many turns are interpreted in front."""

    def __init__(self, loop: Loop, skipped: int = 0, stopped: frozenset[Instruction] = frozenset()) -> None:
        super().__init__(loop)
        self.loop, self.skipped, self.stopped = loop, skipped, stopped

    def is_apart(self, at: Instruction) -> bool:
        """Whether an instruction, of a frame in which the graph breaks, has nothing to do with the loop."""
        is_inside = at[0] is self.loop.code and at[1] in self.loop.body
        return at not in self.stopped and not is_inside and any([at[0] is code for code, _ in self.stopped])


@final
@dataclass
class DataLoops:
    """The loops that this attempt is to have in its graph."""

    loops: dict[tuple[int, int], tuple[Loop, int]] = field(default_factory=dict)
    """By the `id` of the code and the head, with the number of turns to interpret in front."""
    reached: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often a frame has come to such a head."""
    ends: list[list[list[Flat]]] = field(default_factory=list)
    """What each end of a turn leaves in the variables, of the turns that are interpreted, innermost last."""

    def add(self, s: CaptureState, loop: Loop, skipped: int = 0) -> None:
        self.loops[id(loop.code), loop.head] = loop, skipped
        s.part(Heads).rows.setdefault(id(loop.code), {})[loop.head] = (reach_head, None, True)


def loop_to_take(s: CaptureState, stop: GraphBreak) -> LoopInGraph | None:
    """The innermost loop around a break at a value of a tensor that was not tried so far."""
    known = s.part(DataLoops).loops
    if not isinstance(stop, DataDependentBranch | DataDependentValue) or s.policy.control_flow == "python":
        return None
    if len(known) >= MOST_LOOPS or s.function_modes:
        return None
    frames = [frame for frame in stop.frames if isinstance(frame, SymbolicFrame)]
    stopped = frozenset([(frame.code, frame.at) for frame in frames])
    for frame in frames if len(frames) == len(stop.frames) else ():
        for loop in loops_at(frame.decoded, frame.at):
            if (id(loop.code), loop.head) not in known and (loop.code, loop.head) not in s.needed:
                return LoopInGraph(loop, 0, stopped)
    return None


def reach_head(frame: SymbolicFrame, arg: None) -> None:
    """Stands in the rows for the head of a loop that is to be in the graph."""
    head = frame.at
    if not take_loop(frame):
        handler, arg, _ = CODES.rows(frame.code)[1][head]
        handler(frame, arg)
        frame.rows[head] = (reach_head, None, True)  # an instruction that was never reached is decoded in place


def take_loop(frame: SymbolicFrame) -> bool:
    """Go on behind the loop at whose head the frame is; False if its next turn is interpreted.

    Raises:
        ValueNeeded: if it cannot be in the graph.
        LoopInGraph: if it may be behind its first turn.
    """
    s, part = frame.state, frame.state.part(DataLoops)
    loop, skipped = part.loops[id(frame.code), frame.at]
    here = frame.code, frame.at
    if s.recorder.env.in_side:
        raise NotNested("a loop on data calls torch")  # the sides of an `if` on a number do not
    part.reached[frame.number, frame.at] += 1
    if here in s.needed or part.reached[frame.number, frame.at] % (skipped + 1):
        return False
    failed = ValueNeeded(here, past_step(frame), LEFT_IN_PYTHON)
    read_variables(frame)
    try:
        numbers = numbers_of(frame, loop)
        if numbers is None:
            return False
        values, left = run_in_graph(frame, loop, numbers, failed)
    except Unlike as problem:
        if skipped:
            raise failed from problem
        raise LoopInGraph(loop, 1, frozenset([here])) from problem
    except (NotNested, TraceBreak, Raised, GraphBreak) as problem:
        raise failed from problem
    for name in loop.changed:
        if name in frame.cells:
            cast(Cell, frame.cells[name]).store(s, values.get(name))
        elif name in values:
            frame.locals[name] = values[name]
        else:
            frame.locals.pop(name, None)
    iterator = frame.stack.pop() if loop.is_for else None
    frame.ip = loop.after
    if loop.exhausted is not None:
        ways, push = (loop.after, loop.exhausted), lambda s: cast(Value, iterator)
        if not take_both_sides(frame, left, ways, push, is_turn=False):
            raise failed
    return True


class Unlike(Exception):
    """What turns change is no number or tensor in front of the loop, or another one than behind a turn."""


@final
@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers that a loop goes through; without an end those of a `while`, of which nothing is asked."""

    start: int = 0
    end: Value | None = None
    step: int = 1


def numbers_of(frame: SymbolicFrame, loop: Loop) -> Numbers | None:
    """None where there is no turn. Raises NotNested for a loop over something else than numbers in order."""
    if not loop.is_for:
        return Numbers()
    s, over = frame.state, frame.stack[-1]
    if frame.decoded.instruction(loop.head - 1).name != "GET_ITER":
        raise NotNested("it goes through an iterator that others may hold")
    if isinstance(over, CountedRange):
        end = over.end.node
        has_turn = s.wrap(over.start < end if over.step > 0 else over.start > end, None).truth(s)
        require_small(over.start, over.step)
        return Numbers(over.start, over.end, over.step) if has_turn else None
    if not isinstance(over, SequenceIterator):
        raise NotNested("it does not go through numbers")
    items = over.sequence.items(s)[over.index :]
    if not all([item.is_constant and type(item.real()) is int for item in items]):
        raise NotNested("it does not go through numbers")
    numbers = [item.constant(s) for item in items]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if any([later - earlier != step for earlier, later in pairwise(numbers)]) or not step:
        raise NotNested("it does not go through numbers in order")
    require_small(*numbers[:1], *numbers[-1:], step)
    return Numbers(numbers[0], s.const(numbers[-1] + step), step) if numbers else None


def require_small(*numbers: int) -> None:
    if any([abs(number) > MOST_ADDED for number in numbers]):
        raise NotNested("its numbers may have more than 64 bits")


# A turn as a function.


@final
class Turn(Value):
    """(number, whether the loop is left, what turns change) -> the same behind a turn, all as tensors.

    If turns assume something, whether that holds is behind the first two.
    """

    __slots__ = ("assumes", "ends", "frame", "function", "late", "loop", "numbers", "origin", "values")

    def __init__(self, frame: SymbolicFrame, loop: Loop, numbers: Numbers) -> None:
        self.frame, self.loop, self.numbers = frame, loop, numbers
        self.values: dict[str, Flat] = {}
        """What turns change, by name."""
        self.late: Collection[str] = ()
        """The variables that each turn sets before it reads them, or that have no value in front of the first."""
        self.ends: list[list[Flat]] = []
        """What each of its ends has left in the variables, in the last call."""
        self.assumes: Assumption | None = None
        """The first that a turn assumes."""
        code, moved = turn_code(frame.decoded, loop, turn_ends)
        add_inner_loops(frame.state, loop, code, moved)
        number, kept = unused_number(code), len(frame.stack) - loop.is_for
        slots = [None if frame.stack[at] is None else parameter("stack", number, at) for at in range(kept)]
        if loop.is_for:
            slots += [parameter("stack", number, kept), parameter("result", number, 0)]
        names = [name for name in code.co_varnames if name in frame.locals and name not in frame.cells]
        cells = [name for name in (*code.co_cellvars, *code.co_freevars) if name in frame.cells]
        entry = Entry(moved(loop.begin), tuple(names), tuple(cells), tuple(slots))
        self.origin = ResumeOrigin(code, entry, None)
        self.function = resume_function(self.origin, frame.globals.dictionary, None, code.co_qualname)

    def python_type(self) -> type:
        return FunctionType

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        (position, _), checked, tensors = args[:2], args[2 : self.first], args[self.first :]
        rest, frame, entry = iter(tensors), self.frame, self.origin.entry
        parts = {name: [next(rest) for _ in value.leaves] for name, value in self.values.items()}
        given = {name: with_tensors(s, self.values[name], parts[name]) for name in parts if name not in self.late}
        values = {name: given.get(name) or frame.locals[name] for name in entry.locals}
        for name in entry.cells:
            values[name] = Cell(given.get(name), name=name) if name in self.loop.changed else frame.cells[name]
        values.update(
            (slot, value) for slot, value in zip(entry.stack, frame.stack, strict=False) if slot and value is not None
        )
        if self.loop.is_for:
            values[str(entry.stack[-1])] = number_in(s, position) if self.loop.reads_number else s.const(0)
        ends, assumed = s.part(DataLoops).ends, len(s.part(DataValues).assumptions)
        ends.append([])
        called = s.wrap(self.function, None).call(s, [values[name] for name in entry.parameters()], {})
        self.ends = ends.pop()
        assert isinstance(called, Tuple)
        left, *results = called.items(s)
        if (held := assumptions_taken(s, assumed)) is not None:
            self.assumes = held[1]
            checked = [record(s, torch.logical_and, [holds, held[0]], {}) for holds in checked]
        if self.numbers.end is not None:
            position = record(s, "add", [position, s.const(self.numbers.step)], {})
        return Tuple([position, left, *checked, *results])

    @property
    def first(self) -> int:
        """The number of arguments in front of what turns change."""
        return 2 if self.assumes is None else 3

    def begin(self, s: CaptureState) -> list[Tensor]:
        """Those arguments in the first turn."""
        return [tensor_of(s, s.const(number)) for number in (self.numbers.start, False, True)[: self.first]]


@final
class AnotherTurn(Value):
    """The arguments of a `Turn` -> whether there is another one."""

    __slots__ = ("turn",)

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def python_type(self) -> type:
        return FunctionType

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        goes_on, numbers = record(s, torch.logical_not, [args[1]], {}), self.turn.numbers
        for holds in args[2 : self.turn.first]:
            goes_on = record(s, torch.logical_and, [goes_on, holds], {})
        end = numbers.end
        if end is None:
            return goes_on
        compare = torch.lt if numbers.step > 0 else torch.gt
        return record(s, torch.logical_and, [goes_on, record(s, compare, [args[0], end], {})], {})


def add_inner_loops(s: CaptureState, loop: Loop, code: CodeType, moved: Callable[[int], int]) -> None:
    """Loops within a turn that were found in the code of the function are those of the code of the turn."""
    part = s.part(DataLoops)
    for inner, skipped in list(part.loops.values()):
        if inner.code is loop.code and inner is not loop and inner.head in loop.body:
            head = moved(inner.head)
            for found in loops_at(CODES.rows(code)[0], head):
                if found.head == head:
                    part.add(s, found, skipped)


def turn_ends(left: bool, *values: object) -> object:
    """Called where a turn ends: whether the loop is left, and the variables that turns change, as tensors."""
    raise NotImplementedError("it is interpreted by the handler below")


@handles(turn_ends)
def handle_turn_ends(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    values = [flat(s, value) for value in args[1:]]
    s.part(DataLoops).ends[-1].append(values)
    leaves = [leaf for value in values for leaf in value.leaves]
    return Tuple([tensor_of(s, leaf) for leaf in (args[0], *leaves)])


def number_in(s: CaptureState, tensor: Value) -> Value:
    return tensor.get_attr(s, "item").call(s, [], {})


def with_tensors(s: CaptureState, like: Flat, tensors: Sequence[Value]) -> Value:
    """A value with these `tensors`, or the numbers in them, in place of what it holds."""
    pairs = zip(like.leaves, tensors, strict=True)
    return like.rebuild([tensor if isinstance(leaf, Tensor) else number_in(s, tensor) for leaf, tensor in pairs])


def tensor_of(s: CaptureState, value: Value) -> Tensor:
    """A tensor as it is; a number as one of rank 0. Raises Unlike for others."""
    kind = kind_of(value)
    if kind is None:
        raise Unlike
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Symbolic) and kind is bool:
        relation = value.node.node.value
        if value.number is not None:
            return made_tensor(record(s, torch.ne, [tensor_of(s, value.number), s.const(0)], {}))
        if not isinstance(relation, Relation):
            raise NotNested("a turn leaves a truth value that no tensor has")
        return made_tensor(from_torch(s, relation_in_region(s, relation)))
    return made_tensor(record(s, torch.full, [s.const(()), value], {"dtype": s.const(NUMBERS[kind])}))


def made_tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def kind_of(value: Value) -> type | None:
    """`Tensor`, or the type of a number that a tensor can hold."""
    if isinstance(value, Tensor):
        return Tensor
    kind = value.python_type() if isinstance(value, Symbolic) else type(value.real())
    fits = isinstance(value, Symbolic) or kind is not int or abs(value.real()) < LARGEST
    return kind if kind in NUMBERS and fits else None


def kinds_of(value: Flat) -> tuple[object, ...]:
    return value.containers, *map(kind_of, value.leaves)


# The loop.


def run_in_graph(
    frame: SymbolicFrame, loop: Loop, numbers: Numbers, failed: ValueNeeded
) -> tuple[dict[str, Value], Value]:
    """Record the loop; the variables that are read behind it, and whether a turn left it. Raises Unlike, NotNested."""
    s, turn = frame.state, Turn(frame, loop, numbers)
    refuse_shared_cells(frame, loop)
    found = {name: variable(frame, name) if name in loop.read_inside else None for name in loop.changed}
    turn.values = {name: flat(s, value) for name, value in found.items() if value is not None}
    begin = {name: [first_of(s, leaf) for leaf in value.leaves] for name, value in turn.values.items()}
    if turn.values.keys() != found.keys():
        turn.late = found.keys() - turn.values.keys()
        left = first_ends(s, turn, begin)
        turn.values = {name: turn.values.get(name) or left[name] for name in loop.changed}
        begin.update({name: [unread_like(s, leaf) for leaf in turn.values[name].leaves] for name in turn.late})
    first = [tensor for name in loop.changed for tensor in begin[name]]
    is_left, *changed = recorded_loop(s, turn, first, failed)
    results = iter(changed)
    parts = {name: [next(results) for _ in value.leaves] for name, value in turn.values.items()}
    read = [name for name in parts if name in loop.read_behind]
    return {name: with_tensors(s, turn.values[name], parts[name]) for name in read}, is_left


def first_of(s: CaptureState, value: Value) -> Tensor:
    number = value.node.node.value if isinstance(value, Symbolic) else None
    if isinstance(number, Expr) and any([abs(coefficient) > MOST_ADDED for _, coefficient in number.terms]):
        raise NotNested("an integer may have more than 64 bits")
    return tensor_of(s, value)


def variable(frame: SymbolicFrame, name: str) -> Value | None:
    cell = frame.cells.get(name)
    found: Value | None = cell.load(frame.state) if cell is not None else frame.locals.get(name)
    return found


def refuse_shared_cells(frame: SymbolicFrame, loop: Loop) -> None:
    """A turn gets cells of its own, so that nothing else must hold those of variables that it changes."""
    changed = [frame.cells[name] for name in loop.changed if name in frame.cells]
    if not changed:
        return
    others = [cell.content for cell in frame.cells.values() if isinstance(cell, Cell) and cell.content is not None]
    held = reachable(
        [*frame.locals.values(), *frame.stack, *others, *frame_values(frame.state, frame.parent), *frame.state.effects]
    )
    if any([cell.original is not None or id(cell) in held for cell in changed]):
        raise NotNested("a function that it has made shares a variable that a turn changes")


def first_ends(s: CaptureState, turn: Turn, begin: Mapping[str, Sequence[Tensor]]) -> dict[str, Flat]:
    """What a turn leaves in the variables, to know what those are that have no value in front of the loop."""
    given = [tensor for name in turn.values for tensor in begin[name]]
    interpreted(s, turn, [state_like(s, tensor) for tensor in (*turn.begin(s), *given)])
    return dict(zip(turn.loop.changed, turn.ends[0], strict=True))


def recorded_loop(s: CaptureState, turn: Turn, changed: Sequence[Tensor], failed: ValueNeeded) -> list[Value]:
    """The loop as one call in the log: whether a turn left it, and what turns change, which begins as `changed`."""
    first = [*turn.begin(s), *changed]
    states, asked = [state_like(s, tensor) for tensor in first], s.part(RegionInputs).asked_of_made
    test, done = [interpreted(s, function, [*states]) for function in (AnotherTurn(turn), turn)]
    if len(first) < turn.first + len(changed):  # it assumes something
        return recorded_loop(s, turn, changed, failed)
    wanted = [*map(kinds_of, turn.values.values())]
    specs = [tensor.fake.storage_view.spec for tensor in first]
    left = [tensor.fake.storage_view.spec for tensor in done.result.tensors]
    if any([[*map(kinds_of, values)] != wanted for values in turn.ends]) or not all(
        map(partial(is_alike, s), specs, left)
    ):
        raise Unlike
    if not all(map(is_dense, [*specs, *left])):
        raise NotNested("what turns change is not laid out in rows")
    if not all([grows_slowly(s, number) for number in numbers_put(done.calls)]):
        raise NotNested("an integer may grow beyond 64 bits")
    storages = [id(tensor.fake.storage_view.storage) for tensor in done.result.tensors]
    if len({*storages}) < len(storages):
        raise NotNested("what a turn leaves shares memory")
    sides, fakes = [test.side, done.side], [state.fake for state in states]
    captured = captured_by(sides, fakes)
    given = [*[tensor.fake for tensor in first], *captured]
    if s.policy.control_flow == "cpu" and any([fake.device.type != "cpu" for fake in given]):
        raise NotNested("a region with a loop is no CUDA graph")
    if is_differentiated(given):
        if s.part(RegionInputs).asked_of_made != asked:
            raise NotNested("a turn asks whether a tensor has a gradient")
        results = differentiated_loop(s, turn, first)
    else:
        target = operator_of("while_loop", sides, [*fakes, *captured], run_while, carried=len(fakes))
        results = record_call(s, target, given)
    note_copies(s, done, results, [*first, *states], failed)
    for holds in results[2 : turn.first]:
        assert turn.assumes is not None
        assumed_behind(s, holds, turn.assumes, failed)
    return [results[1], *results[turn.first :]]


def differentiated_loop(s: CaptureState, turn: Turn, first: Sequence[Tensor]) -> list[Value]:
    if s.part(DataLoops).ends:
        raise NotNested("a loop with gradients is in another")  # each level would take three times as long
    needs = needs_behind(s, turn, first)
    loop = s.wrap(control_flow.differentiable_loop, None)
    made = loop.call(s, [AnotherTurn(turn), turn, Tuple([*first]), Tuple([])], {})
    assert isinstance(made, Tuple)
    return [
        result if needed else record(s, "detach", [result], {})
        for needed, result in zip(needs, made.items(s), strict=True)
    ]


def needs_behind(s: CaptureState, turn: Turn, first: Sequence[Tensor]) -> list[bool]:
    """Which results need a gradient. Raises Unlike or NotNested where that depends on the number of turns."""
    needs = [is_differentiated([tensor.fake]) for tensor in first]
    for _ in range(2):
        states, before = [state_like(s, tensor) for tensor in first], needs
        for state, needed in zip(states, before, strict=True):
            state.fake.requires_grad_(needed)
        ends = [tensor.fake for tensor in interpreted(s, turn, [*states]).result.tensors]
        if has_varying_gradient(s, ends):
            raise NotNested("what it leaves needs a gradient behind some turns alone")
        needs = [end.requires_grad for end in ends]
        if needs == before:
            return needs
    raise Unlike


def note_copies(
    s: CaptureState, done: Interpreted, results: Sequence[Value], before: Sequence[Tensor], failed: ValueNeeded
) -> None:
    """In eager, what turns leave may be memory from `before` the loop; the results of the call never are."""
    copies = s.part(Copies).made
    made_inside = [leaf for call in done.calls for leaf in leaves(call.result)]
    own = {id(leaf.storage_view.storage) for leaf in made_inside if type(leaf) is FakeTensor}
    for result, tensor in zip(results, done.result.tensors, strict=True):
        storage = tensor.fake.storage_view.storage
        if id(storage) in own and id(storage) not in copies:
            continue
        made = cast(Tensor, result).fake.storage_view.storage
        sources = [storage, *[given.fake.storage_view.storage for given in before]]
        sources += [other for each in sources if id(each) in copies for other in copies[id(each)].sources]
        versions, first = [each.version for each in (made, *sources)], len(s.part(RegionInputs).set_on)
        copies[id(made)] = Copy(made, sources, versions, failed.made_at, failed.step, first)


def is_alike(s: CaptureState, a: TensorSpec, b: TensorSpec) -> bool:
    return a.dtype is b.dtype and a.device == b.device and same_sizes(s, a, b)


def is_dense(spec: TensorSpec) -> bool:
    return same_strides(spec.strides, dense(spec), spec.sizes)


def numbers_put(calls: Calls) -> Iterator[torch.SymInt]:
    """The integers that calls put into tensors, as those are that a turn leaves; not those that are only compared."""
    compared = {id(leaf) for call in calls if call.target in RELATIONS.values() for leaf in leaves(call.args)}
    for call in calls:
        if isinstance(call.target, ControlFlow):
            for log in call.target.logs:
                yield from numbers_put(log.calls)
        elif call.target is torch.full and id(call.result) not in compared:
            yield from [leaf for leaf in leaves(call.args[1:]) if isinstance(leaf, torch.SymInt)]


def grows_slowly(s: CaptureState, number: torch.SymInt) -> bool:
    """Whether a turn that leaves this integer adds MOST_ADDED at most to the largest of those that it got."""
    return growth(s.recorder.env, from_sym(number)) <= 1


def growth(env: ShapeEnv, value: object) -> float:
    """A bound of how often numbers that data decide are in it; infinite if something large is added."""
    return sum([growth_of_term(env, *term) for term in value.terms]) if isinstance(value, Expr) else 0


def growth_of_term(env: ShapeEnv, atoms: tuple[Atom, ...], coefficient: int) -> float:
    read = frozenset().union(*[atom.free_symbols() for atom in atoms])
    if read.isdisjoint(env.unbacked):
        return 0 if is_small(env, atoms, coefficient) else inf
    return abs(coefficient) * growth_of_atom(env, atoms[0]) if len(atoms) == 1 else inf


def growth_of_atom(env: ShapeEnv, atom: Atom) -> float:
    if isinstance(atom, Quotient) and type(atom.divisor) is int:
        return growth(env, atom.dividend) / abs(atom.divisor) if isinstance(atom, FloorDiv) else 0
    if isinstance(atom, Extremum):
        return max([growth(env, arg) for arg in atom.args])
    return 1 if isinstance(atom, Symbol) else inf


def is_small(env: ShapeEnv, atoms: tuple[Atom, ...], coefficient: int) -> bool:
    """Whether what a turn adds is MOST_ADDED at most; numbers of the caller are guarded. Sizes are small."""
    value = product([*atoms, coefficient])
    if isinstance(value, int):
        return abs(value) <= MOST_ADDED
    is_size = env.unbounded.isdisjoint(value.free_symbols())
    return is_size or (env.decide(rel_le(value, MOST_ADDED)) and env.decide(rel_le(-MOST_ADDED, value)))


def state_like(s: CaptureState, tensor: Tensor) -> Tensor:
    return placeholder(s, tensor.fake.storage_view.spec)


def unread_like(s: CaptureState, leaf: Value) -> Tensor:
    """What nothing reads, as a tensor."""
    kind = kind_of(leaf)
    if isinstance(leaf, Tensor):
        return tensor_of(s, from_torch(s, unread(s, leaf.fake)))
    if kind is None:
        raise NotNested("a turn sets what is no tensor or number")
    return tensor_of(s, s.const(kind(0)))
