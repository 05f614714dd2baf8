"""Enums whose class statement is in the frame, and instances whose `__new__` calls that of a built-in class; attributes
and names of functions from outside, and of cached functions. Each program once broke the graph or could not be rebuilt behind a break."""

from __future__ import annotations

import time
import enum
import functools
from collections.abc import Callable
from typing import Any

import pytest

import kiln
from tests.faults.outcome import assert_like_python

# mypy: disallow_untyped_defs = False, check_untyped_defs = False
# ruff: noqa


def error(f, *a):
    try:
        return f(*a)
    except Exception as e:
        return type(e).__name__, str(e)


class Tagged(int):
    def __new__(cls, value, tag):
        made = super().__new__(cls, value)
        made.tag = tag
        return made

    def __repr__(self):
        return f"Tagged{int(self)}{self.tag}"


class Joined(str):
    def __new__(cls, *parts):
        return str.__new__(cls, "-".join(parts))


class Chosen(frozenset):
    def __new__(cls, *items):
        return super().__new__(cls, items)


def function(a, b=2):
    "text"


function.tag = 5


def counter():
    counter.n = getattr(counter, "n", 0) + 1
    return counter.n


def constructors() -> object:
    tagged, joined = Tagged(3, "x"), Joined("a", "b")
    return (
        (tagged, tagged + 1, tagged.tag, tagged is Tagged(3, "x"), {tagged: 1}[3], tagged.__dict__),
        (joined, joined.upper(), len(joined), joined == "a-b", Chosen(1, 2), Chosen(1) == {1}),
        (int.__new__(int, "5"), float.__new__(float, "2.5"), error(int.__new__, str), error(int.__new__, bool, 1)),
    )


def integer_flags() -> object:
    class Right(enum.IntFlag):
        READ = 4
        WRITE = 2

    return Right.READ | Right.WRITE, int(Right(6)), Right.READ in Right(6), Right.READ + 1, list(Right), Right


def members_of_other_types() -> object:
    class Name(enum.StrEnum):
        A = enum.auto()
        B = "q"

    class Code(bytes, enum.Enum):
        def __new__(cls, value, label):
            made = bytes.__new__(cls, [value])
            made._value_, made.label = value, label
            return made

        X = 1, "x"

    class Half(float, enum.Enum):
        H = 0.5

    found = [name.value for name in Name]
    return Name.A + "x", Name("q").name, found, str(Name.B), Code.X.label, Code(1).name, bytes(Code.X), Half.H * 2, Half


def functional_forms() -> object:
    plain, integers = enum.Enum("Plain", "A B"), enum.IntEnum("Integers", {"A": 3, "B": 5})
    return [member.value for member in plain], repr(plain.B), integers.A + 1, integers(5).name


DICT_OF_CLASS, MRO_OF_CLASS = (type.__dict__[name].__get__ for name in ("__dict__", "__mro__"))


def attributes_read_statically() -> object:
    class Base:
        number: int = 4

    class Meta(type):
        pass

    class Derived(Base, metaclass=Meta):
        text = "x"

    names = [kind.__name__ for kind in MRO_OF_CLASS(Derived)]
    return names, DICT_OF_CLASS(Base)["number"], "number" in DICT_OF_CLASS(Derived), DICT_OF_CLASS(Derived)["text"]


def enums_behind_a_break() -> object:
    class Kind(enum.Enum):
        A = 4
        B = 2

        def double(self):
            return self.value * 2

    class Node:
        root = None

    Node.root = Node()
    Node.all = [Node.root, Node]
    kinds = {Kind.A: 1}
    time.sleep(0)
    same = Node.all[0] is Node.root, Node.all[1] is Node, type(Node.root) is Node
    return Kind.A.double(), kinds[Kind.A], Kind["B"] is Kind(2), repr(Kind.A), Kind, same


def attributes_of_functions() -> object:
    function.found = [1]
    function.found.append(2)
    found = function.found
    function.__dict__["other"] = 3
    function.tag += 0
    function.gone = 1
    del function.gone
    return found, function.other, sorted(function.__dict__), function.tag, hasattr(function, "gone")


def names_of_functions() -> object:
    function.__name__, function.__doc__ = "renamed", "changed"

    def made():
        pass

    made.a = made.b = 1
    del made.a
    wrong = error(setattr, function, "__name__", 3)
    return function.__name__, function.__doc__, function.__qualname__, wrong, made.__dict__


def caches() -> object:
    @functools.lru_cache(maxsize=2)
    def doubled(x):
        return x * 2

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    for x in (1, 2, 1, 3, 2, 1):
        doubled(x)
    found = doubled.cache_info()
    doubled.cache_clear()
    return found, doubled.cache_info(), doubled.cache_parameters(), fibonacci(20), fibonacci.cache_info().hits


def names() -> object:
    class Kind(enum.Enum):
        A = 1

        def double(self):
            return self.value * 2

    class Named:
        def __dir__(self):
            return ["b", "a"]

    return dir(Kind), dir(Kind.A), dir(Named()), dir([]), dir(int) == dir(1), dir(type)[:3]


def ordered() -> object:
    @functools.total_ordering
    class Number:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            return self.value < other.value

        def __eq__(self, other):
            return self.value == other.value

    return Number(1) <= Number(2), Number(2) >= Number(1), Number(1) > Number(2), Number.__ge__.__name__


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__annotations__", 0) == {"return": "object"}]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_made_inside_is_as_in_python(program: Callable[[], Any]) -> None:
    assert_like_python(program, breaks=program is enums_behind_a_break)


def test_a_count_in_an_attribute_of_a_function_is_an_input() -> None:
    compiled = kiln.compile(counter, backend="eager", options={"cache": False})
    assert [compiled() for _ in range(12)] == list(range(1, 13))
    assert kiln.report_of(compiled).compiles <= 3
