"""`isinstance` of a protocol: members that an object has itself, by delegation, or as None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest
import torch
from torch import Tensor, nn

import kiln


@runtime_checkable
class Encodes(Protocol):
    def encode(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class Sized(Protocol):
    width: int

    def encode(self, x: Tensor) -> Tensor: ...


class Unchecked(Protocol):
    def encode(self, x: Tensor) -> Tensor: ...


class Method:
    width = 3

    def encode(self, x: Tensor) -> Tensor:
        return x


class Blocked(Method):
    encode = None  # type: ignore[assignment]


class Own:
    def __init__(self, encode: Callable[[Tensor], Tensor] | None) -> None:
        self.encode = encode


class Named(Sized):
    """Says that it has the members, and lacks one."""

    def encode(self, x: Tensor) -> Tensor:
        return x


class Delegates:
    def __init__(self, to: object) -> None:
        self.to = to
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.to, name)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Identity()


OBJECTS: dict[str, Callable[[], object]] = {
    "method": Method,
    "blocked": Blocked,
    "own": lambda: Own(torch.relu),
    "own None": lambda: Own(None),
    "named": Named,
    "module": Net,
    "no module": lambda: nn.Identity(),
    "delegates": lambda: Delegates(Method()),
    "delegates to nothing": lambda: Delegates(3),
}


@pytest.mark.parametrize("protocol", [Encodes, Sized])
@pytest.mark.parametrize("name", OBJECTS)
def test_members_of_protocols(name: str, protocol: type) -> None:
    def inside(x: Tensor) -> tuple[object, ...]:
        made = OBJECTS[name]()
        return x + 1, isinstance(made, protocol), getattr(made, "asked", None)

    def outside(x: Tensor, given: Any) -> tuple[object, ...]:
        return x + 1, isinstance(given, protocol), list(getattr(given, "asked", ()))

    x = torch.ones(2)
    assert kiln.compile(inside)(x)[1:2] == inside(x)[1:2]
    eager, compiled = OBJECTS[name](), OBJECTS[name]()
    run = kiln.compile(outside)
    for _ in range(2):
        assert run(x, compiled)[1:] == outside(x, eager)[1:]


def test_a_member_that_goes_is_seen() -> None:
    def f(x: Tensor, given: object) -> tuple[Tensor, bool]:
        return x + 1, isinstance(given, Encodes)

    run, given = kiln.compile(f), Own(torch.relu)
    assert run(torch.ones(2), given)[1]
    given.encode = None
    assert not run(torch.ones(2), given)[1]
    del given.encode
    assert not run(torch.ones(2), given)[1]
    given.encode = torch.relu
    assert run(torch.ones(2), given)[1]


def test_a_protocol_that_is_not_checkable_raises() -> None:
    with pytest.raises(TypeError, match="runtime_checkable"):
        kiln.compile(lambda x: (x + 1, isinstance(x, Unchecked)))(torch.ones(2))
