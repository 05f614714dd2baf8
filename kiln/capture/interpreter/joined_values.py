"""The values that both sides of a branch leave, as one: equal ones stay, tensors become results of the `cond`.

    y: t0 | t1           y = cond(...)[0]
    cache.keys: k | None        cache.keys = Choice(gate, cond(...)[1], None)       `None` of a tensor: zeros

Where other values differ in an object or container, the joined value is a `Choice`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import cast, final

import torch

from kiln.capture.interpreter.alternatives import chosen_number
from kiln.capture.interpreter.copied_tensors import stand_in
from kiln.capture.interpreter.core import MISSING, CaptureState, Value
from kiln.capture.interpreter.data_values import (
    KEYS_CHANGED,
    LENGTH_CHANGED,
    LENGTH_READ,
    DataValues,
    ValueNeeded,
    none_needed,
)
from kiln.capture.interpreter.effects import OneSided
from kiln.capture.interpreter.side_changes import (
    CHANGES,
    Growth,
    Meeting,
    Position,
    SideChanges,
    may_be_absent,
    note_joined,
)
from kiln.capture.interpreter.variables.choice import Choice
from kiln.capture.interpreter.variables.deferred_text import Deferred
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, OneSidedItem, Spread, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.nested_graphs import NotNested
from kiln.graph.trace.nested_logs import new_symbols
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Symbol
from kiln.symbolic.relation import Relation
from kiln.symbolic.values import AllOf, AnyOf, Given, Real

EXACT = (bool, int, float, complex, str, bytes, type(None))
"""Constants of these types are equal if their texts are."""
LEFT, RIGHT = 0, 1
NO_VALUES = (list, dict, Position, Growth)
"""States of containers and iterators."""

ChooseNumber = Callable[[Value, Value], Value | None]
"""(what the sides leave) -> what stands for both; None: they are no numbers, or cannot be computed in front."""
Pair = tuple[Tensor | None, Tensor | None]
"""What the sides leave; None: a side leaves no tensor there, and nothing reads the result after it."""
Sides = Sequence[list[Value | None]]
"""What each of the two sides leaves."""


class Differs(Exception):
    """The sides leave values that cannot be joined here."""


@final
@dataclass(eq=False)
class Joining:
    """The tensors that the sides leave and, once the `cond` is recorded, what stands for them.

    `known` are the values from before the branch, `made` the fakes that each side has made. First all values are
    looked at (`note`, `note_state`), then the `pairs` are recorded, then the values are built (`build`, `build_state`).
    """

    known: set[int]
    made: tuple[set[int], set[int]]
    copied: set[int]
    """The tensors for which a side has made copies (`copied_tensors.py`), by `id`."""
    pairs: dict[tuple[int, int], Pair] = field(default_factory=dict)
    """By the `id`s of the fakes, 0 for none."""
    alone: tuple[dict[int, Tensor], dict[int, Tensor]] = field(default_factory=lambda: ({}, {}))
    """Tensors that a side has made and that only a choice holds, by the `id` of the fake."""
    results: dict[tuple[int, int], Value] = field(default_factory=dict)
    choose_number: ChooseNumber | None = None
    """Joins two numbers of the caller, where such a number decides which side is taken."""
    numbers: dict[tuple[int, int], Value] = field(default_factory=dict)
    """The joined numbers, by the `id`s of the values."""
    read: tuple[set[object], set[object]] = field(default_factory=lambda: (set(), set()))
    """The numbers that each side has read of tensors."""
    exits: bool = False
    """The values leave the region: of tensors that one side has not made, or that differ, that of the side is taken."""
    condition: Value | None = None
    chooses: bool = False
    need: ValueNeeded | None = None
    rebuilt: dict[int, Value] = field(default_factory=dict)
    """What stands for values that one side has made, by `id`."""

    def note_sides(self, s: CaptureState, sides: Sides, meetings: Sequence[Meeting], exact: bool) -> None:
        """What the sides leave in variables, on the stack and in objects. `exact`: no variable is a choice.

        Raises:
            Differs: if the values cannot be joined where the sides meet.
        """
        left, right = sides
        if len(left) != len(right):
            raise Differs
        for both in zip(left, right, strict=True):
            self.note(s, *both, exact=exact or None in both)
        for meeting in meetings:
            self.note_state(s, meeting)

    def build_sides(
        self, s: CaptureState, sides: Sides, meetings: Sequence[Meeting], changes: Sequence[SideChanges]
    ) -> list[Value | None]:
        for meeting in meetings:
            self.build_state(s, meeting)
        note_joined(s, changes)
        return [self.build(s, *both) for both in zip(*sides, strict=True)]

    def note(self, s: CaptureState, a: Value | None, b: Value | None, exact: bool) -> None:
        """Raises Differs if they would be a choice and must not (`exact`)."""
        if a is b:
            return
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.fake is not b.fake and self.exits and not self._can_be_one(a, b):
                self._note_choice(s, a, b)
            else:
                self._note_pair(a, b)
        elif isinstance(a, Tuple) and isinstance(b, Tuple) and a.cls is b.cls and len(a.items(s)) == len(b.items(s)):
            for both in zip(a.items(s), b.items(s), strict=True):
                self.note(s, *both, exact)
        elif not equal_constants(s, a, b):
            if self._is_joined_by_number(s, a, b):
                return
            if exact:
                raise Differs
            self._note_choice(s, a, b)

    def _note_pair(self, a: Tensor, b: Tensor) -> None:
        if not self.copied.isdisjoint((id(a), id(b))):
            raise NotNested("it leaves a tensor that it changes under another name")
        if a.fake is not b.fake:
            self.pairs[id(a.fake), id(b.fake)] = a, b

    def _note_choice(self, s: CaptureState, a: Value | None, b: Value | None) -> None:
        self.chooses = True
        held = self._held_numbers(s, a, b)
        for side, value in enumerate(held or (a, b)):
            if held is None or isinstance(value, Tensor):
                self.note_alone(s, value, side)

    def _can_be_one(self, a: Tensor, b: Tensor) -> bool:
        own = id(a.fake) in self.made[LEFT] and id(b.fake) in self.made[RIGHT]
        if not own or a.fake.requires_grad is not b.fake.requires_grad or unlike(a, b) is not None:
            return False
        return a.fake.storage_view.spec.sizes == b.fake.storage_view.spec.sizes

    def _held_numbers(self, s: CaptureState, a: Value | None, b: Value | None) -> list[Value] | None:
        """What has the numbers that the sides leave, if they are numbers of one type."""
        if self.exits and a is not None and b is not None and a.is_constant and b.is_constant:
            return None
        held = [held_number(s, value, self.made[side], self.read[side]) for side, value in enumerate((a, b))]
        if a is None or b is None or None in held or a.python_type() is not b.python_type():
            return None
        return cast(list[Value], held)

    def _is_joined_by_number(self, s: CaptureState, a: Value | None, b: Value | None) -> bool:
        """Numbers, or new lists, where a number of the caller decides which side is taken."""
        if self.choose_number is None or a is None or b is None:
            return False
        made: Value | None
        new = [isinstance(value, List) and value.cls is list and not self._is_outer(value) for value in (a, b)]
        if all(new) and len(a.items(s)) == len(b.items(s)):  # type: ignore[attr-defined]
            pairs = list(zip(a.items(s), b.items(s), strict=True))  # type: ignore[attr-defined]
            for both in pairs:
                self.note(s, *both, exact=True)
            made = List([item for both in pairs if (item := self.build(s, *both)) is not None])
        else:
            made = self.choose_number(a, b)
        if made is not None:
            self.numbers[id(a), id(b)] = made
        return made is not None

    def note_alone(self, s: CaptureState, value: Value | None, side: int) -> None:
        """What one side alone leaves."""
        for tensor in self._tensors_in(s, value, side, set()):
            if id(tensor.fake) in self.made[side]:
                self.alone[side][id(tensor.fake)] = tensor

    def _tensors_in(self, s: CaptureState, value: Value | None, side: int, seen: set[int]) -> Iterator[Tensor]:
        """The tensors in a value that a side may have made."""
        if value is None or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Symbolic):
            yield from [held for held in (self._number_alone(s, value, side),) if held is not None]
        elif not self._is_outer(value):
            for part in parts(s, value):
                yield from self._tensors_in(s, part, side, seen)

    def _number_alone(self, s: CaptureState, value: Symbolic, side: int) -> Tensor | None:
        """The tensor that has a number which the side has read; None if the number is known without it."""
        is_truth = value.python_type() is bool
        if self._is_outer(value) or (is_truth and self.read[side].isdisjoint(numbers_of_truth(value))):
            return None
        held = held_number(s, value, self.made[side], self.read[side])
        if held is None:
            raise NotNested("it leaves a number that is not in the graph")
        return held if isinstance(held, Tensor) else None

    def _is_outer(self, value: Value) -> bool:
        return value.is_constant or value.source is not None or id(value) in self.known

    def note_state(self, s: CaptureState, meeting: Meeting) -> None:
        left, right = meeting.left, meeting.right
        if isinstance(left, Position) or isinstance(right, Position):
            if left != right:
                raise NotNested("it takes items from an iterator of the program")
        elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            for both in zip(left, right, strict=True):
                self.note(s, *both, exact=False)
        elif isinstance(left, list | Growth) and isinstance(right, list | Growth):
            note_added(self, s, *added_by_sides(meeting))
        elif isinstance(left, dict) and isinstance(right, dict):
            if list(left) != list(right):
                raise NotNested(KEYS_CHANGED)
            for token in left:
                self.note(s, left[token][1], right[token][1], exact=False)
        else:
            assert not isinstance(left, NO_VALUES) and not isinstance(right, NO_VALUES)
            partial = (left is None) is not (right is None)
            if partial and not may_be_absent(s, meeting.change.value, meeting.change.name):
                raise NotNested("it sets an attribute that does not exist after the other side")
            if isinstance(meeting.change.value, Tensor):
                self._note_pair(cast(Tensor, left), cast(Tensor, right))
            else:
                self.note(s, left, right, exact=False)

    def all_pairs(self) -> list[Pair]:
        """Those of both sides, then tensors of one side alone that are in no other pair."""
        for side in (LEFT, RIGHT):
            paired = {key[side] for key in self.pairs}
            for number, tensor in self.alone[side].items():
                if number not in paired:
                    key = (number, 0) if side == LEFT else (0, number)
                    self.pairs[key] = (tensor, None) if side == LEFT else (None, tensor)
        return list(self.pairs.values())

    def take_results(self, results: Sequence[Value]) -> None:
        self.results = dict(zip(self.pairs, results, strict=True))

    def build(self, s: CaptureState, a: Value | None, b: Value | None) -> Value | None:
        if a is b:
            return a
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            result = self.results.get((id(a.fake), id(b.fake)))
            if result is not None:
                return result
        if isinstance(a, Tensor) and isinstance(b, Tensor) and (a.fake is b.fake or not self.exits):
            return a
        if isinstance(a, Tuple) and isinstance(b, Tuple) and a.cls is b.cls and len(a.items(s)) == len(b.items(s)):
            items = [self.build(s, *both) for both in zip(a.items(s), b.items(s), strict=True)]
            return Tuple(items, a.cls)  # type: ignore[arg-type]
        if equal_constants(s, a, b):
            return a
        if (number := self.numbers.get((id(a), id(b)))) is not None:
            return number
        assert self.condition is not None and self.need is not None
        if (held := self._held_numbers(s, a, b)) is not None:
            sides = [self._result(value, n) if isinstance(value, Tensor) else value for n, value in enumerate(held)]
            return chosen_number(s, self.condition, sides, NUMBERS[cast(Value, a).python_type()], self.need)
        return Choice(self.condition, self.of_side(s, a, LEFT), self.of_side(s, b, RIGHT), self.need)

    def build_state(self, s: CaptureState, meeting: Meeting) -> None:
        left, right = meeting.left, meeting.right
        if isinstance(left, Position):
            meeting.settle(left)
        elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            items = [self.build(s, *both) for both in zip(left, right, strict=True)]
            meeting.settle([item for item in items if item is not None])
        elif isinstance(left, list | Growth) and isinstance(right, list | Growth):
            meeting.settle(as_growth(meeting.change.before).followed_by(items_added(self, s, *added_by_sides(meeting))))
        elif isinstance(left, dict) and isinstance(right, dict):
            pairs = {token: (left[token][0], self.build(s, left[token][1], right[token][1])) for token in left}
            meeting.settle({token: (key, item) for token, (key, item) in pairs.items() if item is not None})
        else:
            assert not isinstance(left, NO_VALUES) and not isinstance(right, NO_VALUES)
            state, tensor = self.build(s, left, right), meeting.change.value
            meeting.settle(state)
            if isinstance(tensor, Tensor) and isinstance(state, Tensor):
                stand_in(s, tensor, state.fake)

    def of_side(self, s: CaptureState, value: Value | None, side: int) -> Value | None:
        """The value of one side with results of the `cond` in place of tensors that the side has made."""
        if value is None:
            return None
        if isinstance(value, Tensor):
            return self._result(value, side)
        if self._is_outer(value):
            return value
        found = self.rebuilt.get(id(value))
        if found is None:
            if isinstance(value, Tuple):
                items = [self.of_side(s, item, side) for item in value.items(s)]
                found = Tuple(items, value.cls)  # type: ignore[arg-type]
            elif isinstance(value, Symbolic):
                held = self._number_alone(s, value, side)
                found = value if held is None else number_in(s, self._result(held, side), value.python_type())
            elif isinstance(value, OneSidedItem):
                inner = held_by_side(self, s, side, value.item)
                found = OneSidedItem(self._result(value.condition, side), value.taken, inner, value.need)
            elif isinstance(value, Spread):
                found = Spread(held_by_side(self, s, side, value.made), value.need)
            elif isinstance(value, Deferred):
                found = value.replaced(s, partial(held_by_side, self, s, side))
            elif isinstance(value, Choice):
                left, right = self.of_side(s, value.left, side), self.of_side(s, value.right, side)
                found = Choice(self._result(value.condition, side), left, right, value.need)
            else:
                found = value
                self.rebuilt[id(value)] = found
                self._fill(s, value, side)
            self.rebuilt[id(value)] = found
        return found

    def _result(self, tensor: Value, side: int) -> Value:
        assert isinstance(tensor, Tensor)
        if id(tensor.fake) not in self.made[side]:
            return tensor
        return next(result for key, result in self.results.items() if key[side] == id(tensor.fake))

    def _fill(self, s: CaptureState, value: Value, side: int) -> None:
        """Replace the parts of an object or container that the side has made."""
        if isinstance(value, List):
            value._items = [part for item in value.items(s) if (part := self.of_side(s, item, side)) is not None]
        elif isinstance(value, Dict):
            for token, (key, item) in list(value.items(s).items()):
                part = self.of_side(s, item, side)
                assert part is not None
                value.items(s)[token] = key, part
        elif isinstance(value, Object):
            value.attrs.update({name: self.of_side(s, item, side) for name, item in value.attrs.items()})
            self.of_side(s, value.native, side)


NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.bool}
LARGEST = 2**62


def held_number(s: CaptureState, value: Value | None, made: set[int], read: set[object]) -> Value | None:
    """What has a number that a side leaves: itself, or the tensor of which the side has `read` it; None of others."""
    if not isinstance(value, Symbolic):
        number = value.real() if value is not None and value.is_constant else None
        is_number = type(number) in NUMBERS and (type(number) is not int or abs(number) < LARGEST)
        return value if is_number else None
    if value.number is not None:
        value = value.number
    held, data = value.node.node.value, s.part(DataValues)
    found = [(number, data.numbers.get(number)) for number in numbers_in(held) if number in data.steps]
    if value.python_type() is bool or any(known is None for _, known in found):
        return None
    own = [known for number, known in found if number in read or id(known.tensor.torch_arg(s)) in made]  # type: ignore[union-attr]
    if not own:
        return value
    single = isinstance(held, Symbol) or (isinstance(held, Real) and held.op == "given")
    tensor = own[0].tensor if own[0] is not None and own[0].dim is None and single else None
    if tensor is None and not isinstance(held, Given):
        return data.formulas.get(held)
    is_same = isinstance(tensor, Tensor) and s.recorder.node_of(tensor.fake) is own[0].node  # type: ignore[union-attr]
    return tensor if is_same else None


def hold_formula(s: CaptureState, value: Value | None, read: set[object]) -> None:
    """Let a tensor have a number that is computed from one that the side has `read`, or a size; call it in the side.
    The same for items of tuples, which a side may return, and for texts."""
    held_by = value.items(s) if isinstance(value, Tuple) else value.args if isinstance(value, Deferred) else ()
    for item in held_by:
        hold_formula(s, item, read)
    number = value.number or value if isinstance(value, Symbolic) else None
    if number is None or number.python_type() is bool:
        return
    held, data = number.node.node.value, s.part(DataValues)
    is_item = isinstance(held, Symbol) and held in data.numbers and data.numbers[held].dim is None
    if not is_item and not read.isdisjoint(numbers_in(held)) and held not in data.formulas:
        dtype = s.const(NUMBERS[number.python_type()])
        data.formulas[held] = record(s, torch.full, [s.const(()), number], {"dtype": dtype})


def read_by(calls: Sequence[TorchCall]) -> set[object]:
    """The numbers that calls read of tensors, and the sizes of their results that data decide."""
    results = [call.result for call in calls if isinstance(call.result, torch.SymInt | torch.SymFloat)]
    numbers = {number for result in results for number in numbers_in(result.node.value)}
    return numbers.union(*map(new_symbols, calls))


def numbers_of_truth(value: Symbolic) -> set[object]:
    """The numbers that decide a truth value."""
    truths, found = [value.node.node.value], set[object]()
    while truths:
        truth = truths.pop()
        if isinstance(truth, AllOf | AnyOf):
            truths += truth.parts
        elif isinstance(truth, Relation):
            found |= truth.free_symbols()
    return found


def numbers_in(value: object) -> Iterator[Symbol | Given]:
    if isinstance(value, Real):
        yield from value.givens()
    if isinstance(value, Real | Expr):
        yield from value.free_symbols()


def number_in(s: CaptureState, tensor: Value, kind: type) -> Value:
    """The number that a result of the `cond` has, which one side alone leaves."""
    with none_needed(s):
        plain = record(s, "to", [record(s, "detach", [tensor], {}), s.const(NUMBERS[kind])], {})
        return record(s, "reshape", [plain, s.const(())], {}).get_attr(s, "item").call(s, [], {})


def held_by_side(joining: Joining, s: CaptureState, side: int, value: Value) -> Value:
    """`of_side` of a value that exists."""
    return cast(Value, joining.of_side(s, value, side))


def as_growth(state: object) -> Growth:
    return state if isinstance(state, Growth) else Growth(cast(list[Value], state), [], [])


def added_by_sides(meeting: Meeting) -> tuple[list[Value], list[Value]]:
    """What each of the sides has added to a list. Raises NotNested where they did something else."""
    before = as_growth(meeting.change.before)
    left, right = [as_growth(state).added_to(before) for state in (meeting.left, meeting.right)]
    if left is None or right is None:
        raise NotNested(LENGTH_CHANGED)
    return left, right


def are_pairs(left: Sequence[Value], right: Sequence[Value]) -> bool:
    return len(left) == len(right) and not any(isinstance(item, OneSidedItem | Spread) for item in (*left, *right))


def note_added(joining: Joining, s: CaptureState, left: Sequence[Value], right: Sequence[Value]) -> None:
    """What the sides add to a list."""
    if are_pairs(left, right):
        for both in zip(left, right, strict=True):
            joining.note(s, *both, exact=False)
    elif joining.choose_number is not None or s.policy.whole:
        raise NotNested(LENGTH_CHANGED)
    else:
        joining.chooses = True
        for side, items in enumerate((left, right)):
            for item in items:
                joining.note_alone(s, item, side)


def items_added(joining: Joining, s: CaptureState, left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
    """What stands behind the branch for what the sides add to a list."""
    if are_pairs(left, right):
        return [cast(Value, joining.build(s, *both)) for both in zip(left, right, strict=True)]
    assert joining.need is not None and joining.condition is not None
    made_at, step = joining.need.made_at, joining.need.step
    was_read = s.needed.get(made_at) in (LENGTH_CHANGED, LENGTH_READ)
    need = None if was_read else ValueNeeded(made_at, step, LENGTH_CHANGED)
    return [
        OneSidedItem(joining.condition, side == LEFT, held_by_side(joining, s, side, item), need)
        for side, items in enumerate((left, right))
        for item in items
    ]


def note_messages(s: CaptureState, joining: Joining, sides: Sequence[SideChanges]) -> None:
    """The values of what the sides print, log or warn of."""
    if s.policy.whole and any(side.messages for side in sides):
        raise NotNested(CHANGES)
    for number, side in enumerate(sides):
        for message in side.messages:
            joining.chooses = True
            for value in message.values():
                joining.note_alone(s, value, number)


def write_messages(s: CaptureState, joining: Joining, sides: Sequence[SideChanges]) -> None:
    """Behind the region, that of the side which was taken is written."""
    for number, side in enumerate(sides):
        for message in side.messages:
            made = message.replaced(partial(held_by_side, joining, s, number))
            s.effects.note(OneSided(cast(Value, joining.condition), number == LEFT, made))


def parts(s: CaptureState, value: Value) -> list[Value | None]:
    """What a value that one side has made consists of. Raises NotNested where that is not known."""
    if isinstance(value, Tuple | List):
        return list(value.items(s))
    if isinstance(value, Dict) and type(value.items(s)) is dict:
        return [item for _, item in value.items(s).values()]
    if isinstance(value, Choice):
        return [value.condition, value.left, value.right]
    if isinstance(value, Deferred):
        return list(value.args)
    if isinstance(value, OneSidedItem):
        return [value.condition, value.item]
    if isinstance(value, Spread):
        return [value.made]
    if isinstance(value, Object) and value.original is MISSING and type(value.attrs) is dict and value.foreign is None:
        return [*value.attrs.values(), value.native]
    raise NotNested("it leaves a new object in one that existed before")


def unlike(a: Tensor, b: Tensor) -> str | None:
    """Why two tensors cannot be one result."""
    if type(a.fake) is not FakeTensor or type(b.fake) is not FakeTensor or a.python_type() is not b.python_type():
        return "its results are of different classes"
    left, right = a.fake.storage_view.spec, b.fake.storage_view.spec
    if left.dtype is not right.dtype or left.device != right.device or left.rank != right.rank:
        return f"its results differ: {left} and {right}"
    return None


def equal_constants(s: CaptureState, a: Value | None, b: Value | None) -> bool:
    if a is None or b is None or not (a.is_constant and b.is_constant):
        return False
    left, right = a.constant(s), b.constant(s)
    return type(left) is type(right) and type(left) in EXACT and repr(left) == repr(right)
