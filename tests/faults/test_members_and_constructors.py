"""Members of enums whose classes define or gain special methods; surplus arguments of `object`'s constructors."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.runtime.guards.reference import class_content, content_of
from tests.faults.outcome import assert_like_eager

X = torch.linspace(-1.0, 1.0, 4)
LIMIT = 3


class Flags(enum.Flag):
    A = 1
    B = 2


class Ordered(enum.Enum):
    A = 1
    B = 2

    def __lt__(self, other: Ordered) -> bool:
        return bool(self.value < other.value + LIMIT)

    def __add__(self, other: int) -> int:
        return int(self.value) + LIMIT

    def __radd__(self, other: int) -> int:
        return int(self.value) + 100

    def __neg__(self) -> int:
        return LIMIT


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 4


def of_members(x: Tensor) -> Any:
    y = x * (Ordered.A + 1) + (3 + Ordered.B) + -Ordered.A
    if Ordered.B < Ordered.A:
        y = y * 2
    if Flags.A in (Flags.A | Flags.B):
        y = y + 1
    if Level.LOW == 1:
        y = y + 3
    return y + Level.HIGH, Flags.A | Flags.B


def never(self: Any, other: Any) -> bool:
    return False


CHANGES: list[tuple[Any, str, Any]] = [
    (None, "", None),
    (Flags, "__contains__", never),
    (Flags, "__or__", lambda self, other: 5),
    (Level, "__eq__", never),
    (Ordered, "__neg__", lambda self: 7),
    (Level.HIGH, "_name_", "no name"),
]


@pytest.fixture(params=CHANGES, ids=lambda change: f"{change[0]} {change[1]}")
def change(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    owner, name, value = request.param
    had = vars(owner).get(name) if owner is not None else None
    yield (lambda: setattr(owner, name, value)) if owner is not None else (lambda: None)
    if owner is None:
        return
    if had is None:
        delattr(owner, name)
    else:
        setattr(owner, name, had)


def test_members_of_enums(change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kiln.compile(of_members, backend="eager", fullgraph=True)
    assert_like_eager(compiled, of_members, X)
    change()
    assert_like_eager(compiled, of_members, X)
    monkeypatch.setattr(f"{__name__}.LIMIT", 4)
    assert_like_eager(compiled, of_members, X)


class Plain:
    pass


class Child(Plain):
    def __init__(self, size: int) -> None:
        super().__init__(size)  # type: ignore[call-arg]


class Hooked(Plain):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __init__(self, size: int) -> None:
        super().__init__(size)  # type: ignore[call-arg]


class Maker:
    def __new__(cls, *args: int) -> Any:
        return super().__new__(cls, *args)


class Silent:
    def __new__(cls, *args: int) -> Any:
        return super().__new__(cls)


CONSTRUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "no constructor": lambda x: (Plain(2), x)[1],  # type: ignore[call-arg]
    "super().__init__": lambda x: (Child(2), x)[1],
    "with __getattr__": lambda x: (Hooked(2), x)[1],
    "super().__new__": lambda x: (Maker(2), x)[1],
    "arguments only of __new__": lambda x: (Silent(2), x)[1],
    "object.__init__": lambda x: (object.__init__(Plain(), 2), x)[1],  # type: ignore[call-arg]
    "an exception": lambda x: x * len(RuntimeError(1, 2).args),
}


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_surplus_arguments(name: str) -> None:
    program = CONSTRUCTIONS[name]
    assert_like_eager(kiln.compile(program, backend="eager"), program, X)


def test_a_constructor_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    program = CONSTRUCTIONS["no constructor"]
    compiled = kiln.compile(program, backend="eager")
    assert_like_eager(compiled, program, X)
    monkeypatch.setattr(Plain, "__init__", lambda self, size: None)
    assert_like_eager(compiled, program, X)


class Read:
    def __getattribute__(self, name: str) -> Any:
        return 7.0 if name == "gain" else object.__getattribute__(self, name)


def test_an_attribute_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Read()

    def program(x: Tensor) -> Tensor:
        return x * getattr(read, "missing", 5.0)

    compiled = kiln.compile(program, backend="eager")
    assert_like_eager(compiled, program, X)
    monkeypatch.setattr(read, "missing", 9.0, raising=False)
    assert_like_eager(compiled, program, X)
    monkeypatch.undo()
    monkeypatch.setattr(Read, "missing", 2.0, raising=False)
    assert_like_eager(compiled, program, X)


@pytest.mark.parametrize("member", ["_buffers", "_parameters"])
def test_a_module_without_its_tables(member: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    compiled = kiln.compile(net, backend="eager")
    compiled(X)
    vars(net)[member] = None

    def by_name(x: Tensor) -> Tensor:
        found: Tensor = getattr(net, "0")(x)
        return found

    assert_like_eager(kiln.compile(by_name, backend="eager"), by_name, X)


def test_the_name_of_a_class_whose_member_has_lost_its_value() -> None:
    class Level(enum.Enum):
        LOW, HIGH = 1, 2

    before = class_content(Level)
    del Level.HIGH._value_
    assert class_content(Level) not in (before, "")
    assert content_of(Level.HIGH) != content_of(Level.LOW)
