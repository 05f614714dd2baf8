"""`bytearray` made in the frame. Its contents are numbers that are known while tracing.

b = bytearray(b"ab"); b.append(99)       ByteArray(bytearray(b"abc"))
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import CaptureState, Codegen, Token, Value


@final
class ByteArray(Value):
    """A bytearray that only the frame knows; methods change `content`."""

    __slots__ = ("content",)

    def __init__(self, content: bytearray) -> None:
        self.content = content
        self.source = None

    def python_type(self) -> type:
        return bytearray

    def constant(self, s: CaptureState) -> bytearray:
        return bytearray(self.content)

    def torch_arg(self, s: CaptureState) -> object:
        raise self.unsupported("use in a torch call", "a tensor may share its memory")

    def key(self, s: CaptureState) -> Token:
        raise s.error(TypeError, "unhashable type: 'bytearray'")

    def emit(self, g: Codegen) -> None:
        g.body.const(bytearray)
        g.body.const(bytes(self.content))
        g.body.call(1)
        g.remember(self)
