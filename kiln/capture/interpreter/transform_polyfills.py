"""Parts of `torch.func` that are interpreted in a form of their own: torch's trace, or import its compiler.

out, push = linearize(f, x)     push(t)  =  jvp(f, (x,), (t,))[1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def autograd_grad(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor] | None = None,
    retain_graph: bool = False,
    create_graph: bool = True,
) -> tuple[Tensor, ...]:
    """Gradients of those outputs that have them; zeros where an input is not used."""
    tangents = [None] * len(outputs) if grad_outputs is None else grad_outputs
    pairs = [(out, tangent) for out, tangent in zip(outputs, tangents, strict=True) if out.requires_grad]
    if not pairs:
        return tuple([torch.zeros_like(x) for x in inputs])
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        list(inputs),
        None if grad_outputs is None else [tangent for _, tangent in pairs],  # type: ignore[misc]
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    return tuple([torch.zeros_like(x) if grad is None else grad for grad, x in zip(found, inputs, strict=True)])


def linearize(func: Callable[..., object], *primals: object) -> tuple[object, Callable[..., object]]:
    """The output, and the function of tangents."""

    def push(*tangents: object) -> object:
        result: tuple[object, ...] = torch.func.jvp(func, primals, tangents)
        return result[1]

    return func(*primals), push


def functionalize(func: Callable[..., object], *, remove: str = "mutations") -> Callable[..., object]:
    """The recording is functional anyway."""
    return func


def index_by_tensors(
    mode: object,
    function: Callable[..., object],
    types: tuple[type, ...],
    args: tuple[Tensor, Tensor | int | tuple[Tensor | int, ...]],
    kwargs: dict[str, object] | None = None,
) -> object:
    """The mode under which `x[i]` takes a tensor `i` of rank 0 as an index and not as a number."""
    if function is torch.Tensor.__getitem__:
        x, key = args
        parts = key if isinstance(key, tuple) else (key,)
        if all(isinstance(part, (torch.Tensor, int)) for part in parts):
            indices = [
                torch.tensor(part, dtype=torch.int64, device=x.device) if isinstance(part, int) else part
                for part in parts
            ]
            return torch.ops.aten.index(x, indices)
    return function(*args, **(kwargs or {}))
