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


def batched_grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None],
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad` with `is_grads_batched`: the first dimension of the gradients of outputs is mapped over."""
    given = (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
    used: list[bool] = []

    def of_one(*tangents: Tensor | None) -> tuple[Tensor, ...]:
        found = torch.autograd.grad(
            outputs,
            inputs,
            tangents,
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True if materialize_grads and allow_unused is None else allow_unused,
            materialize_grads=materialize_grads and allow_unused is False,  # an error
        )
        used.extend([grad is not None for grad in found])
        return tuple([grad for grad in found if grad is not None])

    dims = tuple([None if tangent is None else 0 for tangent in given])
    found = iter(torch.vmap(of_one, in_dims=dims)(*given))
    made = [next(found) if is_used else None for is_used in used]
    if materialize_grads:  # of an input that is not used: once
        leaves = (inputs,) if isinstance(inputs, Tensor) else inputs
        made = [
            torch.zeros_like(x, requires_grad=create_graph) if grad is None else grad
            for grad, x in zip(made, leaves, strict=True)
        ]
    return tuple(made)


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
