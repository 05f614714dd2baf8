"""Depthwise convolutions of lines as sums: the same values and gradients, and which are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kiln
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import verify
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.depthwise_lines import DepthwiseLines
from kiln.graph.passes.manager import PassContext
from kiln.symbolic import ShapeEnv
from tests.graph.passes.graphs import CONTEXT, check_unchanged, parsed, same_values

CASES = {
    "causal": (20, 4, 1, 3, 1),
    "one tap": (20, 1, 1, 0, 1),
    "stride": (21, 3, 2, 1, 1),
    "stride without the end": (22, 4, 3, 0, 1),
    "dilated": (20, 3, 1, 2, 2),
    "padding beyond the taps": (20, 2, 1, 3, 1),
    "many taps": (40, 31, 1, 15, 1),
    "many taps, stride": (40, 13, 2, 6, 1),
    "many taps, dilated": (60, 13, 1, 12, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    length, taps, stride, padding, dilation = CASES[name]
    made = (length + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    options = f"({stride},), ({padding},), ({dilation},), False, (0,), 6"
    line, weight, result = f"f32[3, 6, {length}]", f"f32[6, 1, {taps}]", f"f32[3, 6, {made}]"
    graph = parsed(f"""
        graph(%0: {line} "x", %1: {weight} "w", %2: f32[6] "b", %3: {result} "tangent"):
            %4: {result} = aten.convolution.default(%0, %1, %2, {options})
            %5: ({line}, {weight}, f32[6]) = aten.convolution_backward.default(%3, %0, %1, (6,), {options}, (True, True, True))
            %6: {line} = item(%5, index=0)
            %7: {weight} = item(%5, index=1)
            %8: f32[6] = item(%5, index=2)
            return %4, %6, %7, %8
    """)  # noqa: E501
    after, changes = DepthwiseLines().run(graph, CONTEXT)
    verify(after, "test")
    after, _ = DeadCode().run(after, CONTEXT)
    assert changes == 4
    assert not any(node.op.name == "aten" for node in after.nodes)
    same_values(graph, after, tolerance=1e-4)


def test_lengths_that_change() -> None:
    env = ShapeEnv()
    symbols = [env.create_symbol(hint, lo=2) for hint in (3, 20)]
    options = "(1,), (3,), (1,), False, (0,), 6"
    graph = parsed(f"""
        graph(%0: f32[s0, 6, s1] "x", %1: f32[6, 1, 4] "w"):
            %2: f32[s0, 6, s1 + 3] = aten.convolution.default(%0, %1, None, {options})
            return %2
    """)
    after, changes = DepthwiseLines().run(graph, PassContext(GuardFreeOracle(env)))
    verify(after, "test")
    assert changes
    for sizes in (2, 2), (3, 13):
        same_values(graph, after, tolerance=1e-5, symbols=dict(zip(symbols, sizes, strict=True)))


def test_others_stay() -> None:
    def convolution(line: str, weight: str, groups: int) -> str:
        return f"""
            graph(%0: {line} "x", %1: {weight} "w"):
                %2: {line} = aten.convolution.default(%0, %1, None, (1,), (1,), (1,), False, (0,), {groups})
                return %2
        """

    check_unchanged(
        DepthwiseLines(),
        convolution("f32[3, 6, 20]", "f32[6, 2, 3]", 3),
        convolution("f32[3, 6, 20]", "f32[6, 6, 3]", 1),
        convolution("f32[3, 6, 20 @cuda:0]", "f32[6, 1, 3 @cuda:0]", 6),
    )


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As in state space models: along the sequence, whose channels are the last dimension."""
    line = F.conv1d(x.transpose(1, 2), w, b, padding=3, groups=x.shape[2])[..., : x.shape[1]]
    return F.silu(line.transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_compiled(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 33, 20), torch.randn(20, 1, 4), torch.randn(20)]

    def results(function: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        args = [tensor.to(dtype).requires_grad_() for tensor in given]
        made = function(*args)
        made.sum().backward()
        assert all(arg.grad is not None for arg in args)
        return [made.detach(), *[arg.grad for arg in args if arg.grad is not None]]

    exact, eager = results(block, torch.float64), results(block, dtype)
    found = results(kiln.compile(block, fullgraph=True), dtype)
    for truth, plain, mine in zip(exact, eager, found, strict=True):
        assert mine.dtype is dtype and mine.stride() == plain.stride()
        error = (mine - truth).norm() / truth.norm()
        assert error <= 2 * (plain - truth).norm() / truth.norm() + 1e-6


@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (13, 1)])
def test_infinite_weights_meet_no_padding(taps: int, stride: int) -> None:
    def line(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, w, None, stride, taps // 2, groups=8)

    w = torch.ones(8, 1, taps)
    w[:, :, 0] = float("inf")
    results = []
    for function in (line, kiln.compile(line, fullgraph=True)):
        x = torch.ones(1, 8, 20, requires_grad=True)
        made = function(x, w)
        made.sum().backward()
        results.append((made.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])
