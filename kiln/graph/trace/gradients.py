"""`torch.autograd.grad` on fakes: the engine runs under the recording mode, so its operations join the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_run_backward = torch.autograd.Variable._execution_engine.run_backward
Tensors = Tensor | Sequence[Tensor]


def gradients(
    outputs: Tensors,
    inputs: Tensors | Mapping[str, Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> object:
    """torch.autograd.grad, without the checks of sizes that load torch's own symbolic shapes."""
    if is_grads_batched or not only_inputs:
        raise NotImplementedError("batched gradients are not recorded")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    roots = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    named = inputs if isinstance(inputs, Mapping) else None
    leaves = tuple(named.values()) if named is not None else as_tuple(inputs)  # type: ignore[arg-type]
    given = (grad_outputs,) if isinstance(grad_outputs, Tensor) else grad_outputs
    tangents = tuple(
        [_tangent(root, tangent) for root, tangent in zip(roots, given or [None] * len(roots), strict=True)]
    )
    unused = bool(allow_unused) or materialize_grads
    found: Sequence[Tensor | None] = _run_backward(
        roots,
        tangents,
        create_graph if retain_graph is None else retain_graph,
        create_graph,
        leaves,
        allow_unreachable=unused,
        accumulate_grad=False,
    )
    if materialize_grads:
        found = [
            torch.zeros_like(x, requires_grad=create_graph) if grad is None else grad
            for grad, x in zip(found, leaves, strict=True)
        ]
    return dict(zip(named, found, strict=True)) if named is not None else tuple(found)


def as_tuple(tensors: Tensors) -> tuple[Tensor, ...]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _tangent(root: Tensor, tangent: Tensor | None) -> Tensor | None:
    if tangent is not None:
        if tangent.shape != root.shape:
            raise RuntimeError(f"Mismatch in shape: grad_output has {tangent.shape}, output has {root.shape}")
        return tangent
    if not root.requires_grad:
        return None
    if root.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    return torch.ones_like(root, memory_format=torch.preserve_format)
