"""Classes of `kiln.support.records` are what `dataclasses` would make of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, ClassVar

import pytest

from kiln.support.records import dataclass, made_fast

Decorator = Callable[..., Any]


def classes(dataclass: Decorator, slots: bool, is_frozen: bool) -> dict[str, Any]:
    frozen: Any = partial(dataclass, frozen=is_frozen, slots=slots)

    @frozen
    class Point:
        x: int
        y: int = 2
        note: str = field(default="", compare=False, repr=False)
        items: list[int] = field(default_factory=list, hash=False)
        size: ClassVar[int] = 3

    @frozen
    class Named(Point):
        """A text."""

        name: str = field(default="p", kw_only=True)
        total: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    @frozen
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    @partial(frozen, eq=False)
    class Identity:
        x: int

    @frozen
    class Empty:
        pass

    class Plain(Point):
        pass

    return {made.__name__: made for made in (Point, Named, Own, Identity, Empty, Plain)}


EXPRESSIONS = [
    *("Point(1)", "Point(1, 3, 'n', [4])", "Point(y=1, x=2)", "Point()", "Point(1, 2, 3, 4, 5)", "Point(z=1)"),
    *("Point(1) == Point(1, note='other')", "Point(1) == Point(2)", "Point(1) == 1", "Point(1) != Named(1)"),
    *("hash(Point(1)) == hash(Point(1, items=[3]))", "Named(1).total", "Named(1, name='q')"),
    *("Own(1) == Own(2)", "Own(1)", "hash(Own(1)) == hash(Own(1))", "Identity(1) == Identity(1)", "Empty()"),
    *("Empty() == Empty()", "Point.__match_args__", "Point.size", "Named.__doc__", "Point.__slots__", "Point.x"),
    *("setattr(Point(1), 'x', 2)", "delattr(Point(1), 'x')", "vars(Point(1))", "Named(1, 2, '', [], 'q')"),
    *("setattr(Plain(1), 'x', 2)", "replace(Named(1), x=4)", "replace(Point(1), z=4)", "asdict(Point(1))"),
    *("[f.name for f in fields(Named)]", "copy(Named(1, name='q'))", "deepcopy(Point(1, 2, '', [3]))", "Plain(1)"),
    *("sorted({Point(1): 1, Point(1): 2}.values())", "Point(1).__init__.__qualname__", "Named(1).__eq__.__name__"),
]  # fmt: skip


OTHER_NAMES = ["setattr(Point(1), 'z', 2)", "setattr(Plain(1), 'z', 2)", "delattr(Plain(1), 'z')"]
"""With slots, the standard library's method asks for `super` of a class that is gone."""


def outcome(expression: str, names: dict[str, Any]) -> str:
    tools = {name: getattr(dataclasses, name) for name in ("fields", "replace", "asdict")}
    try:
        return str(eval(expression, {**names, **tools, "copy": copy.copy, "deepcopy": copy.deepcopy}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("slots", [True, False])
def test_they_are_as_those_of_the_standard_library(slots: bool, frozen: bool) -> None:
    ours, theirs = classes(made_fast, slots, frozen), classes(dataclasses.dataclass, slots, frozen)
    for expression in EXPRESSIONS + ([] if slots and frozen else OTHER_NAMES):
        assert outcome(expression, ours) == outcome(expression, theirs), expression


@dataclass(frozen=True, slots=True)
class Kept:
    x: int
    y: tuple[int, ...] = ()


def test_they_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))


def test_classes_with_equal_forms_keep_their_own_names_and_defaults() -> None:
    @dataclass(frozen=True, slots=True)
    class Size:
        width: int
        height: int = field(default=2, kw_only=True)

    @dataclass(frozen=True, slots=True)
    class Range:
        low: int
        high: int = field(default=9, kw_only=True)

    assert (Size(1).height, Size(width=1, height=3).height) == (2, 3)
    assert (Range(1).high, Range(low=1, high=3).high) == (9, 3)
    assert Size(1) != Range(1)
    assert Size.__init__.__code__.co_varnames == ("self", "width", "height")


def test_classes_with_other_options_are_those_of_the_standard_library() -> None:
    class Open:
        x: int

    fast: Decorator = made_fast
    assert fast(order=True)(Open)(1) < Open(2)
