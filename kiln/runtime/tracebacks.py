"""Entries of tracebacks for calls that were inlined: the lines of the program, without its variables."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType, TracebackType

Line = tuple[str, int, str]
"""File, number, and the qualified name of the function."""


def suspended() -> Iterator[None]:
    yield


def frame_at(file: str, number: int, name: str) -> FrameType:
    """Of a generator that has not begun: other frames would keep those of their callers, with all variables."""
    short = name.rpartition(".")[2]
    code = suspended.__code__.replace(co_filename=file, co_firstlineno=number, co_name=short, co_qualname=name)
    frame: FrameType = FunctionType(code, {})().gi_frame
    return frame


def traceback_of(lines: tuple[Line, ...]) -> TracebackType | None:
    """The traceback, whose first entry is the first line."""
    found = None
    for file, number, name in reversed(lines):
        found = TracebackType(found, frame_at(file, number, name), -1, number)
    return found


def insert_calls(error: BaseException, lines: tuple[Line, ...]) -> None:
    """Put inlined calls behind the entry of the frame that ran their code."""
    entry, calls = error.__traceback__, traceback_of(lines)
    assert entry is not None and calls is not None
    last = calls
    while last.tb_next is not None:
        last = last.tb_next
    last.tb_next, entry.tb_next = entry.tb_next, calls


def drop_entry(error: BaseException) -> None:
    """Forget the frame that called a resume function, if the traceback goes on in it: both are one frame of eager."""
    entry = error.__traceback__
    if entry is not None and entry.tb_next is not None:
        error.__traceback__ = entry.tb_next
