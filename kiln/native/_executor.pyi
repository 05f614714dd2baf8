"""Types of the native plan executor (csrc/executor)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

@final
class Executor:
    """A decoded plan, ready to be called with the plan's arguments.

    `addresses` maps kernel symbols to functions; `explain(kind, value, origin, detail)` makes the exception.
    """

    def __init__(
        self,
        program: bytes,
        addresses: Mapping[str, int],
        constants: Sequence[torch.Tensor],
        explain: Callable[[int, int, str, str], BaseException],
    ) -> None: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]: ...
    @property
    def name(self) -> str: ...
    @property
    def num_steps(self) -> int: ...

@final
class Region:
    """A differentiable region; made by `kiln.runtime.autograd.make_region`."""

    def __init__(
        self,
        name: str,
        num_inputs: int,
        forward: Callable[..., Sequence[Any]],
        results: Sequence[tuple[int, int, int, int]],
        saved: Sequence[tuple[int, int, int, int]],
        written: Sequence[tuple[int, int]],
        backward: Callable[..., Callable[..., Sequence[Any]]],
        differentiate: Callable[..., Sequence[Any]] | None,
        no_second_derivative: str,
        optional_tangents: bool,
    ) -> None: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]: ...
    @property
    def name(self) -> str: ...

def release_memory() -> int:
    """Free the memory that is kept for the next calls of plans; returns its bytes."""

def held_memory() -> tuple[int, int]:
    """Bytes of large buffers that plans have handed out, and bytes kept for the next calls."""
