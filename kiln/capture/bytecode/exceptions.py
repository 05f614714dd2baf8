"""The exception table of a code object: which handler guards which instructions.

    co_exceptiontable  =>  (ExceptionRange(start=4, end=18, target=30, depth=1, lasti=True), ...)

Offsets are in code units (instruction words). The format is CPython's (`Objects/exception_handling_notes.txt`):
entries of four variable-length integers, six bits per byte, high bits first.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import final

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class ExceptionRange:
    """Code units `start <= unit < end` are guarded by the handler at `target`.

    The handler is entered with `depth` values left on the stack, the offset of the faulting
    instruction if `lasti`, and the exception.
    """

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def exception_ranges(code: CodeType) -> tuple[ExceptionRange, ...]:
    """The exception table of `code`, in its order (ranges do not overlap)."""
    return tuple(_ranges(iter(code.co_exceptiontable)))


def _ranges(data: Iterator[int]) -> Iterator[ExceptionRange]:
    for first in data:
        start = _varint(first, data)
        length = _varint(next(data), data)
        target = _varint(next(data), data)
        depth_lasti = _varint(next(data), data)
        yield ExceptionRange(start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1))


def _varint(byte: int, data: Iterator[int]) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(data)
        value = value << 6 | byte & 63
    return value
