"""What a program costs, as formulas: compared with counts and with the memory that eager takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import kiln
from kiln.graph.ir.flops import node_flops
from kiln.graph.ir.parse import parse_graph
from kiln.graph.prims.table import Kind
from kiln.programs.analysis import analyze_graph, size_of
from kiln.symbolic import evaluate, parse_int
from kiln.tensor.spec import TensorSpec
from tests.programs.models import Classifier
from tests.trace.harness import trace

BATCH = kiln.Dim("batch", min=2, max=64)


def test_formulas_of_a_layer() -> None:
    cost = kiln.analyze(Classifier(), dynamic_shapes={"x": {0: BATCH}})(torch.randn(6, 16))
    assert cost.flops == parse_int("2*batch*16*8")
    weights, x, y = 4 * (16 * 8 + 8), parse_int("4*16*batch"), parse_int("4*8*batch")
    assert cost.bytes == weights + x + y
    assert cost.peak_memory == weights + x + y
    assert str(cost).split("\n")[-1] == "needs        2 <= batch <= 64"


def test_peak_of_values_that_die() -> None:
    cost = analyze_graph(
        parse_graph("""
            graph(%0: f32[s0] "x", %1: f32[s1] "y"):
                %2: f32[s0] = neg(%0)
                %3: f32[s0] = exp(%2)
                %4: f32[] = sum(%3, axes=(0,))
                %5: f32[s1] = neg(%1)
                %6: f32[s1] = exp(%5)
                %7: f32[] = sum(%6, axes=(0,))
                %8: f32[] = add(%4, %7)
                return %8
        """)
    )
    for first, second in ((100, 3), (3, 100), (50, 50), (2, 2)):
        found = evaluate(cost.peak_memory, {"s0": first, "s1": second})
        assert found == max(12 * first + 4 * second, 4 * first + 12 * second + 4)
    assert cost.flops == parse_int("14*s0 + 14*s1 + 1")


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, groups=1)
        self.up = nn.ConvTranspose2d(8, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.conv(x)).flatten(2)
        return nn.functional.scaled_dot_product_attention(y[None], y[None], y[None])


def products(x: Tensor, y: Tensor) -> Tensor:
    return (
        (x @ y).matmul(y.transpose(1, 2))
        + (x[0, :, :5] @ x[0, :, :5])[:, :1]
        + torch.baddbmm(x[:, :, :1], x, y)[:, :, :1]
    )


def test_counts_are_those_of_torch() -> None:
    for target, args in (
        (Stack(), (torch.randn(2, 3, 9, 9),)),
        (products, (torch.randn(2, 5, 7), torch.randn(2, 7, 6))),
    ):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            target(*args)  # type: ignore[operator]
        program = kiln.export(target, args)
        flops = evaluate(analyze_graph(program.graph).flops, {})
        pointwise = sum(
            node.op.flops * node.tensor.numel() for node in program.graph.nodes if node.op.kind is Kind.POINTWISE
        )
        assert flops - pointwise == counter.get_total_flops()


def test_bytes_of_several_results() -> None:
    part = TensorSpec(torch.float32, (3, 4), (4, 1))
    assert size_of((part, None, (part, part))) == 3 * size_of(part) == 144


def test_what_is_not_counted_is_named() -> None:
    cost = kiln.analyze(lambda x: (x.sort().values @ x, torch.dot(x, x)))(torch.randn(8))
    assert cost.flops == 2 * 2 * 8
    assert cost.uncounted and "without" in str(cost) and all("sort" in name for name in cost.uncounted)
    assert kiln.analyze(lambda x: x + 1)(torch.randn(8)).uncounted == ()


def test_counts_of_gradients_are_those_of_torch() -> None:
    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        up = nn.functional.conv_transpose2d(x, weight.transpose(0, 1))
        return nn.functional.conv2d(x, weight, stride=2).sum() + up.sum()

    x, weight = torch.randn(2, 3, 9, 9, requires_grad=True), torch.randn(5, 3, 3, 3, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        convolve(x, weight).backward()
    calls = [
        node for node in trace(convolve, [x, weight], backward=True).trace.graph.nodes if node.op.kind is Kind.LIBRARY
    ]
    assert sum(evaluate(node_flops(call), {}) for call in calls) == counter.get_total_flops()


def test_the_gradient_of_attention_takes_five_products() -> None:
    query = torch.randn(1, 2, 5, 8, requires_grad=True)
    graph = trace(nn.functional.scaled_dot_product_attention, [query, query, query], backward=True).trace.graph
    flops = [node_flops(node) for node in graph.nodes if "attention" in str(node.attrs.get("target"))]
    assert flops == [2 * 2 * (2 * 5 * 5 * 8), 5 * 2 * (2 * 5 * 5 * 8)]


def test_the_peak_is_right_where_sizes_may_be_0() -> None:
    graph = parse_graph("""
        graph(%0: f32[s0] "x", %1: f32[5] "y"):
            %2: f32[s0] = neg(%0)
            %3: f32[] = sum(%2, axes=(0,))
            %4: f32[5] = neg(%1)
            return %3
    """)
    for size in (0, 1, 3, 9):
        assert evaluate(analyze_graph(graph).peak_memory, {"s0": size}) == 4 * (size + 5 + max(size + 1, 6))


def test_the_peak_of_many_symbols_is_the_largest_sum() -> None:
    count = 12
    inputs = ", ".join(f'%{n}: f32[s{n}] "x{n}"' for n in range(count))
    lines = [f"graph({inputs}):"]
    for n in range(count):
        first = count + 2 * n
        lines.append(f"    %{first}: f32[s{n}] = neg(%{n})")
        lines.append(f"    %{first + 1}: f32[] = sum(%{first}, axes=(0,))")
    lines.append("    return " + ", ".join(f"%{count + 2 * n + 1}" for n in range(count)))
    cost = analyze_graph(parse_graph("\n".join(lines)))
    for largest in range(count):
        sizes = {f"s{n}": 100 if n == largest else 1 for n in range(count)}
        inputs_and_sums = 4 * (100 + count - 1) + 4 * (largest + 1)
        assert evaluate(cost.peak_memory, sizes) >= inputs_and_sums + 400  # type: ignore[arg-type]
