"""Sums of rows with one number in them."""

from __future__ import annotations

import pytest
import torch

from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import verify
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.one_hot import OneHotSums
from tests.graph.passes.graphs import graph_of

CONTEXT = PassContext(GuardFreeOracle())
HEAD = '%0: i64[6, 1] "target", %1: f32[6, 1] "value", %2: f32[6, 7] "values", %3: b8[6, 7] "conditions"'
LOSS = """\
    %4: i64[] = constant(value=-100, dtype=i64, device=cpu)
    %5: b8[6, 1] = ne(%0, %4)
    %6: i64[7] = iota(length=7, start=0, step=1, dtype=i64, device=cpu)
    %7: b8[6, 7] = eq(%6, %0)
    %8: b8[6, 7] = bitwise_and(%7, %5)
    %9: f32[] = constant(value=0.0, dtype=f32, device=cpu)
    %10: f32[6, 7] = where(%8, %1, %9)
    %11: bf16[6, 7] = convert(%10, dtype=bf16)
    %12: f32[6, 7] = convert(%11, dtype=f32)
    %13: f32[6] = sum(%12, axes=(1,))"""


UNREAD = (torch.zeros(6, 7), torch.zeros(6, 7, dtype=torch.bool))


def test_the_gradient_of_a_loss_needs_no_pass_over_its_rows() -> None:
    """Also of targets that there are not; the number is rounded as it was."""
    graph = graph_of(HEAD, LOSS.strip(), "return %13")
    changed, count = OneHotSums().run(graph, CONTEXT)
    verify(changed, "one-hot-sums")
    changed, _ = DeadCode().run(changed, CONTEXT)
    assert count == 1 and not {"sum", "iota"} & {node.op.name for node in changed.nodes}
    target = torch.tensor([[0], [6], [7], [-1], [-100], [3]])
    value = torch.tensor([[0.1], [-0.0], [1.0], [2.0], [float("nan")], [float("inf")]])
    expected, got = (interpret(one, [target, value, *UNREAD]).outputs[0] for one in (graph, changed))
    assert torch.equal(expected, got) and torch.equal(expected.signbit(), got.signbit())


CHANGED = {
    "another axis": ("f32[6] = sum(%12, axes=(1,))", "f32[7] = sum(%12, axes=(0,))"),
    "a value that changes along the row": ("where(%8, %1, %9)", "where(%8, %2, %9)"),
    "a condition that changes along the row": ("bitwise_and(%7, %5)", "bitwise_and(%7, %3)"),
    "another number elsewhere": ("value=0.0", "value=0.5"),
    "every second index": ("step=1", "step=2"),
    "indices from one on": ("start=0", "start=1"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_rows_are_summed(name: str) -> None:
    graph = graph_of(HEAD, LOSS.strip().replace(*CHANGED[name]), "return %13")
    assert OneHotSums().run(graph, CONTEXT)[1] == 0
