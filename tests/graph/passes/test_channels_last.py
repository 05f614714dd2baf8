"""Convolutional regions in channels-last layout: by text, against the interpreter, and compiled."""

from __future__ import annotations

from pathlib import Path

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
from tests.graph.passes.graphs import CONTEXT, graph_of, same_values

IMAGE = '%0: f32[4, 8, 32, 32] "x", %1: f32[8, 8, 3, 3] "w"'
CONV = "(1, 1), (1, 1), (1, 1), False, (0, 0), 1)"


def changed(graph: Graph) -> Graph:
    """After all passes; the values and the strides of outputs stay."""
    made = run_passes(graph, EventSink(), checks="full")
    same_values(graph, made, tolerance=1e-4, symbols=dict.fromkeys(symbols_of(graph.inputs), 3))
    return made


def copies(graph: Graph) -> int:
    return sum(node.op.name in ("clone", "reshape") for node in graph.nodes)


def test_a_region_is_entered_and_left_once() -> None:
    graph = graph_of(
        IMAGE,
        f"%2: f32[4, 8, 32, 32] = aten.convolution.default(%0, %1, None, {CONV}",
        "%3: f32[4, 8, 32, 32] = exp(%2)",
        f"%4: f32[4, 8, 32, 32] = aten.convolution.default(%3, %1, None, {CONV}",
        "%5: f32[4, 8, 32, 32] = add(%4, %3)",
        f"%6: f32[4, 8, 32, 32] = aten.convolution.default(%5, %1, None, {CONV}",
        "return %6",
    )
    made = changed(graph)
    assert copies(made) == 2
    assert "%3: f32[4, 8, 32, 32 | 8192, 1, 256, 8] = aten.convolution" in graph_text(made)


def test_the_batch_may_be_a_symbol() -> None:
    image = "f32[s0, 8, 32, 32]"
    graph = graph_of(
        IMAGE.replace("f32[4, 8, 32, 32]", image),
        f"%2: {image} = aten.convolution.default(%0, %1, None, {CONV}",
        "%3: f32[8] = sum(%1, axes=(1, 2, 3))", "%4: f32[8, 1] = unsqueeze(%3, axis=1)",
        "%5: f32[8, 1, 1] = unsqueeze(%4, axis=2)", f"%6: {image} = add(%2, %5)",
        "%7: (f32[s0, 8, 16, 16], i64[s0, 8, 16, 16]) = aten.max_pool2d_with_indices.default(%6, (2, 2), (2, 2))",
        "%8: f32[s0, 8, 16, 16] = item(%7, index=0)",
        f"%9: f32[s0, 8, 16, 16] = aten.convolution.default(%8, %1, None, {CONV}",
        "%10: f32[s0, 8] = sum(%9, axes=(2, 3))",
        "return %10",
    )  # fmt: skip
    assert copies(changed(graph)) == 1


def test_a_view_that_no_longer_holds_is_copied() -> None:
    graph = graph_of(
        IMAGE,
        f"%2: f32[4, 8, 32, 32] = aten.convolution.default(%0, %1, None, {CONV}",
        f"%3: f32[4, 8, 32, 32] = aten.convolution.default(%2, %1, None, {CONV}",
        f"%4: f32[4, 8, 32, 32] = aten.convolution.default(%3, %1, None, {CONV}",
        "%5: f32[4, 8192] = view(%4, sizes=(4, 8192))", "return %5",
    )  # fmt: skip
    assert "reshape" in graph_text(changed(graph))


def test_outputs_that_are_views_and_written_values() -> None:
    graph = graph_of(
        IMAGE,
        f"%2: f32[4, 8, 32, 32] = aten.convolution.default(%0, %1, None, {CONV}",
        f"%3: f32[4, 8, 32, 32] = aten.convolution.default(%2, %1, None, {CONV}",
        f"%4: f32[4, 8, 32, 32] = aten.convolution.default(%3, %1, None, {CONV}",
        f"%5: f32[4, 8, 32, 32] = aten.convolution.default(%4, %1, None, {CONV}",
        "%6: f32[4, 4, 32, 32 | 8192, 1024, 32, 1 at 2048] = slice(%5, axis=1, start=2, stop=6, step=1)",
        "write %0 <- %4", "return %6",
    )  # fmt: skip
    made = changed(graph)
    assert copies(made) == 2
    assert made.outputs[0].value.tensor.strides == (8192, 1024, 32, 1)


def test_saved_arguments_leave_no_gain() -> None:
    graph = graph_of(
        IMAGE,
        f"%2: f32[4, 8, 32, 32] = aten.convolution.default(%0, %1, None, {CONV}",
        "%3: f32[4, 8, 32, 32] = exp(%2)",
        f"%4: f32[4, 8, 32, 32] = aten.convolution.default(%3, %1, None, {CONV}",
        "return %4, %2, %3",
    )
    assert ChannelsLast().run(graph, CONTEXT)[1] == 0


def test_a_convolution_with_a_large_weight_stays_in_the_old_layout() -> None:
    graph = graph_of(
        '%0: f32[4, 8, 64, 64] "x", %1: f32[128, 8, 3, 3] "w", %2: f32[128, 128, 3, 3] "v", %3: f32[8, 128, 1, 1] "u"',
        "%4: f32[4, 128, 64, 64] = aten.convolution.default(%0, %1, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)",
        "%5: (f32[4, 128, 2, 2], i64[4, 128, 2, 2]) = aten.max_pool2d_with_indices.default(%4, (32, 32), (32, 32))",
        "%6: f32[4, 128, 2, 2] = item(%5, index=0)",
        f"%7: f32[4, 128, 2, 2] = aten.convolution.default(%6, %2, None, {CONV}",
        "%8: f32[4, 8, 2, 2] = aten.convolution.default(%7, %3, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)",
        "%9: f32[4, 8] = sum(%8, axes=(2, 3))", "return %9",
    )  # fmt: skip
    layouts = [
        node.tensor.strides[1] for node in changed(graph).nodes
        if node.attrs.get("target") == "aten.convolution.default"
    ]  # fmt: skip
    assert layouts == [1, 4, 1]


def test_small_images_stay() -> None:
    line = f"= aten.convolution.default(%0, %1, None, {CONV}"
    small = graph_of('%0: f32[1, 8, 4, 4] "x", %1: f32[8, 8, 3, 3] "w"', f"%2: f32[1, 8, 4, 4] {line}", "return %2")
    assert ChannelsLast().run(small, CONTEXT)[1] == 0
    large = graph_of(
        IMAGE.replace("4, 8, 32", "16, 8, 32"), f"%2: f32[16, 8, 32, 32] {line}",
        "%3: f32[16, 8] = sum(%2, axes=(2, 3))", "return %3",
    )  # fmt: skip
    assert ChannelsLast().run(large, CONTEXT)[1]


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


@pytest.mark.slow
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
    for one in (training, trained):
        training.zero_grad()
        sum(part.sum() for part in one(x)).backward()  # type: ignore[attr-defined]
        grads.append([p.grad.clone() for p in training.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        assert a.stride() == b.stride()


def test_a_joint_graph_on_the_gpu_is_laid_out_before_the_partition() -> None:
    """Image and weight are copied once, for forward and backward; the weight's gradient gets eager's strides."""
    image, weight = "bf16[4, 8, 32, 32 @cuda:0]", "bf16[8, 8, 3, 3 @cuda:0]"
    graph = graph_of(
        f'%0: {image} "x", %1: {weight} "w"',
        f"%3: {image} = aten.convolution.default(%0, %1, None, {CONV}",
        f"%4: {image} = exp(%3)",
        "%2: bf16[4, 8 @cuda:0] = sum(%4, axes=(2, 3))",
        f"%5: {image} = mul(%4, %4)",
        f"%6: (none, {weight}, none) = aten.convolution_backward.default(%5, %0, %1, None, (1, 1), (1, 1), (1, 1),"
        " False, (0, 0), 1, (False, True, False))",
        f"%7: {weight} = item(%6, index=1)",
        "return %2, %7",
    )  # fmt: skip
    made, changes = ChannelsLast().run(graph, CONTEXT)
    verify(made, "test")
    assert changes
    assert copies(made) == 3
    assert [one.value.tensor.strides for one in made.outputs] == [one.value.tensor.strides for one in graph.outputs]
    layouts = [node.inputs[1].tensor.strides[1] for node in made.nodes if node.op.name == "aten"]
    assert layouts == [1, 1]
