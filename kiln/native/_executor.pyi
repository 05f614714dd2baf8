"""Types of the native plan executor (csrc/executor)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

@final
class Executor:
    """A decoded plan, ready to be called with the plan's arguments.

    `addresses` maps kernel symbols to functions; `explain(kind, value, origin, detail)` makes the exception.
    `images` holds the kernels of a device: `kiln.runtime.kernels.Cubin.image()` by symbol.
    """

    def __init__(
        self,
        program: bytes,
        addresses: Mapping[str, int],
        constants: Sequence[torch.Tensor],
        explain: Callable[[int, int, str, str], BaseException],
        images: Mapping[str, tuple[str, str, bool, int, int, int, int, int, bytes]] = ...,
    ) -> None: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]: ...
    @property
    def name(self) -> str: ...

@final
class Region:
    """A differentiable region; made by `kiln.runtime.autograd.make_region`."""

    def __init__(
        self,
        *,
        name: str,
        num_inputs: int,
        forward: Callable[..., Sequence[Any]],
        make_backward: Callable[..., Callable[..., Sequence[Any]] | None],
        differentiate: Callable[..., Sequence[Any]] | None,
        accepts: Callable[..., bool] | None,
        results: Sequence[tuple[int, int, int, int, int]],
        saved: Sequence[tuple[int, int, int, int, tuple[int, ...] | None]],
        written: Sequence[tuple[int, int]],
        ends: Sequence[tuple[int, ...]],
        depends: Sequence[tuple[int, ...]],
        order: Sequence[int],
        parts: Sequence[int],
        detached: Sequence[int],
        reached: Sequence[int],
        drawn: Sequence[int],
        unread: Sequence[int],
        watched: Sequence[tuple[int, int, tuple[int, ...] | None, tuple[int, ...]]],
        optional_tangents: bool,
        no_second_derivative: str,
        no_wrapped_tangents: str,
        no_forward_mode: str,
        no_inner_gradient: str,
        no_second_hooks: str,
    ) -> None: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]: ...
    @property
    def name(self) -> str: ...

@final
class AutogradGraph:
    """What a backward from `roots` runs (with `wanted`: for the gradients of these), in the engine's order."""

    def __new__(cls, roots: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> AutogradGraph: ...
    @property
    def nodes(self) -> tuple[object, ...]:
        """As `grad_fn` and `next_functions` give them; those that accumulate come last."""
    @property
    def roots(self) -> tuple[tuple[int, int], ...]:
        """The node of each root, and its input; -1 where the backward does not run it."""
    @property
    def structure(self) -> bytes:
        """Edges, layouts of gradients and observers: equal for equal graphs."""
    @property
    def observed(self) -> tuple[bool, ...]:
        """For each node whether something besides autograd sees its gradients, or they are no plain tensors."""
    def splice(self, segments: tuple[tuple[object, ...], ...], /) -> tuple[tuple[object, int] | None, ...]:
        """Put a node in the place of each segment (members, slots, targets, prepare); where the roots lead then.

        `prepare(tangents, needed, releases)` returns a plan and its inputs, numbers for tangents.
        """
    def restore(self) -> None:
        """Undo `splice`."""

def leaf_observers(tensor: torch.Tensor, /) -> int:
    """How many hooks are registered on the node that accumulates the tensor's gradient (as DDP does)."""

def release_memory() -> int:
    """Free the memory that is kept for the next calls of plans; returns its bytes."""

def held_memory() -> tuple[int, int]:
    """Bytes of large buffers that plans have handed out, and bytes kept for the next calls."""

@final
class GraphReplay:
    """Checks the arguments of a recorded graph and makes its results; used by `kiln.runtime.cuda_graphs.recording`.

    `given`: the arguments it was recorded for; `used`: the same objects, or the buffers into which they are copied;
    `results`: what the recorded call returned; `constants`: tensors that results may be; `bumped`: arguments whose
    versions it raises.
    """

    def __new__(
        cls,
        given: tuple[Any, ...],
        used: tuple[Any, ...],
        results: tuple[Any, ...],
        constants: tuple[torch.Tensor, ...],
        bumped: tuple[int, ...],
        standalone: bool,
        /,
    ) -> GraphReplay: ...
    def check(self, args: tuple[Any, ...], /) -> int:
        """0: the arguments fit and no result is held; 1: one is held; 2: arguments have moved; 3: they do not fit."""

    def moved(self, args: tuple[Any, ...], /) -> list[int]:
        """Numbers of the arguments that are used in place and are in other memory than recorded."""

    def sources(self, args: tuple[Any, ...], /) -> list[torch.Tensor]:
        """Flat tensors over the arguments that are copied, without a history."""

    def held(self) -> list[torch.Tensor]:
        """The memory of results of the last replay that are still held, as tensors of bytes."""

    def hand_out(self, args: tuple[Any, ...], /) -> tuple[Any, ...]:
        """The results of the last replay."""

def give_memory(held: torch.Tensor, fresh: torch.Tensor, /) -> None:
    """The storage of `held` takes the memory of `fresh`, which has its contents and as many bytes."""

def take_report(index: int, /) -> tuple[int, str]:
    """The first error that kernels on CUDA device `index` have reported: a key of STATUS_ERRORS or 0, and where."""

def is_lent(value: object, /) -> bool:
    """Whether `value` is a tensor in the memory of a recorded graph."""

def cuda_problem() -> str:
    """Open the CUDA driver; why kernels cannot be launched, or an empty string."""

def current_stream(index: int) -> int:
    """The raw CUDA stream that torch has selected in this thread on a device."""

def use_null_device(used: bool) -> None:
    """Executors made from now on only note their CUDA kernels; their CUDA tensors are CPU tensors."""

def take_null_log() -> str:
    """What the null device noted since the last call, one line per event."""

def set_null_status(code: int) -> None:
    """As if a kernel on the null device had reported `code`."""
