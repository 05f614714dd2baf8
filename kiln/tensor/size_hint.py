"""Assumed values of symbolic sizes, for heuristics only: a program compiled for all sizes has to favour some.

size_hint(768)             768
size_hint(8*s0)            512         every symbol counts as 64
large_size_hint(8*s0)      32768       every symbol counts as 4096: could this be large?

with sizes_seen({"s0": 320, "u0": 4096}):
    size_hint(8*s0)        2560        larger, if the call that is compiled has shown so
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

from kiln.symbolic import Int, ShapeEnv, evaluate, is_static

ASSUMED_SIZE, ASSUMED_LARGE_SIZE = 64, 4096
SIZE_OF_DATA = 4096
"""Of a size that data decide: rows of a mask, edges, boxes. A loop for many that gets few costs little."""


@final
class _AtLeast(dict[str, int]):
    """The values of symbols, none of which is less than `value`."""

    def __init__(self, value: int, seen: Mapping[str, int]) -> None:
        super().__init__({name: max(value, size) for name, size in seen.items()})
        self.value = value

    def __missing__(self, name: str) -> int:
        return self.value


_Assumed = tuple[_AtLeast, _AtLeast]


def _assumed(seen: Mapping[str, int]) -> _Assumed:
    return _AtLeast(ASSUMED_SIZE, seen), _AtLeast(ASSUMED_LARGE_SIZE, seen)


_ASSUMED: ContextVar[_Assumed] = ContextVar("_ASSUMED", default=_assumed({}))  # noqa: B039  (it is not changed)


@contextmanager
def sizes_seen(seen: Mapping[str, int]) -> Iterator[None]:
    """Sizes of the call for which the code inside compiles, by the names of their symbols."""
    token = _ASSUMED.set(_assumed(seen))
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def seen_in(env: ShapeEnv | None) -> dict[str, int]:
    """The sizes of the call that an environment describes."""
    if env is None:
        return {}
    return {size.name: env.hint(size) if env.has_hint(size) else SIZE_OF_DATA for size in env.declared}


def size_hint(value: Int) -> int:
    """A typical value of `value`."""
    return value if is_static(value) else evaluate(value, _ASSUMED.get()[0])


def large_size_hint(value: Int) -> int:
    """A large but plausible value of `value`."""
    return value if is_static(value) else evaluate(value, _ASSUMED.get()[1])
