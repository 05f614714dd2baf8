"""Convolutions of lines on a GPU as those of images of one row, whose channels can be the last dimension in memory.

    %2: bf16[8, 64, 300 @cuda:0] = aten.convolution.default(%0, %1, None, (1,), (1,), ...)
                                =>
    %2: bf16[8, 32, 1, 300 @cuda:0] = unsqueeze(%0, axis=2)
    %3: bf16[64, 32, 1, 3 @cuda:0] = unsqueeze(%1, axis=2)
    %4: bf16[8, 64, 1, 300 @cuda:0] = aten.convolution.default(%2, %3, None, (1, 1), (0, 1), ...)
    %5: bf16[8, 64, 300 @cuda:0] = squeeze(%4, axes=(2,))

ATen makes such images itself, and cuDNN copies them to and from the layout of its kernels in each call. As images,
`channels-last` copies them once for all. Convolutions in groups stay: ATen has a kernel for one channel each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Argument, Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.passes.channels_last import DTYPES, LEAST_ELEMENTS, elements
from kiln.graph.passes.convolutions import BACKWARD, CONVOLUTION, convolution_of
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

ROW = 2
"""The dimension of one row."""


@final
@dataclass(frozen=True)
class LinesAsImages:
    name: str = "lines-as-images"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        calls = {node for node in graph.nodes if node.op.kind is Kind.LIBRARY and is_of_lines(node)}
        if sum(elements(node.inputs[0]) for node in calls) < LEAST_ELEMENTS:
            return graph, 0
        items = {node for node in graph.nodes if node.op.name == "item" and node.inputs[0] in calls}
        return rewrite(graph, OfImages(), context.oracle, only=calls | items)


def is_of_lines(node: Node) -> bool:
    """Whether it is a convolution of lines on a GPU, not in groups and not transposed, in a dtype of that layout."""
    call = convolution_of(node)
    if call is None:
        return False
    line = node.inputs[0].tensor
    fast = line.device.type == "cuda" and line.dtype in DTYPES["cuda"]
    return fast and line.rank == ROW + 1 and not call.transposed and call.groups == 1 and 0 not in line.sizes


@final
class OfImages:
    """The rule of one run; calls on one line share its image."""

    def __init__(self) -> None:
        self._images: dict[Node, Node] = {}

    def __call__(self, builder: Builder, node: Node) -> Node:
        """The call for images, for a forward its result; for a result of a backward, its line."""
        if node.op.name == "item":
            part = builder.node("item", node.inputs[0], index=node.attrs["index"])
            return squeezed(builder, part) if part.tensor.rank == ROW + 2 else part
        args, kwargs = node_arguments(node, node.inputs)
        if node.attrs["target"] == CONVOLUTION:
            x, weight, bias, *options = args
            images = [self.image(builder, x), self.image(builder, weight), bias, *with_row(options)]
            return squeezed(builder, builder.aten(CONVOLUTION, images, kwargs, image_spec(node.tensor)))
        grad, x, weight, sizes, *options = args
        images = [*[self.image(builder, value) for value in (grad, x, weight)], sizes, *with_row(options)]
        assert isinstance(node.spec, tuple)
        specs = [
            spec if bias or not isinstance(spec, TensorSpec) else image_spec(spec)
            for spec, bias in zip(node.spec, (False, False, True), strict=True)
        ]
        return builder.aten(BACKWARD, images, kwargs, tuple(specs))

    def image(self, builder: Builder, line: Argument) -> Node:
        assert isinstance(line, Node)
        if line not in self._images:
            packed = line if line.tensor.is_contiguous() else builder.node("clone", line, strides=None)
            self._images[line] = builder.node("unsqueeze", packed, axis=ROW)
        return self._images[line]


def squeezed(builder: Builder, made: Node) -> Node:
    return builder.node("squeeze", made, axes=(ROW,))


def image_spec(line: TensorSpec) -> TensorSpec:
    return line.with_sizes((*line.sizes[:ROW], 1, *line.sizes[ROW:]))


def with_row(options: Sequence[Argument]) -> list[Argument]:
    """Stride, padding, dilation and output padding along one more dimension."""
    stride, padding, dilation, transposed, output_padding, *rest = options
    longer = [(first, *cast(Sequence[int], given)) for first, given in ((1, stride), (0, padding), (1, dilation))]
    return [*longer, transposed, (0, *cast(Sequence[int], output_padding)), *rest]
