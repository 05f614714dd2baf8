"""Assumed values of symbolic sizes, for heuristics only: a program compiled for all sizes has to favour some.

size_hint(768)             768
size_hint(8*s0)            512         every symbol counts as 64
large_size_hint(8*s0)      32768       every symbol counts as 4096: could this be large?
"""

from __future__ import annotations

from typing import final

from kiln.symbolic import Int, evaluate, is_static

ASSUMED_SIZE, ASSUMED_LARGE_SIZE = 64, 4096


@final
class _SameValue(dict[str, int]):
    """Every symbol has the same value."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def __missing__(self, name: str) -> int:
        return self.value


_ASSUMED, _ASSUMED_LARGE = _SameValue(ASSUMED_SIZE), _SameValue(ASSUMED_LARGE_SIZE)


def size_hint(value: Int) -> int:
    """A typical value of `value`."""
    return value if is_static(value) else evaluate(value, _ASSUMED)


def large_size_hint(value: Int) -> int:
    """A large but plausible value of `value`."""
    return value if is_static(value) else evaluate(value, _ASSUMED_LARGE)
