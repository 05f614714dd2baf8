"""Convolutions of lines as those of images: the same values, and channels last from one to the next on a GPU."""

from __future__ import annotations

import pytest

from kiln.graph.ir.rewrite import rewrite
from kiln.graph.ir.verify import verify
from kiln.graph.passes.channels_last import ChannelsLast
from kiln.graph.passes.lines_as_images import LinesAsImages, OfImages
from tests.graph.passes.graphs import CONTEXT, parsed, same_values

SAME = "(1,), (1,), (1,), False, (0,), 1"
"""Stride, padding, dilation, not transposed, output padding, groups: the result is as long as the line."""


def test_values_and_gradients() -> None:
    graph = parsed("""
        graph(%0: f32[2, 6, 15 | 90, 1, 6] "x", %1: f32[4, 6, 3] "w", %2: f32[4] "b", %3: f32[2, 4, 7] "tangent"):
            %4: f32[2, 4, 7] = aten.convolution.default(%0, %1, %2, (2,), (1,), (2,), False, (0,), 1)
            %5: (f32[2, 6, 15], f32[4, 6, 3], f32[4]) = aten.convolution_backward.default(%3, %0, %1, (4,), (2,), (1,), (2,), False, (0,), 1, (True, True, True))
            %6: f32[2, 6, 15] = item(%5, index=0)
            %7: f32[4, 6, 3] = item(%5, index=1)
            %8: f32[4] = item(%5, index=2)
            return %4, %6, %7, %8
    """)  # noqa: E501
    chosen = [node for node in graph.nodes if node.op.name in ("aten", "item")]
    made, changes = rewrite(graph, OfImages(), CONTEXT.oracle, only=chosen)
    verify(made, "test")
    assert changes == len(chosen)
    assert [node.tensor.rank for node in made.nodes if node.op.name == "squeeze"] == [3, 3, 3]
    same_values(graph, made, tolerance=1e-5)


LINE, WEIGHT = "bf16[4, 64, 2048 @cuda:0]", "bf16[64, 64, 3 @cuda:0]"


def test_between_two_convolutions_channels_stay_last() -> None:
    graph = parsed(f"""
        graph(%0: {LINE} "x", %1: {WEIGHT} "w"):
            %2: {LINE} = aten.convolution.default(%0, %1, None, {SAME})
            %3: {LINE} = exp(%2)
            %4: {LINE} = aten.convolution.default(%3, %1, None, {SAME})
            return %4
    """)
    made, _ = LinesAsImages().run(graph, CONTEXT)
    made, changes = ChannelsLast().run(made, CONTEXT)
    verify(made, "test")
    assert changes
    operands = [value.tensor.strides[1] for node in made.nodes if node.op.name == "aten" for value in node.inputs]
    assert operands == [1, 1, 1, 1]
    assert sum(node.op.name == "clone" for node in made.nodes) == 3, "the line, the weight, the result"
    assert made.outputs[0].value.spec == graph.outputs[0].value.spec


@pytest.mark.parametrize(
    ("line", "weight", "options"),
    [
        (LINE, "bf16[64, 1, 3 @cuda:0]", SAME.replace(" 1", " 64")[:-2] + "64"),
        (LINE.replace("bf16", "f32"), WEIGHT.replace("bf16", "f32"), SAME),
        (LINE.replace(" @cuda:0", ""), WEIGHT.replace(" @cuda:0", ""), SAME),
        ("bf16[1, 64, 64 @cuda:0]", WEIGHT, SAME),
        (LINE, WEIGHT, SAME.replace("False", "True")),
    ],
    ids=["groups", "float32", "cpu", "small", "transposed"],
)
def test_others_stay(line: str, weight: str, options: str) -> None:
    graph = parsed(f"""
        graph(%0: {line} "x", %1: {weight} "w"):
            %2: {line} = aten.convolution.default(%0, %1, None, {options})
            return %2
    """)
    assert LinesAsImages().run(graph, CONTEXT) == (graph, 0)
