"""`torch.autograd.grad` and `loss.backward()` on fakes: the engine runs under the recording mode.

    loss.backward()      5  function  accumulated_gradients  ((loss,), (None,), (w, b), (None, %w_grad), False, False)
                         returns the gradients that w and b have then; what w had is added to in place

The operations join the graph of the forward. In the log a backward is a function of the gradients that were there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node as Function
from torch.nn.modules._functions import BackwardHookFunction

from kiln.graph.trace.fake import FakeTensor

_run_backward = torch.autograd.Variable._execution_engine.run_backward
Tensors = Tensor | Sequence[Tensor]
OptionalTensors = Sequence[Tensor | None]


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


def accumulated_gradients(
    roots: Sequence[Tensor],
    tangents: OptionalTensors,
    leaves: Sequence[Tensor],
    before: OptionalTensors,
    retain_graph: bool,
    create_graph: bool,
    limited: bool,
    hooked: Sequence[Sequence[Tensor]] = (),
    of_results: Sequence[bool] = (),
) -> list[object]:
    """The gradients of `leaves`, which had `before`, after a backward. With `limited` the engine goes to them only.

    Behind these, for each node of `hooked_values`: the gradients of what it got, and of what it gave, or None. Those
    `of_results` of a module leave out gradients that nothing gives, as its hooks do; others make zeros of them.
    """
    given = tuple([_tangent(root, tangent) for root, tangent in zip(roots, tangents, strict=True)])
    by_engine = all(type(leaf) is FakeTensor for leaf in leaves)
    wanted = tuple(leaves) if limited or not by_engine else ()
    with observed(hooked, of_results) as seen:
        found = _run_backward(
            tuple(roots), given, retain_graph, create_graph, wanted, allow_unreachable=True, accumulate_grad=by_engine
        )
    if by_engine:
        return [*[leaf.grad for leaf in leaves], *seen]
    with torch.set_grad_enabled(create_graph):
        return [*[_accumulated(*each) for each in zip(leaves, before, found, strict=True)], *seen]


def hooked_values(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors behind a node of autograd's graph whose hooks see their gradients, as torch makes it for a module."""
    made: tuple[Tensor, ...] = super(torch.autograd.Function, BackwardHookFunction).apply(*tensors)  # type: ignore[misc]
    return made


def node_of(tensors: Sequence[Tensor]) -> Function:
    """The node that made them."""
    return next(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)


@contextmanager
def observed(hooked: Sequence[Sequence[Tensor]], of_results: Sequence[bool]) -> Iterator[list[OptionalTensors | None]]:
    """The gradients that the nodes get and give while this is open; None for those that the engine does not reach."""
    seen: list[OptionalTensors | None] = [None] * len(hooked)

    def see(number: int, given: OptionalTensors, back: OptionalTensors) -> OptionalTensors | None:
        seen[number] = (*given, *back)
        return tuple(back) if of_results[number] else None

    with ExitStack() as stack:
        for number, tensors in enumerate(hooked):
            stack.callback(node_of(tensors).register_hook(partial(see, number)).remove)
        yield seen


def _accumulated(leaf: Tensor, before: Tensor | None, new: Tensor | None) -> Tensor | None:
    """What autograd stores in `leaf.grad`: a tensor of its own, in the layout of the leaf."""
    if new is None:
        return before
    if before is not None:
        return before + new if torch.is_grad_enabled() else before.add_(new)
    return torch.empty_like(leaf).copy_(new)


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


BACKWARDS = (torch.autograd.grad, accumulated_gradients)
"""Calls that record a backward, and may free what autograd saved."""
