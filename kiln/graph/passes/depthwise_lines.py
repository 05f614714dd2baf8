"""Depthwise convolutions of lines on a CPU as sums over windows, in loops that fuse with their neighbours.

    %2: f32[8, 64, 300] = aten.convolution.default(%0, %1, None, (1,), (1,), (1,), False, (0,), 64)         three taps
                                =>
    %3: f32[8, 64, 302] = pad(%0, zeros around each line)
    %6: f32[8, 64, 300] = %3[:, :, 0:300] * %1[:, 0, 0:1] + %3[:, :, 1:301] * %1[:, 0, 1:2] + ...

The library's kernels are made for images: one row leaves most of their blocks empty. Many taps are the sum of a product
with an `unfold`, so that the graph stays small. The gradient of the line is the convolution of the tangent, with zeros
between its elements where the stride is not 1, with the weight turned round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import cast, final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.passes.convolutions import (
    BIAS,
    CONVOLUTION,
    WEIGHT,
    convolution_of,
    laid_out,
    on_cpu,
    zeros_around,
)
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Int, is_static

MOST_TAPS = 64
"""More are left to the library."""
UNROLLED = 12
"""Taps that are nodes of their own."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True)
class DepthwiseLines:
    name: str = "depthwise-lines"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        calls = {node for node in graph.nodes if node.op.kind is Kind.LIBRARY and is_depthwise(node)}
        forwards = {node for node in calls if node.attrs["target"] == CONVOLUTION}
        gradients = {node for node in graph.nodes if node.op.name == "item" and node.inputs[0] in calls}
        return rewrite(graph, as_sums, context.oracle, only=forwards | gradients)


@final
@dataclass(frozen=True)
class Taps:
    """Where the elements lie that one of the result is computed from."""

    count: int
    stride: int
    padding: Int
    dilation: int

    @property
    def reach(self) -> int:
        """From the first to the last."""
        return self.dilation * (self.count - 1) + 1

    def results(self, length: Int) -> Int:
        return (length + 2 * self.padding - self.reach) // self.stride + 1


@final
@dataclass(frozen=True)
class PaddedLine:
    """`values`: [N, C, L], or windows of it. `exists`: without N and C, where they are elements of the line; None:
    everywhere. Elsewhere there is nothing to multiply: zero times an infinite weight would be NaN."""

    values: Node
    exists: Node | None = None

    def each(self, change: Callable[[Node], Node]) -> PaddedLine:
        return PaddedLine(change(self.values), None if self.exists is None else change(self.exists))

    def times(self, builder: Builder, other: Node) -> Node:
        product = builder.node("mul", wide(builder, self.values), other)
        if self.exists is None:
            return product
        zero = builder.constant(0.0, product.tensor.dtype, product.tensor.device)
        return builder.node("where", self.exists, product, zero)


def is_depthwise(node: Node) -> bool:
    """Whether it is a convolution of lines with one result for each channel, on a CPU."""
    call = convolution_of(node)
    if call is None or not on_cpu(node):
        return False
    line, weight, groups = call.x.tensor, call.weight.tensor, call.groups
    if (
        line.rank != 3
        or line.dtype not in DTYPES
        or call.transposed
        or 0 in line.sizes
        or not is_static(weight.sizes[2])
    ):
        return False
    return weight.sizes[:2] == (groups, 1) and line.sizes[1] == groups and 0 < weight.sizes[2] <= MOST_TAPS


def taps_of(node: Node) -> Taps:
    call = convolution_of(node)
    assert call is not None
    (stride,), (dilation,) = cast(tuple[tuple[int], tuple[int]], (call.stride, call.dilation))
    return Taps(cast(int, call.weight.tensor.sizes[2]), stride, call.padding[0], dilation)


def as_sums(builder: Builder, node: Node) -> Node | None:
    """What computes a forward, or a gradient."""
    if node.op.name == "item":
        made = gradient(builder, node.inputs[0], node.attrs["index"])
    else:
        (x, weight, bias, *_), _ = node_arguments(node, node.inputs)
        made = convolved(builder, cast(Node, x), rows_of(builder, cast(Node, weight)), taps_of(node))
        if isinstance(bias, Node):
            made = builder.node("add", made, builder.node("unsqueeze", wide(builder, bias), axis=1))
    return laid_out(builder, builder.node("convert", made, dtype=node.tensor.dtype), node.tensor)


def gradient(builder: Builder, call: Node, index: int) -> Node:
    tangent, x, weight = call.inputs[:3]
    taps = taps_of(call)
    if index == BIAS:
        return builder.node("sum", wide(builder, tangent), axes=(0, 2))
    if index == WEIGHT:
        line = padded(builder, PaddedLine(x), taps.padding, taps.padding)
        sums = weight_gradient(builder, wide(builder, tangent), line, taps)
        return builder.node("unsqueeze", sums, axis=1)
    turned = builder.node("flip", rows_of(builder, weight), axes=(1,))
    length, low = x.tensor.sizes[2], taps.reach - 1 - taps.padding
    line = spread(builder, PaddedLine(tangent), taps.stride)
    line = padded(builder, line, low, length + taps.reach - 1 - low - line.values.tensor.sizes[2])
    return summed(builder, line, turned, Taps(taps.count, 1, 0, taps.dilation))


def convolved(builder: Builder, x: Node, rows: Node, taps: Taps) -> Node:
    """[N, C, results] of `x`, [N, C, L], and `rows`, [C, taps], in the dtype of sums."""
    return summed(builder, padded(builder, PaddedLine(x), taps.padding, taps.padding), rows, taps)


def summed(builder: Builder, line: PaddedLine, rows: Node, taps: Taps) -> Node:
    if taps.count > UNROLLED:
        return builder.node(
            "sum", windows(builder, line, taps).times(builder, builder.node("unsqueeze", rows, axis=1)), axes=(3,)
        )
    weights = [builder.node("slice", rows, axis=1, start=k, stop=k + 1, step=1) for k in range(taps.count)]
    parts = zip(places(builder, line, taps), weights, strict=True)
    return functools.reduce(functools.partial(builder.node, "add"), [part.times(builder, w) for part, w in parts])


def weight_gradient(builder: Builder, tangent: Node, line: PaddedLine, taps: Taps) -> Node:
    """[C, taps]: of each, the sum over what it was multiplied with."""
    if taps.count > UNROLLED:
        product = windows(builder, line, taps).times(builder, builder.node("unsqueeze", tangent, axis=3))
        return builder.node("sum", product, axes=(0, 2))
    sums = [builder.node("sum", part.times(builder, tangent), axes=(0, 2)) for part in places(builder, line, taps)]
    return builder.node("cat", *[builder.node("unsqueeze", each, axis=1) for each in sums], axis=1)


def places(builder: Builder, line: PaddedLine, taps: Taps) -> Iterator[PaddedLine]:
    """What each tap is multiplied with, of the padded line."""
    results = Taps(taps.count, taps.stride, 0, taps.dilation).results(line.values.tensor.sizes[2])
    last = (results - 1) * taps.stride + 1

    def taken(x: Node, start: int) -> Node:
        return builder.node("slice", x, axis=x.tensor.rank - 1, start=start, stop=start + last, step=taps.stride)

    return (line.each(functools.partial(taken, start=start)) for start in range(0, taps.reach, taps.dilation))


def windows(builder: Builder, line: PaddedLine, taps: Taps) -> PaddedLine:
    """[N, C, results, taps] of the padded line."""

    def taken(x: Node) -> Node:
        found = builder.node("unfold", x, axis=x.tensor.rank - 1, size=taps.reach, step=taps.stride)
        return builder.node("slice", found, axis=x.tensor.rank, start=0, stop=taps.reach, step=taps.dilation)

    return line.each(taken)


def spread(builder: Builder, line: PaddedLine, stride: int) -> PaddedLine:
    """`line` with `stride - 1` places behind each element that do not exist."""
    if stride == 1:
        return line
    batch, channels, length = line.values.tensor.sizes
    apart = padded(builder, line.each(lambda x: builder.node("unsqueeze", x, axis=x.tensor.rank)), 0, stride - 1)
    assert apart.exists is not None
    values = builder.node("reshape", apart.values, sizes=(batch, channels, length * stride))
    return PaddedLine(values, builder.node("reshape", apart.exists, sizes=(length * stride,)))


def padded(builder: Builder, line: PaddedLine, low: Int, high: Int) -> PaddedLine:
    """`line` between places that do not exist; fewer than none crop it."""
    if low == high == 0:
        return line
    spec, exists = line.values.tensor, line.exists
    if exists is None:
        true = builder.constant(True, torch.bool, spec.device)
        exists = builder.node("expand", true, sizes=spec.sizes[2:])
    return PaddedLine(zeros_around(builder, line.values, low, high), zeros_around(builder, exists, low, high))


def rows_of(builder: Builder, weight: Node) -> Node:
    """[C, taps] of [C, 1, taps], in the dtype of sums."""
    return wide(builder, builder.node("squeeze", weight, axes=(1,)))


def wide(builder: Builder, x: Node) -> Node:
    dtype = OPMATH.get(x.tensor.dtype, x.tensor.dtype)
    return x if dtype is x.tensor.dtype else builder.node("convert", x, dtype=dtype)
