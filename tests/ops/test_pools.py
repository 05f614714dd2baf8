"""Pools, most of them on the CPU: windows, borders, dtypes, layouts, arguments, equal to eager bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import kiln
from kiln.graph.ir.parse import parse_graph
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.pool_slices import PoolSlices
from tests.graph.passes.graphs import CONTEXT

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def pooled(average: bool, dims: int, x: Tensor, options: dict[str, Any]) -> tuple[Tensor, ...]:
    made = getattr(F, f"{'avg' if average else 'max'}_pool{dims}d")(x, **options)
    return made if isinstance(made, tuple) else (made,)


def options_of(draw: random.Random, average: bool, dims: int) -> dict[str, Any]:
    kernel = [draw.randint(1, 4) for _ in range(dims)]
    options: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": [draw.randint(1, 3) for _ in range(dims)],
        "padding": [draw.randint(0, size // 2) for size in kernel],
        "ceil_mode": draw.random() < 0.4,
    }
    if average:
        divisor = {"divisor_override": draw.choice((None, 3))} if dims > 1 else {}
        return {**options, "count_include_pad": draw.random() < 0.5, **divisor}
    return {**options, "dilation": [draw.choice((1, 1, 2)) for _ in range(dims)], "return_indices": draw.random() < 0.5}


def image_of(draw: random.Random, dims: int) -> Tensor:
    channels = draw.choice(([2, 3], [3], [2, 17]))
    dtypes = DTYPES if dims < 3 else DTYPES[:2]
    x = torch.randn(*channels, *[draw.randint(8, 14) for _ in range(dims)], dtype=draw.choice(dtypes))
    x = x.round() if draw.random() < 0.3 else x
    for value, step in ((float("nan"), 7), (float("-inf"), 3)):
        if draw.random() < 0.2:
            x.view(-1)[::step] = value
    last = dims == 2 and x.dim() == 4 and draw.random() < 0.5
    return x.contiguous(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("seed", range(12))
def test_random_windows(seed: int) -> None:
    draw = random.Random(seed)
    average, dims, dynamic = draw.random() < 0.4, draw.choice((1, 2, 2, 3)), draw.random() < 0.5
    x, options = image_of(draw, dims), options_of(draw, average, dims)
    given, same = x.clone().requires_grad_(), x.clone().requires_grad_()
    eager = pooled(average, dims, given, options)
    compiled = kiln.compile(lambda x: pooled(average, dims, x, options), dynamic=dynamic, fullgraph=True)(same)
    for found, expected in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)
    slope = torch.randn_like(eager[0])
    gradients = [torch.autograd.grad(made[0], leaf, slope)[0] for made, leaf in ((eager, given), (compiled, same))]
    torch.testing.assert_close(*gradients, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("training", [False, True])
def test_one_compile_for_all_lengths(training: bool) -> None:
    """Eager's `max_pool1d` reads sizes as plain numbers."""
    compiled = kiln.compile(lambda x: F.max_pool1d(x, 2), dynamic=True)
    for length in (8, 11, 14, 17):
        x = torch.randn(2, 3, length, requires_grad=training)
        assert torch.equal(compiled(x), F.max_pool1d(x, 2))
    assert compiled.report().compiles == 1
    with pytest.raises(RuntimeError, match="output size"):
        compiled(torch.randn(2, 3, 1))


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool1d(x, 2, stride=0),
        lambda x: F.max_pool1d(x[0, 0], 2),
        lambda x: F.max_pool1d(x[None], 2),
        lambda x: F.max_pool1d(x, 2, padding=2),
        lambda x: F.max_pool1d(x, -1),
        lambda x: F.max_pool1d(x.int(), 2),
    ],
    ids=["stride", "rank 1", "rank 4", "padding", "kernel", "integers"],
)
def test_what_eager_refuses(pool: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 3, 9)
    for function in (pool, kiln.compile(pool), kiln.compile(pool, dynamic=True)):
        with pytest.raises(RuntimeError):
            function(x)


def test_no_indices_without_a_reader() -> None:
    compiled = kiln.compile(lambda x: F.max_pool2d(x.relu(), 2) * 2)
    compiled(torch.randn(2, 3, 8, 8))
    assert (compiled.report().kernels, compiled.report().library_calls) == (1, 0)


POOLS = """\
graph(%0: f32[2, 8, 12, 12 @cuda:0] "x"):
    %1: f32[2, 8, 6, 6 @cuda:0] = aten.avg_pool2d.default(%0, (2, 2), (2, 2))
    %2: f32[2, 8, 3, 3 @cuda:0] = aten.avg_pool2d.default(%0, (4, 4), (4, 4))
    %3: (f32[2, 8, 6, 6 @cuda:0], i64[2, 8, 6, 6 @cuda:0]) = aten.max_pool2d_with_indices.default(%0, (2, 2), (2, 2))
    %4: f32[2, 8, 6, 6 @cuda:0] = item(%3, index=0)
    return %1, %2, %4"""


def test_averages_of_few_elements_are_sums_of_slices_on_a_gpu() -> None:
    """Its kernels for maxima and for wide windows stay."""
    made, changes = PoolSlices().run(parse_graph(POOLS), CONTEXT)
    made, _ = DeadCode().run(made, CONTEXT)
    assert changes == 1
    calls = [(node.attrs["target"], node.attrs["args"][1]) for node in made.nodes if node.op.name == "aten"]
    assert calls == [("aten.avg_pool2d.default", (4, 4)), ("aten.max_pool2d_with_indices.default", (2, 2))]
    assert [node.op.name for node in made.nodes].count("slice") == 8
