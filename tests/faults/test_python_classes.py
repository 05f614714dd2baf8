"""What classes, descriptors and special methods do in plain Python: found by CPython's own tests."""

from __future__ import annotations

import collections
import enum
import functools
import operator
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kiln
from tests.faults.outcome import assert_like_eager


class Base(enum.Enum):
    @enum.property
    def first(self) -> str:
        return "of a member"


class Member(Base):
    first = 1
    second = 2


class Backwards(dict[str, int]):
    def __iter__(self) -> Iterator[str]:
        return reversed(list(dict.keys(self)))

    def keys(self) -> Any:
        return list(self)


class EqualToNothing:
    def __eq__(self, other: object) -> bool:
        return False


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True


class Proxy:
    def __init__(self, target: object) -> None:
        object.__setattr__(self, "target", target)

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "target"), name)


class ClaimsToBeText:
    __class__ = str  # type: ignore[assignment]


class Number:
    def __divmod__(self, other: object) -> str:
        return "divmod"

    def __rdivmod__(self, other: object) -> str:
        return "rdivmod"

    def __add__(self, other: object) -> Any:
        return NotImplemented

    def __radd__(self, other: object) -> str:
        return "radd"


class Positive(Number):
    def __radd__(self, other: object) -> str:
        return "radd of the derived class"


class WithPartial:
    def collect(self, *args: int) -> tuple[int, ...]:
        return args

    seven = functools.partialmethod(collect, 7)


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


MISFITS: list[Any] = [getattr, len, iter, lambda: {}.get(), lambda: [].insert(1)]  # type: ignore


def failing() -> Exception:
    """As `assertRaises` keeps it."""
    try:
        raise ValueError(3)
    except ValueError as error:
        traceback.clear_frames(error.__traceback__)
        return error.with_traceback(None)


def changed_lists() -> tuple[Any, ...]:
    a = [4, 3, 2, 1]
    operator.delitem(a, 1)
    b = [4, 3, 2, 1]
    operator.setitem(b, slice(0, 2), [7])
    return a, b


def unused_local() -> Any:
    kept = 5
    time.sleep(0)
    return sorted(locals())


def grown_deque() -> tuple[Any, ...]:
    d = e = collections.deque([0])
    d += [1]
    return list(d), d is e


# fmt: off
PROGRAMS: dict[str, Callable[[], Any]] = {
    "a member that a property hides": lambda: (Member(Member.first) is Member.first, Member(1) is Member.first),
    "the value of the property": lambda: Member.first.first,
    "a class method written in C, of an instance": lambda: ({}.fromkeys("ab"), (1).from_bytes(b"a", "big")),
    "deque +=": grown_deque,
    "[].__iadd__": lambda: [1].__iadd__([2]),
    "{}.__ior__": lambda: {1: 2}.__ior__({3: 4}),
    "in: the item is asked": lambda: (EqualToAll() in [EqualToNothing()], EqualToNothing() in [EqualToAll()]),
    "in a deque": lambda: EqualToAll() in collections.deque([EqualToNothing()]),
    "dict of a mapping with its own order": lambda: list(dict(Backwards(a=1, b=2)).items()),
    "isinstance of a proxy": lambda: (isinstance(Proxy(1), int), isinstance(Proxy("a"), (list, str))),
    "isinstance asks __class__": lambda: (isinstance(ClaimsToBeText(), str), isinstance(ClaimsToBeText(), int)),
    "divmod": lambda: (divmod(Number(), 1), divmod(1, Number()), divmod(7, 2)),
    "a reflected operator of the same class": lambda: Number() + Number(),
    "a reflected operator of a derived class": lambda: (Number() + Positive(), 1 + Number()),
    "function.__get__": lambda: WithPartial.collect.__get__(WithPartial(), WithPartial)(7, 1),
    "a partial method": lambda: (WithPartial().seven(1), WithPartial.seven(WithPartial(), 2)),
    "__abstractmethods__": lambda: getattr(WithPartial, "__abstractmethods__", "none"),
    "arguments that do not fit": lambda: [raised(call) for call in MISFITS],
    "pairs of three": lambda: raised(lambda: dict([(1, 2, 3)])),  # type: ignore[list-item]
    "an exception without its traceback": lambda: failing().args,
    "a new enum": lambda: [member.name for member in enum.Enum("Made", "a b")],  # type: ignore[attr-defined]
    "operator.delitem": changed_lists,
    "locals() after a break": unused_local,
}
# fmt: on


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("error:.*KILN9")
@pytest.mark.filterwarnings("ignore:.*runs eager")
def test_like_python(name: str) -> None:
    assert_like_eager(kiln.compile(PROGRAMS[name], backend="eager"), PROGRAMS[name])
