"""Convolutional regions in channels-last layout: by text, against the interpreter, and compiled."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kiln
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import symbols_of
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes import run_passes
from kiln.graph.passes.channels_last import ChannelsLast
from kiln.support.events import EventSink
from tests.graph.passes.graphs import CONTEXT, check_unchanged, on_gpu, parsed, same_values

INPUTS = '%0: f32[4, 8, 32, 32] "x", %1: f32[8, 8, 3, 3] "w"'
SAME = "(1, 1), (1, 1), (1, 1), False, (0, 0), 1"
"""Stride, padding, dilation, not transposed, output padding, groups: the result has the size of the image."""
FIRST, LAST = "f32[4, 8, 32, 32]", "f32[4, 8, 32, 32 | 8192, 1, 256, 8]"
"""An image with channels first, and last."""


def changed(graph: Graph) -> Graph:
    """After all passes but that which takes pools apart; the values and the strides of outputs stay."""
    made = run_passes(graph, EventSink(), checks="full", without=("pool-slices",))
    same_values(graph, made, tolerance=1e-4, symbols=dict.fromkeys(symbols_of(graph.inputs), 3))
    return made


def check(before: str, after: str) -> None:
    assert graph_text(changed(parsed(before))) == dedent(after).strip()


def test_a_region_is_entered_and_left_once() -> None:
    check(
        f"""
        graph({INPUTS}):
            %2: {FIRST} = aten.convolution.default(%0, %1, None, {SAME})
            %3: {FIRST} = exp(%2)
            %4: {FIRST} = aten.convolution.default(%3, %1, None, {SAME})
            %5: {FIRST} = add(%4, %3)
            %6: {FIRST} = aten.convolution.default(%5, %1, None, {SAME})
            return %6
        """,
        f"""
        graph({INPUTS}):
            %2: {LAST} = clone(%0, strides=(8192, 1, 256, 8))
            %3: {LAST} = aten.convolution.default(%2, %1, None, {SAME})
            %4: {LAST} = exp(%3)
            %5: {LAST} = aten.convolution.default(%4, %1, None, {SAME})
            %6: {LAST} = add(%5, %4)
            %7: {LAST} = aten.convolution.default(%6, %1, None, {SAME})
            %8: {FIRST} = clone(%7, strides=(8192, 1024, 32, 1))
            return %8
        """,
    )


def test_the_batch_may_be_a_symbol() -> None:
    first, last = FIRST.replace("[4", "[s0"), LAST.replace("[4", "[s0")
    halved = "[s0, 8, 16, 16 | 2048, 1, 128, 8]"
    inputs = INPUTS.replace("[4", "[s0")
    check(
        f"""
        graph({inputs}):
            %2: {first} = aten.convolution.default(%0, %1, None, {SAME})
            %3: f32[8] = sum(%1, axes=(1, 2, 3))
            %4: f32[8, 1] = unsqueeze(%3, axis=1)
            %5: f32[8, 1, 1] = unsqueeze(%4, axis=2)
            %6: {first} = add(%2, %5)
            %7: (f32[s0, 8, 16, 16], i64[s0, 8, 16, 16]) = aten.max_pool2d_with_indices.default(%6, (2, 2), (2, 2))
            %8: f32[s0, 8, 16, 16] = item(%7, index=0)
            %9: f32[s0, 8, 16, 16] = aten.convolution.default(%8, %1, None, {SAME})
            %10: f32[s0, 8] = sum(%9, axes=(2, 3))
            return %10
        """,
        f"""
        graph({inputs}):
            %2: {last} = clone(%0, strides=(8192, 1, 256, 8))
            %3: {last} = aten.convolution.default(%2, %1, None, {SAME})
            %4: f32[8] = sum(%1, axes=(1, 2, 3))
            %5: f32[8, 1] = unsqueeze(%4, axis=1)
            %6: f32[8, 1, 1] = unsqueeze(%5, axis=2)
            %7: {last} = add(%3, %6)
            %8: (f32{halved}, i64{halved}) = aten.max_pool2d_with_indices.default(%7, (2, 2), (2, 2))
            %9: f32{halved} = item(%8, index=0)
            %10: f32{halved} = aten.convolution.default(%9, %1, None, {SAME})
            %11: f32[s0, 8] = sum(%10, axes=(2, 3))
            return %11
        """,
    )


def test_a_view_that_no_longer_holds_is_copied() -> None:
    check(
        f"""
        graph({INPUTS}):
            %2: {FIRST} = aten.convolution.default(%0, %1, None, {SAME})
            %3: {FIRST} = aten.convolution.default(%2, %1, None, {SAME})
            %4: {FIRST} = aten.convolution.default(%3, %1, None, {SAME})
            %5: f32[4, 8192] = view(%4, sizes=(4, 8192))
            return %5
        """,
        f"""
        graph({INPUTS}):
            %2: {LAST} = clone(%0, strides=(8192, 1, 256, 8))
            %3: {LAST} = aten.convolution.default(%2, %1, None, {SAME})
            %4: {LAST} = aten.convolution.default(%3, %1, None, {SAME})
            %5: {LAST} = aten.convolution.default(%4, %1, None, {SAME})
            %6: f32[4, 8192] = reshape(%5, sizes=(4, 8192))
            return %6
        """,
    )


def test_outputs_that_are_views_and_written_values() -> None:
    view = "f32[4, 4, 32, 32 | 8192, 1024, 32, 1 at 2048]"
    check(
        f"""
        graph({INPUTS}):
            %2: {FIRST} = aten.convolution.default(%0, %1, None, {SAME})
            %3: {FIRST} = aten.convolution.default(%2, %1, None, {SAME})
            %4: {FIRST} = aten.convolution.default(%3, %1, None, {SAME})
            %5: {FIRST} = aten.convolution.default(%4, %1, None, {SAME})
            %6: {view} = slice(%5, axis=1, start=2, stop=6, step=1)
            write %0 <- %4
            return %6
        """,
        f"""
        graph({INPUTS}):
            %2: {LAST} = clone(%0, strides=(8192, 1, 256, 8))
            %3: {LAST} = aten.convolution.default(%2, %1, None, {SAME})
            %4: {LAST} = aten.convolution.default(%3, %1, None, {SAME})
            %5: {LAST} = aten.convolution.default(%4, %1, None, {SAME})
            %6: {LAST} = aten.convolution.default(%5, %1, None, {SAME})
            %7: {FIRST} = clone(%6, strides=(8192, 1024, 32, 1))
            %8: {view} = slice(%7, axis=1, start=2, stop=6, step=1)
            write %0 <- %5
            return %8
        """,
    )


def test_a_convolution_with_a_large_weight_stays_in_the_old_layout() -> None:
    weights = '%1: f32[128, 8, 3, 3] "w", %2: f32[128, 128, 3, 3] "v", %3: f32[8, 128, 1, 1] "u"'
    large, tiny = "f32[4, 128, 64, 64 | 524288, 1, 8192, 128]", "[4, 128, 2, 2 | 512, 1, 256, 128]"
    point = "(1, 1), (0, 0), (1, 1), False, (0, 0), 1"
    check(
        f"""
        graph(%0: f32[4, 8, 64, 64] "x", {weights}):
            %4: f32[4, 128, 64, 64] = aten.convolution.default(%0, %1, None, {SAME})
            %5: (f32[4, 128, 2, 2], i64[4, 128, 2, 2]) = aten.max_pool2d_with_indices.default(%4, (32, 32), (32, 32))
            %6: f32[4, 128, 2, 2] = item(%5, index=0)
            %7: f32[4, 128, 2, 2] = aten.convolution.default(%6, %2, None, {SAME})
            %8: f32[4, 8, 2, 2] = aten.convolution.default(%7, %3, None, {point})
            %9: f32[4, 8] = sum(%8, axes=(2, 3))
            return %9
        """,
        f"""
        graph(%0: f32[4, 8, 64, 64] "x", {weights}):
            %4: f32[4, 8, 64, 64 | 32768, 1, 512, 8] = clone(%0, strides=(32768, 1, 512, 8))
            %5: {large} = aten.convolution.default(%4, %1, None, {SAME})
            %6: (f32{tiny}, i64{tiny}) = aten.max_pool2d_with_indices.default(%5, (32, 32), (32, 32))
            %7: f32{tiny} = item(%6, index=0)
            %8: f32[4, 128, 2, 2] = clone(%7, strides=(512, 4, 2, 1))
            %9: f32[4, 128, 2, 2] = aten.convolution.default(%8, %2, None, {SAME})
            %10: f32{tiny} = clone(%9, strides=(512, 1, 256, 128))
            %11: f32[4, 8, 2, 2 | 32, 1, 16, 8] = aten.convolution.default(%10, %3, None, {point})
            %12: f32[4, 8] = sum(%11, axes=(2, 3))
            return %12
        """,
    )


def test_saved_arguments_and_small_images_leave_no_gain() -> None:
    check_unchanged(
        ChannelsLast(),
        f"""
        graph({INPUTS}):
            %2: {FIRST} = aten.convolution.default(%0, %1, None, {SAME})
            %3: {FIRST} = exp(%2)
            %4: {FIRST} = aten.convolution.default(%3, %1, None, {SAME})
            return %4, %2, %3
        """,
        f"""
        graph(%0: f32[1, 8, 4, 4] "x", %1: f32[8, 8, 3, 3] "w"):
            %2: f32[1, 8, 4, 4] = aten.convolution.default(%0, %1, None, {SAME})
            return %2
        """,
    )
    large = f"""
        graph(%0: f32[16, 8, 32, 32] "x", %1: f32[8, 8, 3, 3] "w"):
            %2: f32[16, 8, 32, 32] = aten.convolution.default(%0, %1, None, {SAME})
            %3: f32[16, 8] = sum(%2, axes=(2, 3))
            return %3
    """
    assert ChannelsLast().run(parsed(large), CONTEXT)[1]


class Net(nn.Module):
    """Plain, grouped, depthwise and 1x1 convolutions, pooling, padding, a join and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.grouped = nn.Conv2d(16, 16, 3, groups=4)
        self.point = nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.relu6(self.norm(self.first(x)))
        y = self.grouped(F.pad(self.depth(x), (1, 1, 1, 1))) + x
        z = F.max_pool2d(self.point(torch.cat([x, y], 1)), 2)
        return z, F.adaptive_avg_pool2d(z, 1).flatten(1)


@pytest.mark.parametrize("batch", [1, 3])
def test_compiled_results_and_strides_are_those_of_eager(batch: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    compiled = kiln.compile(model, fullgraph=True, options={"cache_dir": str(tmp_path)})
    x = torch.randn(batch, 3, 64, 64)
    with torch.no_grad():
        for expected, found in zip(model(x), compiled(x), strict=True):
            torch.testing.assert_close(expected, found, rtol=1e-4, atol=1e-4)
            assert expected.stride() == found.stride()
    training = model.train()
    trained = kiln.compile(training, fullgraph=True, options={"cache_dir": str(tmp_path)})
    grads = []
    for run in (training, trained):
        training.zero_grad()
        sum(part.sum() for part in run(x)).backward()  # type: ignore[attr-defined]
        grads.append([p.grad.clone() for p in training.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        assert a.stride() == b.stride()


def test_a_joint_graph_on_the_gpu_is_laid_out_before_the_partition() -> None:
    """Image and weight are copied once, for forward and backward; the weight's gradient gets eager's strides."""
    image, weight = "bf16[4, 8, 32, 32 @cuda:0]", "bf16[8, 8, 3, 3 @cuda:0]"
    same = f"{SAME}, (False, True, False)"
    graph = parsed(f"""
        graph(%0: {image} "x", %1: {weight} "w"):
            %3: {image} = aten.convolution.default(%0, %1, None, {SAME})
            %4: {image} = exp(%3)
            %2: bf16[4, 8 @cuda:0] = sum(%4, axes=(2, 3))
            %5: {image} = mul(%4, %4)
            %6: (none, {weight}, none) = aten.convolution_backward.default(%5, %0, %1, None, {same})
            %7: {weight} = item(%6, index=1)
            return %2, %7
    """)
    made, changes = ChannelsLast().run(graph, CONTEXT)
    verify(made, "test")
    assert changes
    assert sum(node.op.name == "clone" for node in made.nodes) == 3
    assert [out.value.tensor.strides for out in made.outputs] == [out.value.tensor.strides for out in graph.outputs]
    layouts = [node.inputs[1].tensor.strides[1] for node in made.nodes if node.op.name == "aten"]
    assert layouts == [1, 1]


def test_several_results_for_each_channel_are_left_alone_on_the_gpu() -> None:
    """Between two layers that are laid out anew, a depthwise one reads a copy in the old layout."""
    image, wide = "bf16[4, 8, 64, 64 @cuda:0]", "bf16[4, 16, 64, 64 @cuda:0]"
    layers = "bf16[8, 8, 3, 3 @cuda:0]", "bf16[16, 1, 3, 3 @cuda:0]", "bf16[16, 16, 3, 3 @cuda:0]"
    graph = parsed(f"""
        graph(%0: {image} "x", %1: {layers[0]} "a", %2: {layers[1]} "b", %3: {layers[2]} "c"):
            %4: {image} = aten.convolution.default(%0, %1, None, {SAME})
            %5: {image} = aten.convolution.default(%4, %1, None, {SAME})
            %6: {wide} = aten.convolution.default(%5, %2, None, {SAME[:-1]}8)
            %7: {wide} = aten.convolution.default(%6, %3, None, {SAME})
            %8: {wide} = aten.convolution.default(%7, %3, None, {SAME})
            %9: bf16[4, 16 @cuda:0] = sum(%8, axes=(2, 3))
            return %9
    """)
    made, changes = ChannelsLast().run(graph, CONTEXT)
    verify(made, "test")
    assert changes
    images = [node.inputs[0].tensor.strides[1] for node in made.nodes if node.op.name == "aten"]
    assert images == [1, 1, 64 * 64, 1, 1]


def test_weights_much_larger_than_images_are_laid_out_on_the_gpu() -> None:
    """The library would copy them for either layout."""
    image, wide = "bf16[1, 8, 32, 32 @cuda:0]", "bf16[1, 512, 32, 32 @cuda:0]"
    weights = "bf16[512, 8, 3, 3 @cuda:0]", "bf16[512, 512, 3, 3 @cuda:0]"
    graph = parsed(f"""
        graph(%0: {image} "x", %1: {weights[0]} "a", %2: {weights[1]} "b"):
            %4: {wide} = aten.convolution.default(%0, %1, None, {SAME})
            %5: {wide} = aten.convolution.default(%4, %2, None, {SAME})
            %6: bf16[1, 512 @cuda:0] = sum(%5, axes=(2, 3))
            return %6
    """)
    made, changes = ChannelsLast().run(graph, CONTEXT)
    verify(made, "test")
    assert changes
    operands = [value.tensor.strides[1] for node in made.nodes if node.op.name == "aten" for value in node.inputs]
    assert operands == [1, 1, 1, 1]


def test_volumes_on_the_gpu() -> None:
    """Depthwise ones keep the layout, and so do all on a CPU."""
    volume, weight = "bf16[2, 8, 16, 32, 32]", "bf16[8, 8, 3, 3, 3]"
    same = "(1, 1, 1), (1, 1, 1), (1, 1, 1), False, (0, 0, 0), 1"
    text = f"""
        graph(%0: {volume} "x", %1: {weight} "a", %2: {weight.replace("8, 8", "8, 1")} "b"):
            %3: {volume} = aten.convolution.default(%0, %1, None, {same})
            %4: {volume} = exp(%3)
            %5: {volume} = aten.convolution.default(%4, %1, None, {same})
            %6: {volume} = exp(%5)
            %7: {volume} = aten.convolution.default(%6, %2, None, {same[:-1]}8)
            return %7
    """
    assert ChannelsLast().run(parsed(text), CONTEXT)[1] == 0
    made, _ = ChannelsLast().run(on_gpu(text), CONTEXT)
    verify(made, "test")
    images = [node.inputs[0].tensor.strides[1] for node in made.nodes if node.op.name == "aten"]
    assert images == [1, 1, 16 * 32 * 32]
