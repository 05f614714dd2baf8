"""Recurrent layers of cuDNN as operators of a plan: eager finds their weights as one piece of memory, and so do these.

kiln_cudnn.layers(x, weights, hx, cx, mode, biases, train, bidirectional)           [output, hy, cy, reserve]
kiln_cudnn.layers_backward(x, weights, hx, cx, output, gradients, reserve, ...)     [dx, dhx, dcx, *dweights]

`x` is (steps, batch, features), `mode` cuDNN's number of the kind of layer. `reserve` is what the backward needs of the
forward; a plan that could not tell how large it is passes an empty one, and the forward runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

NAMESPACE = "kiln_cudnn"
LAYERS, BACKWARD = f"{NAMESPACE}.layers.default", f"{NAMESPACE}.layers_backward.default"
LSTM = 2  # as torch numbers kinds of recurrent layers
OPTIONS = "int mode, bool biases, bool train, bool bidirectional"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define(f"layers(Tensor x, Tensor[] weights, Tensor hx, Tensor? cx, {OPTIONS}) -> Tensor[]")
LIBRARY.define(
    "layers_backward(Tensor x, Tensor[] weights, Tensor hx, Tensor? cx, Tensor output, Tensor? d_output, Tensor? d_hy,"
    f" Tensor? d_cy, Tensor reserve, {OPTIONS}) -> Tensor[]"
)


def flattened(weights: Sequence[Tensor], hx: Tensor, mode: int, biases: bool, bidirectional: bool) -> Tensor:
    """The weights in one piece of memory, which they are made parts of."""
    layers, stride = hx.size(0) // (1 + bidirectional), 4 if biases else 2
    made: Tensor = torch.ops.aten._cudnn_rnn_flatten_weight(
        weights, stride, weights[0].size(1), mode, hx.size(2), 0, layers, False, bidirectional
    )
    return made


Layout = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def places(
    sizes: Layout, states: tuple[int, ...], like: tuple[torch.dtype, torch.device], options: tuple[int, bool, bool]
) -> tuple[int, ...]:
    """Where cuDNN puts each weight of these sizes, in elements, then the size of all: it is asked to lay some out."""
    dtype, device = like
    weights = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
    memory = flattened(weights, torch.empty(states, dtype=dtype, device=device), *options)
    return (*[int(weight.storage_offset()) for weight in weights], memory.numel())


def in_one_piece(weights: Sequence[Tensor], hx: Tensor, mode: int, biases: bool, bidirectional: bool) -> Tensor:
    """The memory of the weights if they lie as cuDNN wants them (`flatten_parameters` sees to it); else a copy."""
    first, options = weights[0], (mode, biases, bidirectional)
    *offsets, size = places(
        tuple([tuple(weight.shape) for weight in weights]), tuple(hx.shape), (first.dtype, first.device), options
    )
    start = first.data_ptr() - offsets[0] * first.element_size()
    wanted = [start + at * first.element_size() for at in offsets]
    memory = first.untyped_storage()
    fits = start == memory.data_ptr() and memory.nbytes() >= size * first.element_size()
    if fits and [weight.data_ptr() for weight in weights] == wanted:
        return first.detach().as_strided((size,), (1,), 0)
    return flattened([weight.detach() for weight in weights], hx, *options)


def arguments(hx: Tensor, mode: int, train: bool, bidirectional: bool) -> tuple[object, ...]:
    """The last arguments that both operators of ATen take."""
    return (mode, hx.size(2), 0, hx.size(0) // (1 + bidirectional), False, 0.0, train, bidirectional, [], None)


def layers(
    x: Tensor, weights: Sequence[Tensor], hx: Tensor, cx: Tensor | None,
    mode: int, biases: bool, train: bool, bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    memory, stride = in_one_piece(weights, hx, mode, biases, bidirectional), 4 if biases else 2
    made = torch.ops.aten._cudnn_rnn(x, weights, stride, memory, hx, cx, *arguments(hx, mode, train, bidirectional))
    return list(made[:4])


def layers_backward(
    x: Tensor, weights: Sequence[Tensor], hx: Tensor, cx: Tensor | None, output: Tensor, d_output: Tensor | None,
    d_hy: Tensor | None, d_cy: Tensor | None, reserve: Tensor,
    mode: int, biases: bool, train: bool, bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    if train and not reserve.numel():
        *_, reserve = layers(x, weights, hx, cx, mode, biases, train, bidirectional)
    else:
        reserve = reserve.clone()  # cuDNN writes to it, and the graph may be kept
    memory, stride = in_one_piece(weights, hx, mode, biases, bidirectional), 4 if biases else 2
    *given, d_weights = torch.ops.aten._cudnn_rnn_backward(
        *(x, weights, stride, memory, hx, cx, output, d_output, d_hy, d_cy),
        *arguments(hx, mode, train, bidirectional),
        *(reserve, [True, True, cx is not None, True]),
    )
    return [hx.new_empty(0) if made is None else made for made in (*given, *d_weights)]


LIBRARY.impl("layers", layers, "CUDA")
LIBRARY.impl("layers_backward", layers_backward, "CUDA")
