"""Room for the frames of deep calls.

    @with_frame_room
    def compile(...): ...        hundreds of frames deep: a handler of an opcode runs the frame of a callee, and so on

CPython keeps frames in chunks of 16 KiB and returns a chunk to the system when its last frame ends. Where a loop's
calls begin just before the end of a chunk, each maps memory, faults on its first page and unmaps it. A chunk is as
large as its first frame needs, so a frame that asks for a deep stack gives those above it the rest of a large one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

STACK = 17_000
"""Slots, of 8 bytes: just over half of a chunk of 256 KiB. Only what is used of it becomes memory."""


def with_frame_room(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, called with room for some 600 frames."""

    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=STACK)
    return wraps(function)(call)
