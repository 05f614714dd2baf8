"""Memory that ops take besides their arguments while they run, as formulas.

    convolution(x, w)       [copies of x and w, result in blocks; result in blocks, result]      bytes in each phase
    fma(x, y, z)            [x, y, z and the result in float64; the result in float64, result]

Where the eager form of a primitive is several calls, their results count. oneDNN's convolutions on CPUs work on copies
whose channels lie in blocks of one vector (16 floats with AVX-512, 8 with AVX2), filled up. Few channels are read where
they are. Its LSTM layers pack their weights and keep the gates of the whole sequence.
What other calls take is not known, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from kiln.graph.ir.aten_rules import axes_in_memory
from kiln.graph.ir.flops import numel, target_of
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.symbolic import Int, is_static
from kiln.tensor.spec import Spec, TensorSpec

FEW_CHANNELS = 4  # at most so many are read where they are


def block() -> int:
    return 16 if "512" in torch.backends.cpu.get_cpu_capability() else 8


def size_of(spec: Spec | None) -> Int:
    """Bytes of the elements of a value."""
    if isinstance(spec, tuple):
        total: Int = 0
        for part in spec:
            total = total + size_of(part)
        return total
    return numel(spec) * spec.dtype.itemsize if isinstance(spec, TensorSpec) else 0


def in_blocks(spec: TensorSpec, axes: Sequence[int] = (1,)) -> Int:
    """Bytes of a copy with blocks along `axes`."""
    total: Int = spec.dtype.itemsize
    width = block()
    for axis, size in enumerate(spec.sizes):
        total = total * (-(-size // width) * width if axis in axes and is_static(size) else size)
    return total


def of_convolution(node: Node) -> list[Int]:
    args, _ = node_arguments(node, node.inputs)
    x, w = [cast(Node, value).tensor for value in args[:2]]
    result = node.tensor
    copied = in_blocks(x) if is_at_least(x.sizes[1], block()) else 0
    return [copied + in_blocks(w, (0, 1)) + made_in(result), *phases_of_result(result)]


def of_convolution_backward(node: Node) -> list[Int]:
    args, _ = node_arguments(node, node.inputs)
    gradient, x, w = [cast(Node, value).tensor for value in args[:3]]
    wants_x, wants_w, _ = cast(tuple[bool, ...], args[-1])
    dense = size_of(gradient) if 0 in gradient.strides else 0
    of_x = size_of(x) if wants_x else 0
    phases: list[Int] = []
    if wants_x:
        copied = in_blocks(gradient) if is_at_least(gradient.sizes[1], FEW_CHANNELS + 1) else 0
        phases += [dense + copied + in_blocks(w, (0, 1)) + made_in(x), *[dense + at for at in phases_of_result(x)]]
    if wants_w:
        copies = [size_of(read) for read in (gradient, x) if is_at_least(read.sizes[1], FEW_CHANNELS + 1)]
        phases.append(dense + of_x + sum(copies) + size_of(w))
    return phases


def of_recurrent_layer(node: Node) -> list[Int]:
    """The weights are packed, for a forward alone with the units of each gate filled up."""
    args, _ = node_arguments(node, node.inputs)
    x, w_input, w_hidden = [cast(Node, value).tensor for value in args[:3]]
    gates, row = w_input.sizes[0], w_input.sizes[0]
    trains = cast(bool, args[-1])
    if is_static(gates):
        units = gates // GATES
        row = length_of_row(gates) if trains else GATES * (-(-units // UNITS) * UNITS)
    packed = 4 * row * (w_input.sizes[1] + w_hidden.sizes[1])
    return [size_of(node.spec) + packed + scratch_of_cells(x, gates)]


def of_recurrent_layer_backward(node: Node) -> list[Int]:
    """Gradients of the states that nobody has are zeros; others are read contiguous. The weights are copied where rows
    of theirs are filled up, and their gradients are transposed."""
    args, _ = node_arguments(node, node.inputs)
    x, w_input, w_hidden = [cast(Node, value).tensor for value in args[:3]]
    given = [value.tensor for value in args[10:13] if isinstance(value, Node)]
    copied = sum([size_of(gradient) for gradient in given if not gradient.is_contiguous()])
    zeros = (3 - len(given)) * size_of(cast(Node, args[5]).tensor)
    gates = w_input.sizes[0]
    made: Int = 0
    for width in (w_input.sizes[1], w_hidden.sizes[1]):
        row = length_of_row(width)
        made = made + 4 * (width * length_of_row(gates) + (0 if row == width else gates * row))
    return [size_of(node.spec) + copied + zeros + made + scratch_of_cells(x, gates)]


def scratch_of_cells(x: TensorSpec, gates: Int) -> Int:
    """The sum of the biases, and the gates of all elements of the sequence."""
    return 4 * gates + 4 * x.sizes[0] * x.sizes[1] * length_of_row(gates) + SCRATCH


def length_of_row(size: Int) -> Int:
    """Filled up to a line of the cache, and to one more where rows would lie a multiple of 1 KB apart."""
    if not is_static(size):
        return size
    row = -(-size // 16) * 16
    return row + 16 if row % 256 == 0 else row


GATES, UNITS, SCRATCH = 4, 32, 12856
"""Gates of a unit, units in a block, and bytes that a layer needs whatever its sizes are."""


def made_in(result: TensorSpec) -> Int:
    """Bytes that the library writes a result to: itself, or blocks that are copied."""
    return in_blocks(result) if is_at_least(result.sizes[1], FEW_CHANNELS + 1) else size_of(result)


def phases_of_result(result: TensorSpec) -> list[Int]:
    return [made_in(result) + size_of(result)] if is_at_least(result.sizes[1], FEW_CHANNELS + 1) else []


def is_at_least(size: Int, least: int) -> bool:
    return is_static(size) and size >= least


def of_fma(node: Node) -> list[Int]:
    if node.tensor.dtype.itemsize > 4:
        return []
    wide = 8 * numel(node.spec)
    operands: Int = wide
    for value in node.inputs:
        operands = operands + 8 * numel(value.spec)
    return [operands, wide + size_of(node.spec)]


def of_clone(node: Node) -> list[Int]:
    """With strides that are no order of the axes, ATen makes the result twice."""
    plain = node.attrs["strides"] is None or axes_in_memory(node.tensor) is not None
    return [] if plain else [2 * size_of(node.spec)]


PRIMITIVES: dict[str, Callable[[Node], list[Int]]] = {"fma": of_fma, "clone": of_clone}
RULES: dict[str, Callable[[Node], list[Int]]] = {
    "convolution.default": of_convolution,
    "convolution_backward.default": of_convolution_backward,
    "kiln.mkldnn_rnn_layer.default": of_recurrent_layer,
    "mkldnn_rnn_layer.default": of_recurrent_layer,
    "mkldnn_rnn_layer_backward.default": of_recurrent_layer_backward,
}


def phases_of(node: Node) -> list[Int]:
    """Bytes that an op has allocated in each of its phases, its results among them; none where nothing is known."""
    if node.op.name in PRIMITIVES:
        return PRIMITIVES[node.op.name](node)
    rule = RULES.get(target_of(node)) if node.op.kind is Kind.LIBRARY else None
    first = node.inputs[0].tensor if rule is not None else None
    if rule is None or first is None or first.device.type != "cpu" or first.dtype is not torch.float32:
        return []
    return [] if first.rank == 4 and not first.is_contiguous() and 0 not in first.strides else rule(node)
