"""Recurrent layers that eager leaves to a library: calls, also with gradients.

    output, hy, cy, workspace = kiln.mkldnn_rnn_layer.default(input, w0, w1, w2, w3, hx, cx, ...)    `nn.LSTM` on a CPU
    output, hy, cy, reserve = kiln_cudnn.layers.default(input, [w0, w1, ...], hx, cx, ...)           any on a GPU

The operator of ATen fills the workspace of its backward only while gradients are enabled, which they are not in a plan:
ours does. How large the workspace is, only the library knows: for symbolic sizes the backward runs the layer again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import Results, decompose
from kiln.plan import recurrent_operators as cudnn
from kiln.symbolic import Int, is_static
from kiln.tensor.spec import TensorSpec

TENSORS = 7
"""The leading arguments that are tensors: input, four weights, hx, cx."""
BIASES = (3, 4)
HIDDEN_SIZE = 10
FORWARD, BACKWARD = "mkldnn_rnn_layer.default", "mkldnn_rnn_layer_backward.default"


def layer_specs(e: Emit, args: tuple[Results, ...]) -> list[TensorSpec]:
    """The specs of output, hy and cy."""
    x, hx = args[0], args[5]
    assert isinstance(x, Node) and isinstance(hx, Node)
    state = hx.tensor.with_sizes(hx.tensor.sizes)
    return [x.tensor.with_sizes((*x.tensor.sizes[:2], args[HIDDEN_SIZE])), state, state]  # type: ignore[arg-type]


@decompose(FORWARD)
def mkldnn_rnn_layer(e: Emit, *args: Results) -> Results:
    specs, call = layer_specs(e, args), cast(tuple[Argument, ...], args)
    if not torch.is_grad_enabled():
        return e.library(f"aten.{FORWARD}", call, {}, (*specs, None))
    given = [node.tensor for node in args[:TENSORS] if isinstance(node, Node)]
    if not all(is_static(size) for spec in given for size in spec.sizes):
        results = e.library(f"aten.{FORWARD}", call, {}, (*specs, None))
        return (*results[:3], e.full(0, (0,), torch.uint8, specs[0].device))
    plain = tuple([tuple(value) if isinstance(value, list) else value for value in args[TENSORS:]])
    size = workspace_size(tuple([(spec.dtype, spec.sizes) for spec in given]), plain)  # type: ignore[misc]
    workspace = TensorSpec(torch.uint8, (size,), (1,), 0, specs[0].device)
    return e.library(f"kiln.{FORWARD}", call, {}, (*specs, workspace))


@lru_cache(maxsize=256)
def workspace_size(tensors: tuple[tuple[torch.dtype, tuple[int, ...]], ...], rest: tuple[object, ...]) -> int:
    """Bytes of the workspace of a layer on tensors of these dtypes and sizes."""
    given = [torch.zeros(sizes, dtype=dtype, device="cpu") for dtype, sizes in tensors]
    with torch.enable_grad():
        made: tuple[torch.Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer(*given, *rest)
    return made[3].numel()


@decompose(BACKWARD)
def mkldnn_rnn_layer_backward(e: Emit, *args: Results) -> Results:
    given = [node.tensor for node in args[:TENSORS] if isinstance(node, Node)]
    # Without biases torch passes zeros with the sizes of the weights; oneDNN gives gradients of biases.
    specs = tuple([x.with_sizes(x.sizes[:1] if number in BIASES else x.sizes) for number, x in enumerate(given)])
    workspace = args[-1]
    assert isinstance(workspace, Node)
    if workspace.tensor.sizes == (0,):
        return e.library(f"kiln.{BACKWARD}", args[:-1], {}, specs)  # type: ignore[arg-type]
    return e.library(f"aten.{BACKWARD}", args, {}, specs)  # type: ignore[arg-type]


# cuDNN: all layers in one call.


def require_plain(hx: Node, layers: int, bidirectional: bool, *options: object) -> None:
    """Refuse what a trace of layers never asks for: dropout, projections, packed sequences, the batch first."""
    if any(options) or hx.tensor.sizes[0] != layers * (1 + bidirectional):
        raise UnsupportedOp(op="aten._cudnn_rnn", reason="only the calls that `torch.lstm` and its kin make are known")


@decompose("_cudnn_rnn.default")
def cudnn_layers(
    e: Emit, x: Node, weights: Sequence[Node], stride: int, memory: Node | None, hx: Node, cx: Node | None, mode: int,
    hidden: Int, projected: int, layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool,
    lengths: Sequence[Int], dropped: Node | None,
) -> Results:  # fmt: skip
    require_plain(hx, layers, bidirectional, memory, projected, batch_first, dropout, lengths, dropped)
    state, (steps, batch, _) = hx.tensor.with_sizes(hx.tensor.sizes), x.tensor.sizes
    output = x.tensor.with_sizes((steps, batch, hidden * (1 + bidirectional)))
    nothing = e.full(0, (0,), x.tensor.dtype, x.tensor.device)
    given = [node.tensor for node in (x, *weights, hx)]
    keeps = train and torch.is_grad_enabled() and all(is_static(size) for spec in given for size in spec.sizes)
    options = mode, stride == len(BIASES) * 2, keeps, bidirectional
    tensors = tuple([(spec.dtype, spec.sizes) for spec in given])
    size = reserve_size(tensors, options, x.tensor.device) if keeps else 0  # type: ignore[arg-type]
    last = state if cx is not None else x.tensor.with_sizes((0,))
    reserve = TensorSpec(torch.uint8, (size,), (1,), 0, x.tensor.device)
    made = e.library(cudnn.LAYERS, (x, list(weights), hx, cx, *options), {}, (output, state, last, reserve))
    return (*made, nothing)


@lru_cache(maxsize=256)
def reserve_size(
    tensors: tuple[tuple[torch.dtype, tuple[int, ...]], ...],
    options: tuple[int, bool, bool, bool],
    device: torch.device,
) -> int:
    """Bytes of what the forward of layers on tensors of these dtypes and sizes keeps for its backward."""
    x, *weights, hx = [torch.zeros(sizes, dtype=dtype, device=device) for dtype, sizes in tensors]
    return cudnn.layers(x, weights, hx, torch.zeros_like(hx) if options[0] == cudnn.LSTM else None, *options)[3].numel()


@decompose("_cudnn_rnn_backward.default")
def cudnn_layers_backward(
    e: Emit, x: Node, weights: Sequence[Node], stride: int, memory: Node, hx: Node, cx: Node | None, output: Node,
    d_output: Node | None, d_hy: Node | None, d_cy: Node | None, mode: int, hidden: Int, projected: int, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool, lengths: Sequence[Int], dropped: Node | None,
    reserve: Node, wanted: Sequence[bool],
) -> Results:  # fmt: skip
    require_plain(hx, layers, bidirectional, projected, batch_first, dropout, lengths, dropped)
    specs = [node.tensor.with_sizes(node.tensor.sizes) for node in (x, hx, hx, *weights)]
    if cx is None:
        specs[2] = x.tensor.with_sizes((0,))
    options = mode, stride == len(BIASES) * 2, train, bidirectional
    call = (x, list(weights), hx, cx, output, d_output, d_hy, d_cy, reserve, *options)
    dx, dhx, dcx, *d_weights = e.library(cudnn.BACKWARD, call, {}, tuple(specs))
    return dx, dhx, None if cx is None else dcx, d_weights
