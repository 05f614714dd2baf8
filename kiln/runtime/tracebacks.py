"""Tracebacks of exceptions that were raised while tracing: the lines of the program, without its variables."""

from __future__ import annotations

import sys
from types import FrameType, FunctionType, TracebackType

Line = tuple[str, int, str]
"""File, number, and the qualified name of the function."""


def own_frame() -> FrameType:
    return sys._getframe()


def traceback_of(lines: tuple[Line, ...]) -> TracebackType | None:
    """The traceback, whose first entry is the first line."""
    found = None
    for file, number, name in reversed(lines):
        code = own_frame.__code__.replace(
            co_filename=file, co_firstlineno=number, co_name=name.rpartition(".")[2], co_qualname=name
        )
        found = TracebackType(found, FunctionType(code, own_frame.__globals__)(), -1, number)
    return found
