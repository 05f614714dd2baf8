"""Convolutions of lines on a GPU, in half precision, as products of their windows where cuDNN is slow.

    %2: bf16[4, 768, 500 @cuda:0] = aten.convolution.default(%0, %1, None, (1,), (64,), (1,), False, (0,), 16)
                                =>
    %3: bf16[16, 336, 6384 @cuda:0] = windows of six places of the padded line, a batch for each group
    %4: bf16[16, 288, 6384 @cuda:0] = the weight at each of the six places, zeros around it
    %5: bf16[16, 336, 288 @cuda:0] = aten.bmm.default(%3, %4 transposed)
    %6: bf16[4, 768, 500 @cuda:0] = %5, its places in a row

In groups, cuDNN runs a kernel for each, and some are slow: on an H200 12 ms for the convolution above. A window serves
`block` neighbouring places of the result, so that there are fewer of them, and the weight stands in `block` shifts.
`block` makes both together smallest. Gradients are such products, too: that of the line is the convolution of the
tangent with the weight turned round, that of the weight adds up the shifts.

Without groups, only the gradient of a dilated weight is a product: cuDNN computes it without tensor cores.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast, final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.passes.channels_last import DTYPES
from kiln.graph.passes.convolutions import (
    LINE,
    WEIGHT,
    Convolution,
    convolution_of,
    laid_out,
    without_gradient,
    zeros_around,
)
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Int, is_static

LEAST_CHANNELS = 8
"""Of one group, in the line and in the result: narrower products do not fill the units of a GPU."""
LONGEST_BLOCK = 16
SHARE = 8
"""A block is at most this share of the window, which bounds the zeros that are multiplied."""
ELEMENTS_PER_GROUP = 1 << 24
"""Of windows and shifted weights together: an H200 writes and reads so many in the 25 us that cuDNN's kernel for one
group takes at least."""
MOST_IN_GROUPS = 1 << 28
"""However many groups there are: half a gigabyte."""
MOST_ELEMENTS = 1 << 26
"""Of windows for the gradient of a dilated weight: they are in memory at once."""
NOMINAL = 512
"""Assumed for a size that nobody has seen."""


@final
@dataclass(frozen=True)
class LinesAsProducts:
    name: str = "lines-as-products"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        oracle = context.oracle
        library = [node for node in graph.nodes if node.op.kind is Kind.LIBRARY]
        calls = {node: call for node in library if (call := convolution_of(node)) is not None and is_of_lines(call)}
        grouped = {node for node, call in calls.items() if is_slow_by_group(call, oracle)}
        dilated = {node for node, call in calls.items() if has_slow_weight_gradient(call, oracle)}
        if not grouped and not dilated:
            return graph, 0
        items = {node for node in graph.nodes if node.op.name == "item" and is_gradient(node, grouped, dilated)}
        return rewrite(graph, as_products, oracle, only=grouped | dilated | items)


@final
@dataclass(frozen=True)
class Lines:
    """The sizes of a convolution of lines in groups with stride 1."""

    groups: int
    taps: int
    padding: int
    dilation: int
    block: int

    @property
    def reach(self) -> int:
        """The elements of the line that one element of the result depends on, from the first to the last."""
        return self.dilation * (self.taps - 1) + 1

    @property
    def window(self) -> int:
        """The elements of a window."""
        return self.taps + self.block - 1

    def turned(self) -> Lines:
        """Of the convolution that the gradient of the line is."""
        return Lines(self.groups, self.taps, self.reach - 1 - self.padding, self.dilation, self.block)


def is_of_lines(call: Convolution) -> bool:
    """Whether it convolves lines on a GPU, with stride 1 and not transposed, in half precision, with channels and
    padding for which products are written here."""
    line, weight = call.x.tensor, call.weight.tensor
    if line.device.type != "cuda" or line.dtype not in DTYPES["cuda"] or line.rank != 3 or call.transposed:
        return False
    (padding,), (dilation,) = call.padding, cast(tuple[int], call.dilation)
    if not all(map(is_static, weight.sizes)) or call.stride != (1,) or not is_static(padding):
        return False
    made, taken, taps = cast(tuple[int, int, int], weight.sizes)
    is_wide = min(taken, made // call.groups) >= LEAST_CHANNELS
    return is_wide and 0 not in line.sizes and padding <= dilation * (taps - 1)


def is_slow_by_group(call: Convolution, oracle: GuardFreeOracle) -> bool:
    lines = lines_of(call, oracle)
    return lines.groups > 1 and cost(call, lines, oracle) <= min(lines.groups * ELEMENTS_PER_GROUP, MOST_IN_GROUPS)


def has_slow_weight_gradient(call: Convolution, oracle: GuardFreeOracle) -> bool:
    lines = lines_of(call, oracle)
    is_dilated = call.is_backward and lines.groups == 1 and lines.dilation > 1
    return is_dilated and cost(call, lines, oracle) <= MOST_ELEMENTS


def is_gradient(item: Node, grouped: Collection[Node], dilated: Collection[Node]) -> bool:
    """Whether it is a gradient that becomes a product, of one of these calls."""
    call, index = item.inputs[0], item.attrs["index"]
    return (call in grouped and index in (LINE, WEIGHT)) or (call in dilated and index == WEIGHT)


def lines_of(call: Convolution, oracle: GuardFreeOracle) -> Lines:
    """With the block for which windows and weights have the fewest elements. The sums of a block's shifts are rounded
    before they are added, so that float16 might overflow."""
    (padding,), (dilation,) = cast(tuple[tuple[int], tuple[int]], (call.padding, call.dilation))
    taps = cast(int, call.weight.tensor.sizes[-1])
    is_safe = dilation == 1 and call.x.tensor.dtype is not torch.float16
    longest = min(LONGEST_BLOCK, taps // SHARE) if is_safe else 1
    choices = [Lines(call.groups, taps, padding, dilation, block) for block in range(1, max(longest, 1) + 1)]
    return min(choices, key=lambda choice: cost(call, choice, oracle))


def cost(call: Convolution, lines: Lines, oracle: GuardFreeOracle) -> int:
    """The elements of the windows and of the shifted weight."""
    batch, channels, length = [seen(size, oracle) for size in call.x.tensor.sizes]
    made, taken, _ = cast(tuple[int, int, int], call.weight.tensor.sizes)
    windows = batch * channels * -(-length // lines.block) * lines.window
    return windows + (made * taken * lines.window * lines.block if lines.block > 1 else 0)


def seen(size: Int, oracle: GuardFreeOracle) -> int:
    return oracle.hint(size) or NOMINAL


def as_products(builder: Builder, node: Node) -> Node:
    """The products for a forward, and for a gradient; for a backward, the call without the gradient of the weight. In
    groups nobody reads that but for the gradient of the bias, which `convolution-bias` takes out."""
    if node.op.name == "item":
        return laid_out(builder, gradient(builder, node.inputs[0], node.attrs["index"]), node.tensor)
    call, lines = known(builder, node)
    if call.is_backward:
        return without_gradient(builder, node, WEIGHT)
    (_, _, bias, *_), _ = node_arguments(node, node.inputs)
    made = convolved(builder, call.x, by_group(builder, call.weight, lines.groups), lines)
    if isinstance(bias, Node):
        made = builder.node("add", made, builder.node("unsqueeze", bias, axis=1))
    return laid_out(builder, made, node.tensor)


def known(builder: Builder, node: Node) -> tuple[Convolution, Lines]:
    call = convolution_of(node)
    assert call is not None
    return call, lines_of(call, cast(GuardFreeOracle, builder.oracle))


def gradient(builder: Builder, node: Node, index: int) -> Node:
    """What a backward computes as the gradient of its line or of its weight."""
    tangent, (call, lines) = node.inputs[0], known(builder, node)
    if index == WEIGHT:
        return weight_gradient(builder, tangent, call.x, lines)
    turned = builder.node("flip", by_group(builder, call.weight, lines.groups), axes=(3,))
    turned = builder.node("permute", turned, dims=(0, 2, 1, 3))
    return convolved(builder, tangent, turned, lines.turned())


def convolved(builder: Builder, x: Node, weight: Node, lines: Lines) -> Node:
    """[N, G * O, L] of `x`, [N, G * C, L], and `weight`, [G, O, C, K]."""
    groups, made, *_ = weight.tensor.sizes
    batch, _, length = x.tensor.sizes
    count = length + 2 * lines.padding - lines.reach + 1
    rows = batched(builder, windows(builder, x, lines))
    product = multiplied(builder, rows, builder.node("permute", shifted(builder, weight, lines), dims=(0, 2, 1)))
    places = blocks(count, lines) * lines.block
    result = builder.node("view", product, sizes=(groups, batch, places, made))
    if lines.block > 1:
        result = builder.node("slice", result, axis=2, start=0, stop=count, step=1)
    result = builder.node("permute", result, dims=(1, 0, 3, 2))
    return builder.node("reshape", result, sizes=(batch, groups * made, count))


def weight_gradient(builder: Builder, tangent: Node, x: Node, lines: Lines) -> Node:
    """[G * O, C, K]: each shift of the weight gets a sum over all windows; one element has a place in each shift."""
    batch, channels, count = tangent.tensor.sizes
    places = blocks(count, lines) * lines.block
    made, taken = channels // lines.groups, x.tensor.sizes[1] // lines.groups
    tangent = padded(builder, tangent, 0, places - count)
    tangent = builder.node("view", tangent, sizes=(batch, lines.groups, made, places))
    tangent = builder.node("permute", tangent, dims=(1, 0, 3, 2))
    sizes = (lines.groups, batch * blocks(count, lines), lines.block * made)
    tangent = builder.node("reshape", tangent, sizes=sizes)
    rows = batched(builder, windows(builder, x, lines))
    sums = multiplied(builder, builder.node("permute", tangent, dims=(0, 2, 1)), rows)
    if lines.block > 1:
        sums = builder.node("view", sums, sizes=(lines.groups, lines.block, made, taken, lines.window))
        sums = builder.node("unfold", sums, axis=4, size=lines.taps, step=1)
        sums = builder.node("diagonal", sums, offset=0, axis1=1, axis2=4)
        dtype = sums.tensor.dtype
        sums = builder.node("sum", builder.node("convert", sums, dtype=torch.float32), axes=(4,))
        sums = builder.node("convert", sums, dtype=dtype)
    return builder.node("reshape", sums, sizes=(channels, taken, lines.taps))


def windows(builder: Builder, x: Node, lines: Lines) -> Node:
    """[N, G, C, windows, elements of a window] of the line between its padding."""
    batch, channels, length = x.tensor.sizes
    count = length + 2 * lines.padding - lines.reach + 1
    x = padded(builder, x, lines.padding, lines.padding + blocks(count, lines) * lines.block - count)
    x = builder.node("view", x, sizes=(batch, lines.groups, channels // lines.groups, x.tensor.sizes[2]))
    taken = builder.node("unfold", x, axis=3, size=lines.reach + lines.block - 1, step=lines.block)
    if lines.dilation == 1:
        return taken
    return builder.node("slice", taken, axis=4, start=0, stop=lines.reach, step=lines.dilation)


def batched(builder: Builder, taken: Node) -> Node:
    """[G, N * windows, C * elements of a window]: the rows of a product for each group."""
    batch, groups, channels, count, window = taken.tensor.sizes
    rows = builder.node("permute", taken, dims=(1, 0, 3, 2, 4))
    return builder.node("reshape", rows, sizes=(groups, batch * count, channels * window))


def shifted(builder: Builder, weight: Node, lines: Lines) -> Node:
    """[G, block * O, C * window]: the weight at each place of a block, between zeros."""
    groups, made, taken, _ = weight.tensor.sizes
    if lines.block > 1:
        around = lines.block - 1
        weight = padded(builder, weight, around, around)
        weight = builder.node("unfold", weight, axis=3, size=lines.window, step=1)
        weight = builder.node("flip", weight, axes=(3,))
        weight = builder.node("permute", weight, dims=(0, 3, 1, 2, 4))
    return builder.node("reshape", weight, sizes=(groups, lines.block * made, taken * lines.window))


def padded(builder: Builder, x: Node, low: Int, high: Int) -> Node:
    """`x` with zeros around its last dimension, contiguous."""
    made = zeros_around(builder, x, low, high)
    return made if made.tensor.is_contiguous() else builder.node("clone", made, strides=None)


def by_group(builder: Builder, weight: Node, groups: int) -> Node:
    """[G, O, C, K] of [G * O, C, K]."""
    made, taken, taps = weight.tensor.sizes
    return builder.node("view", padded(builder, weight, 0, 0), sizes=(groups, made // groups, taken, taps))


def multiplied(builder: Builder, left: Node, right: Node) -> Node:
    made = left.tensor.with_sizes((*left.tensor.sizes[:2], right.tensor.sizes[2]))
    return builder.aten("aten.bmm.default", [left, right], {}, made)


def blocks(count: Int, lines: Lines) -> Int:
    """How many blocks the result has."""
    return count if lines.block == 1 else (count + lines.block - 1) // lines.block
