"""Classes of the program that derive from containers, numbers and strings: what they override, and what they do not.

Each program once had another result when it was compiled, broke the graph, or failed inside of the compiler.
"""

from __future__ import annotations

import collections
import typing
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.outcome import assert_like_python

# mypy: disallow_untyped_defs = False, check_untyped_defs = False
# ruff: noqa


class Vector(typing.NamedTuple):
    x: int
    y: int = 2

    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)

    def __mul__(self, k):
        return Vector(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __neg__(self):
        return Vector(-self.x, -self.y)

    def __lt__(self, other):
        return "lt"

    def __eq__(self, other):
        return "eq"

    def __len__(self):
        return 17

    def __bool__(self):
        return False

    def __getitem__(self, i):
        return "item"

    def __contains__(self, i):
        return True

    def __iter__(self):
        return iter("it")

    def __hash__(self):
        return 3

    def __iadd__(self, other):
        return "iadd"


class Twice(collections.namedtuple("Twice", "a b")):
    def __new__(cls, a):
        return super().__new__(cls, a, a)

    def __eq__(self, other):
        return False

    __hash__ = tuple.__hash__


class Row(tuple):
    def total(self):
        return sum(self)


class Pair(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    def __add__(self, other):
        return Pair(self[0] + other[0], self[1] + other[1])

    @property
    def first(self):
        return self[0]


class Counted(tuple):
    def __init__(self, items):
        self.n = len(self)


class Frozen(frozenset):
    pass


class Changing(set):
    pass


def asking_super(base):
    """A class whose special methods call those of `base`, but for one more item."""

    class Asking(base):
        def __iter__(self):
            return super().__iter__()

        def __contains__(self, x):
            return super().__contains__(x)

        def __len__(self):
            return super().__len__() + 1

        def __eq__(self, other):
            return super().__eq__(other)

        if base in (tuple, frozenset, str):

            def __hash__(self):
                return super().__hash__()

        if base in (tuple, list, dict, str):

            def __getitem__(self, i):
                return super().__getitem__(i)

    Asking.__name__ = Asking.__qualname__ = f"Asking{base.__name__}"
    return Asking


AskingList, AskingTuple, AskingDict = asking_super(list), asking_super(tuple), asking_super(dict)
AskingSet, AskingFrozen, AskingText = asking_super(set), asking_super(frozenset), asking_super(str)


class Lying(list):
    def __iter__(self):
        return iter([1])


class LyingSet(set):
    def __len__(self):
        return 77

    def __contains__(self, item):
        return True

    def __iter__(self):
        return iter([1, 2])


class Number(int):
    def __add__(self, other):
        return Number(super().__add__(other))

    def __repr__(self):
        return f"Number({super().__repr__()})"

    def __index__(self):
        return 1

    def __bool__(self):
        return not super().__bool__()


class Loud(float):
    def __repr__(self):
        return "Loud"


VECTOR, TWICE, ROW, PAIR = Vector(1, 2), Twice(4), Row((1, 2, 3)), Pair(7, 8)
FROZEN, CHANGING = Frozen("abc"), Changing("abc")
LIST, TUPLE, DICT, SET = AskingList([5, 6]), AskingTuple((5, 6)), AskingDict(a=1), AskingSet({5, 6})
FROZEN_ASKING, TEXT = AskingFrozen({5, 6}), AskingText("ab")
LYING, LYING_SET, NUMBER, LOUD = Lying([5, 6]), LyingSet("ab"), Number(5), Loud(1.5)


def operators(a, b):
    found = [a + b, a * 2, 2 * a, -a, a < b, a == b, a != b, len(a), bool(a), a[0], 5 in a, list(a), hash(a)]
    found += [a.x, a._fields, tuple(a), [*a], sorted([a, b], key=lambda v: v.x)[0].x]
    c = a
    c += b
    p, q = a
    return found, c, p, q


def operators_of_named_tuples() -> object:
    return operators(Vector(1), Vector(2, 3)), operators(VECTOR, Vector(2, 3)), operators(Vector(2, 3), VECTOR)


def constructors_of_named_tuples() -> object:
    made = Twice(4)
    return TWICE == TWICE, TWICE == made, made, made != made, TWICE.a, hash(TWICE) == hash(made), f"{TWICE} {made!r}"


def tuples() -> object:
    made = Row([1, 2])
    made.tag = "x"
    first, *others = ROW
    return (
        (made.total(), made.tag, made.__dict__, ROW.total(), ROW[::-1], type(ROW[:]).__name__, ROW * 2, 2 * ROW),
        (ROW + ROW, ROW == (1, 2, 3), ROW < (1, 2, 4), ROW.index(2), ROW.count(1), repr(ROW), f"{made}", max(ROW)),
        (made, first, others, tuple(ROW), type(tuple(ROW)).__name__, dict([Row("ab")]), Row() == (), bool(Row())),
        (hash(ROW) == hash((1, 2, 3)), {ROW: 1}[1, 2, 3], (1, 2, 3) in {ROW}, Row((1, (2, 3)))[1], "%d %d" % made),
        (Row((1, 2)) in [(1, 2)], [Row((1,))] == [(1,)], Row((1,)) == [1], isinstance(ROW, (int, tuple))),
    )


class Couple(tuple):
    pass


def whole_slices_of_tuples() -> object:
    pair = Couple((1, 2))
    return type(pair[:]), type(pair[0:2]), type(pair.__getitem__(slice(None))), pair[:] == pair, type(pair + ()), pair


def constructors_of_tuples() -> object:
    a = Pair(1, 2) + Pair(3, 4)
    a.z = 5
    b, c = a
    counted = Counted([1, 2, 3])
    made = (a, a.first, a.z, b, c, a == Pair(4, 6), a < Pair(5, 5), list(a), {a: 1}[Pair(4, 6)], type(a).__name__)
    return made, PAIR == Pair(7, 8), Pair(7, 8) == PAIR, {PAIR: 1}[Pair(7, 8)], PAIR + Pair(1, 1), counted, counted.n


def frozen_sets() -> object:
    made = Frozen("abc")
    return (
        (made == FROZEN, FROZEN == made, FROZEN != made, Frozen("abc") == made, FROZEN <= Frozen("abcd")),
        (hash(FROZEN) == hash(made), {FROZEN: 1}[made], sorted(FROZEN.union("xy")), type(FROZEN | made).__name__),
        (sorted(FROZEN & Frozen("a")), made - FROZEN, Frozen("a"), CHANGING == Changing("abc"), CHANGING <= made),
    )


def items_of_derived_containers() -> object:
    made = AskingList([1, 2])
    return (
        (list(LIST), 5 in LIST, len(LIST), LIST[0], LIST.index(6), LIST == [5, 6], [*LIST], LIST + [1], tuple(LIST)),
        (list(made), 1 in made, len(made), made[0], made.index(2), made == [1, 2], made),
        (list(TUPLE), 5 in TUPLE, len(TUPLE), TUPLE[0], TUPLE.index(6), TUPLE == (5, 6), {TUPLE: 1}[TUPLE]),
        (list(DICT), "a" in DICT, len(DICT), DICT["a"], DICT == {"a": 1}, DICT.get("q", 2), dict(DICT)),
        (sorted(SET), 5 in SET, len(SET), SET == {5, 6}, SET | {7}),
        (sorted(FROZEN_ASKING), len(FROZEN_ASKING), AskingFrozen("a") == AskingFrozen("a")),
        ({FROZEN_ASKING: 1}[AskingFrozen({5, 6})], FROZEN_ASKING | {7}, 5 in FROZEN_ASKING),
    )


def what_iteration_hides() -> object:
    return (
        (LYING.index(6), LYING.count(5), LYING.copy(), 5 in LYING, list(LYING), LYING + [2], LYING == [5, 6]),
        (LYING * 2, repr(LYING), LYING[0:2], [0] + LYING, LYING < [5, 7]),
        (len(LYING_SET), 9 in LYING_SET, list(LYING_SET), LYING_SET == {"a", "b"}, sorted({1} | LYING_SET, key=str)),
    )


def texts() -> object:
    return (
        (list(TEXT), "a" in TEXT, len(TEXT), TEXT[0], TEXT == "ab", hash(TEXT) == hash("ab"), TEXT + "c", f"{TEXT}"),
        (AskingText("q") + "r", len(AskingText("q")), {TEXT: 1}["ab"], {"ab": 1}[TEXT], "%s" % TEXT, TEXT.upper()),
    )


def numbers() -> object:
    return (
        (NUMBER + 1, NUMBER == 5, repr(NUMBER), [0, 1, 2, 3, 4, 5, 6][NUMBER], bool(NUMBER), NUMBER < 6, NUMBER * 2),
        (Number(7) + 1, f"{NUMBER}", str(NUMBER), "%d" % NUMBER, int(NUMBER), [0, 1, 2][Number(2)], {NUMBER: 1}[5]),
        (LOUD + 1, LOUD == 1.5, f"{LOUD:.2f}", -LOUD, round(LOUD), "%s %.1f" % (LOUD, LOUD), LOUD.is_integer()),
    )


def missing_name() -> object:
    try:
        from math import nowhere
    except ImportError as error:
        return error.name, error.msg, type(error).__name__


def names_of_built_in_classes() -> object:
    return int.__module__, type.__module__, type.__doc__[:4], collections.OrderedDict.__module__, type.__name__


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__annotations__", 0) == {"return": "object"}]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_derived_containers_are_as_in_python(program: Callable[[], Any]) -> None:
    assert_like_python(program)
