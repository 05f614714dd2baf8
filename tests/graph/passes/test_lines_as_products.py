"""Convolutions of lines as products of windows: the same values, and which are taken."""

from __future__ import annotations

import pytest

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import rewrite, without_dead_code
from kiln.graph.ir.verify import verify
from kiln.graph.passes.lines_as_products import LinesAsProducts, as_products, is_gradient
from kiln.symbolic import symbol
from tests.graph.passes.graphs import CONTEXT, on_gpu, parsed, same_values


def with_products(graph: Graph) -> Graph:
    made, _ = rewrite(graph, as_products, CONTEXT.oracle, [n for n in graph.nodes if n.op.name in ("aten", "item")])
    made, _ = without_dead_code(made)
    verify(made, "test")
    return made


def targets(graph: Graph) -> list[object]:
    return [node.attrs["target"] for node in graph.nodes if node.op.name == "aten"]


@pytest.mark.parametrize(
    ("length", "taps", "padding", "dilation", "block"),
    [(30, 1, 0, 1, 1), (30, 3, 1, 1, 1), (30, 3, 2, 2, 1), (30, 32, 16, 1, 3), (50, 40, 0, 1, 4)],
    ids=["one-tap", "three", "dilated", "block", "without-padding"],
)
def test_values_and_gradients(length: int, taps: int, padding: int, dilation: int, block: int) -> None:
    made = length + 2 * padding - dilation * (taps - 1)
    options = f"(1,), ({padding},), ({dilation},), False, (0,), 2"
    graph = parsed(f"""
        graph(%0: f32[3, 16, {length} | {16 * length}, 1, 16] "x", %1: f32[18, 8, {taps}] "w", %2: f32[18] "b", %3: f32[3, 18, {made}] "tangent"):
            %4: f32[3, 18, {made}] = aten.convolution.default(%0, %1, %2, {options})
            %5: (f32[3, 16, {length}], f32[18, 8, {taps}], none) = aten.convolution_backward.default(%3, %0, %1, (18,), {options}, (True, True, False))
            %6: f32[3, 16, {length}] = item(%5, index=0)
            %7: f32[18, 8, {taps}] = item(%5, index=1)
            return %4, %6, %7
    """)  # noqa: E501
    after = with_products(graph)
    assert targets(after) == ["aten.bmm.default"] * 3
    same_values(graph, after, tolerance=1e-4)
    assert max(node.attrs["step"] for node in after.nodes if node.op.name == "unfold") == block


def test_a_dilated_weight_without_groups() -> None:
    options = "(1,), (2,), (2,), False, (0,), 1"
    graph = parsed(f"""
        graph(%0: f32[3, 8, 30] "x", %1: f32[12, 8, 3] "w", %2: f32[3, 12, 30] "tangent"):
            %3: (f32[3, 8, 30], f32[12, 8, 3], f32[12]) = aten.convolution_backward.default(%2, %0, %1, (12,), {options}, (True, True, True))
            %4: f32[3, 8, 30] = item(%3, index=0)
            %5: f32[12, 8, 3] = item(%3, index=1)
            %6: f32[12] = item(%3, index=2)
            return %4, %5, %6
    """)  # noqa: E501
    call = graph.nodes[0]
    gradients = [node for node in graph.nodes[1:] if is_gradient(node, grouped=(), dilated={call})]
    after, changes = rewrite(graph, as_products, CONTEXT.oracle, [call, *gradients])
    verify(after, "test")
    assert (changes, targets(after)) == (2, ["aten.convolution_backward.default", "aten.bmm.default"])
    assert after.nodes[0].attrs["args"][-1] == (True, False, True)
    same_values(graph, after, tolerance=1e-4)


OPTIONS = "(1,), (16,), (1,), False, (0,), 2"


def test_sizes_that_change() -> None:
    graph = parsed(f"""
        graph(%0: f32[s0, 16, s1] "x", %1: f32[18, 8, 32] "w", %2: f32[s0, 18, s1 + 1] "tangent"):
            %3: f32[s0, 18, s1 + 1] = aten.convolution.default(%0, %1, None, {OPTIONS})
            %4: (f32[s0, 16, s1], f32[18, 8, 32], none) = aten.convolution_backward.default(%2, %0, %1, None, {OPTIONS}, (True, True, False))
            %5: f32[s0, 16, s1] = item(%4, index=0)
            %6: f32[18, 8, 32] = item(%4, index=1)
            return %3, %5, %6
    """)  # noqa: E501
    after = with_products(graph)
    assert targets(after) == ["aten.bmm.default"] * 3
    for sizes in (1, 1), (2, 13), (3, 40):
        same_values(graph, after, tolerance=1e-4, symbols=dict(zip(map(symbol, ("s0", "s1")), sizes, strict=True)))


LINE, WEIGHT, SAME = "bf16[4, 64, 500]", "bf16[64, 16, 9]", "(1,), (4,), (1,), False, (0,), 4"


@pytest.mark.parametrize(
    ("line", "weight", "options", "taken"),
    [
        (LINE, WEIGHT, SAME, True),
        (LINE.replace("bf16", "f32"), WEIGHT.replace("bf16", "f32"), SAME, False),
        (LINE, "bf16[64, 1, 9]", SAME.replace(" 4", " 64", 2).replace("(64,)", "(4,)"), False),
        (LINE, "bf16[64, 64, 9]", SAME[:-1] + "1", False),
        (LINE, "bf16[64, 4, 9]", SAME[:-1] + "16", False),
        ("bf16[4096, 64, 5000]", WEIGHT, SAME, False),
    ],
    ids=["taken", "float32", "one channel each", "no groups", "few channels", "windows are large"],
)
def test_which_are_taken(line: str, weight: str, options: str, taken: bool) -> None:
    graph = on_gpu(f"""
        graph(%0: {line} "x", %1: {weight} "w"):
            %2: {line} = aten.convolution.default(%0, %1, None, {options})
            return %2
    """)
    assert bool(LinesAsProducts().run(graph, CONTEXT)[1]) == taken
