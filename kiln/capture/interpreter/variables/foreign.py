"""What an instance made in the frame inherits from a class written in C, as its value asks for it."""

from __future__ import annotations

from typing import Protocol

from kiln.capture.interpreter.core import CaptureState, Codegen, Value
from kiln.capture.interpreter.pure import is_written_in_c


class ForeignPart(Protocol):
    """See `native_object.py`."""

    def read(self, name: str) -> Value:
        """A field."""

    def write(self, name: str, value: Value | None) -> bool:
        """Set a field, or delete it (None); whether it is one that can be set."""

    def plain(self) -> object:
        """The number or string that it is, MISSING if it is none."""

    def emit(self, value: Value, g: Codegen) -> None:
        """Push the instance without its dict, and remember it."""


def is_written(s: CaptureState, cls: type, *names: str) -> bool:
    """Whether one of the methods is written in Python."""
    found = [s.classes.lookup(cls, name) for name in names]
    return any(entry is not None and not is_written_in_c(entry[0]) for entry in found)
