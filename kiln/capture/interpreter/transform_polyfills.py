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
