"""What can be observed of a value: contents, classes, layouts, aliases, autograd state; how two observations differ.

    x = torch.zeros(2); observe([x, x.view(2), x])
        =>  [list, [tensor 0 of memory 0, tensor 1 of memory 0, "same as 0"]]

An observation is a copy: what happens to the value later does not change it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.sweeps.compare import strides_of

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.memory_format)


@dataclass(frozen=True)
class TensorState:
    """A tensor, without its values, as it can be compared by `==`."""

    kind: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    memory: int
    """Number of its storage, by first appearance: equal numbers are aliases."""
    requires_grad: bool
    is_leaf: bool


@dataclass(frozen=True)
class Seen:
    """A value as a tree: `state` is compared by `==`, `parts` one by one, `values` within a tolerance."""

    state: Any
    parts: tuple[Seen, ...] = ()
    values: Tensor | None = None


def observe(value: object) -> Seen:
    return _Observer().of(value)


class _Observer:
    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.memories: dict[int, int] = {}
        self.kept: list[object] = []

    def of(self, value: Any) -> Seen:
        if isinstance(value, PLAIN) and type(value) in PLAIN:
            return Seen((type(value).__name__, None if isinstance(value, float) else value), (), _number(value))
        if isinstance(value, BaseException):
            return Seen(Raised(value))
        if id(value) in self.numbers:
            return Seen(("same as", self.numbers[id(value)]))
        if not isinstance(value, tuple | frozenset):
            self.numbers[id(value)] = len(self.numbers)
            self.kept.append(value)
        return Seen(self.state(value), tuple(map(self.of, parts_of(value))), values_of(value))

    def state(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
                return ("code", value.__qualname__)
            return (type(value).__name__,)
        dense = value.layout == torch.strided
        return TensorState(
            type(value).__name__, value.dtype, tuple(value.shape), tuple(strides_of(value)) if dense else (),
            value.storage_offset() if dense and value.numel() else 0, self.memory(value) if dense else -1,
            value.requires_grad, value.is_leaf,
        )  # fmt: skip

    def memory(self, value: Tensor) -> int:
        storage = value.untyped_storage()
        if not storage.nbytes():
            return -1
        self.kept.append(storage)
        return self.memories.setdefault(storage.data_ptr(), len(self.memories))


@dataclass(frozen=True)
class Raised:
    """An error: code that catches eager's class must catch what compiled code raises."""

    error: BaseException


def parts_of(value: Any) -> Iterator[Any]:
    """What a container or an object holds, in order."""
    if isinstance(value, Tensor | type):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield item
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=repr)
    elif hasattr(value, "__dict__") and not callable(value):
        yield from vars(value).items()


def values_of(value: Any) -> Tensor | None:
    if not isinstance(value, Tensor):
        return None
    value = value.detach()
    return (value if value.layout == torch.strided else value.to_dense()).resolve_conj().resolve_neg().clone()


def _number(value: Any) -> Tensor | None:
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else None


def differences(eager: Seen, ours: Seen, signed_zeros: bool = True, path: str = "result") -> Iterator[str]:
    """The places at which two observations differ."""
    if isinstance(eager.state, Raised) and isinstance(ours.state, Raised):
        if not isinstance(ours.state.error, type(eager.state.error)):
            yield f"{path}: {brief(ours)}, eager {brief(eager)}"
    elif eager.state != ours.state or len(eager.parts) != len(ours.parts):
        yield f"{path}: {brief(ours)}, eager {brief(eager)}"
    elif eager.values is not None and ours.values is not None and not close(ours.values, eager.values, signed_zeros):
        yield f"{path}: {ours.values.tolist()}, eager {eager.values.tolist()}"
    else:
        for number, (left, right) in enumerate(zip(eager.parts, ours.parts, strict=True)):
            yield from differences(left, right, signed_zeros, f"{path}.{number}")


def brief(seen: Seen) -> str:
    if isinstance(seen.state, Raised):
        return f"raises {seen.state.error!r}"
    return f"{seen.state} with {len(seen.parts)} parts" if seen.parts else str(seen.state)


def close(ours: Tensor, eager: Tensor, signed_zeros: bool) -> bool:
    """Within `assert_close`'s tolerance; signs of zeros and NaNs at the same places."""
    try:
        torch.testing.assert_close(ours, eager, equal_nan=True)
    except AssertionError:
        return False
    if not signed_zeros or not eager.is_floating_point():
        return True
    zeros = (ours == 0) & (eager == 0)
    return bool((ours.signbit() == eager.signbit())[zeros].all()) or not math.prod(eager.shape)
