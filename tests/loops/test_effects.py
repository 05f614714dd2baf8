"""Effects and refusals of lowering: assertions, numbers read on the host, ops without loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.interpret import run_kernel_program
from kiln.loops.lowering.checks import checks_first
from kiln.loops.lowering.errors import NoLowering
from kiln.loops.program.interpret import run_program
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.tensor.spec import CPU, ScalarSpec, TensorSpec
from tests.loops.checks import TARGET, lowered
from tests.loops.programs import Env


def runs(graph: Graph, inputs: list[Any]) -> list[list[Any]]:
    program = lowered(graph)
    verify_program(program)
    return [run_program(program, inputs), run_kernel_program(schedule(program, TARGET, EventSink()), inputs)]


@pytest.mark.parametrize("holds", [True, False])
def test_assert(holds: bool) -> None:
    g = Env()
    x = g.tensor(6, make=lambda shape: torch.full(shape, 1.0 if holds else -1.0))
    g.builder.add(PRIMS["assert"], (g.all(g.gt(x, 0.0), axes=(0,)),), {"message": "x is positive"}, ())
    made = g.done(g.exp(x))
    if holds:
        for (out,) in runs(*made):
            torch.testing.assert_close(out, torch.full((6,), 2.718281828))
    else:
        with pytest.raises(RuntimeError, match="x is positive"):
            runs(*made)


def test_a_size_that_data_decide() -> None:
    g = Env()
    n = g.tensor(make=lambda shape: torch.tensor(5))
    size = g.shapes.create_unbacked()
    g.builder.add(PRIMS["local_scalar"], (n,), {"kind": "int", "checks": ()}, ScalarSpec(int, size))
    numbers = g.iota(length=size, start=0, step=2, dtype=torch.int64, device=CPU)
    for out, total in runs(*g.done(g.add(numbers, 1), g.sum(numbers, axes=(0,)))):
        assert out.tolist() == [1, 3, 5, 7, 9] and total.item() == 20


@pytest.mark.parametrize("at", [1, -1])
def test_a_position_that_data_decide_counts_from_either_end(at: int) -> None:
    """The number is in an index, and in no size."""
    g = Env()
    x, row, t = g.tensor(2, 5), g.tensor(2), g.tensor(make=lambda shape: torch.tensor(at))
    number = g.shapes.create_unbacked(lo=-5, hi=4)
    g.builder.add(PRIMS["local_scalar"], (t,), {"kind": "int", "checks": ()}, ScalarSpec(int, number))
    expected = g.inputs[0].clone()
    expected[:, at] = g.inputs[1]
    for (out,) in runs(*g.done(g.select_scatter(x, row, axis=1, index=number % 5))):
        torch.testing.assert_close(out, expected)


def test_an_integer_argument() -> None:
    g = Env()
    x, k = g.tensor(4), g.shapes.create_symbol(3)
    number = g.builder.input("k", ScalarSpec(int, k))
    g.inputs.append(3)
    scale = g.builder.node("scalar_tensor", number, dtype=torch.float32, device=CPU)
    for (out,) in runs(*g.done(g.mul(x, scale))):
        torch.testing.assert_close(out, g.inputs[0] * 3)


def test_a_branch_is_refused_with_a_code() -> None:
    g = Env()
    x = g.tensor(4)
    inner = Env()
    graph, _ = inner.done(inner.neg(inner.tensor(4)))
    whole = Node(PRIMS["region"], (x,), {"body": graph, "tag": "block"}, (x.tensor,))
    g.builder.nodes.append(whole)
    with pytest.raises(NoLowering, match="KILN3001"):
        lowered(g.done(g.builder.node("item", whole, index=0))[0])


def test_complex_numbers_that_need_several_calls_are_refused_with_a_code() -> None:
    g = Env()
    z = g.tensor(4, make=lambda shape: torch.randn(shape, dtype=torch.complex64))
    one = g.builder.add(PRIMS["constant"], (), {"value": 1j, "dtype": torch.complex64, "device": CPU},
                         TensorSpec(torch.complex64, (), ()))  # fmt: skip
    with pytest.raises(NoLowering, match="is not a single ATen call"):
        lowered(g.done(g.builder.node("pad", z, one, low=(1,), high=(0,)))[0])


def test_a_check_does_not_wait_for_a_backward_that_draws_nothing() -> None:
    """Checks come first in a step that writes, with what draws random numbers in front of them: not a backward of
    attention, which gets the seed of its forward, and with it the whole chain of gradients."""
    g = Env()
    upstream, q, k, v, out = [g.tensor(1, 2, 8, 16) for _ in range(5)]
    lse, weight = g.tensor(1, 2, 8), g.tensor(16)
    states = upstream, q, k, v, out, lse, *[g.tensor(make=lambda shape: torch.tensor(0)) for _ in range(2)]
    target = "aten._scaled_dot_product_cudnn_attention_backward.default"
    for dropped in (0.0, 0.5):
        args = (*states, None, None, None, 8, 8, dropped, False)
        attrs = {"target": target, "args": args, "kwargs": {}}
        g.builder.add(PRIMS["aten"], states, attrs, (q.tensor, k.tensor, v.tensor))
    g.builder.add(PRIMS["assert"], (g.all(g.gt(weight, 0.0), axes=(0,)),), {"message": "it is positive"}, ())
    order = [node.op.name for node in checks_first(g.builder.nodes, writes=True)]
    assert order.index("assert") < order.index("aten")
