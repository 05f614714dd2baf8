"""Sums of one-hot rows."""

from __future__ import annotations

import pytest
import torch

from kiln.graph.passes.one_hot import OneHotSums
from tests.graph.passes.graphs import check_pass, check_unchanged

LOSS = """
    graph(%0: i64[6, 1] "target", %1: f32[6, 1] "value", %2: f32[6, 7] "values", %3: b8[6, 7] "conditions"):
        %4: i64[] = constant(value=-100, dtype=i64, device=cpu)
        %5: b8[6, 1] = ne(%0, %4)
        %6: i64[7] = iota(length=7, start=0, step=1, dtype=i64, device=cpu)
        %7: b8[6, 7] = eq(%6, %0)
        %8: b8[6, 7] = bitwise_and(%7, %5)
        %9: f32[] = constant(value=0.0, dtype=f32, device=cpu)
        %10: f32[6, 7] = where(%8, %1, %9)
        %11: bf16[6, 7] = convert(%10, dtype=bf16)
        %12: f32[6, 7] = convert(%11, dtype=f32)
        %13: f32[6] = sum(%12, axes=(1,))
        return %13
"""
UNREAD = (torch.zeros(6, 7), torch.zeros(6, 7, dtype=torch.bool))


def test_the_gradient_of_a_loss_needs_no_pass_over_its_rows() -> None:
    """Also for targets out of range, and with the same rounding."""
    target = torch.tensor([[0], [6], [7], [-1], [-100], [3]])
    value = torch.tensor([[0.1], [-0.0], [1.0], [2.0], [float("nan")], [float("inf")]])
    check_pass(
        OneHotSums(),
        LOSS,
        """
        graph(%0: i64[6, 1] "target", %1: f32[6, 1] "value", %2: f32[6, 7] "values", %3: b8[6, 7] "conditions"):
            %4: i64[] = constant(value=-100, dtype=i64, device=cpu)
            %5: b8[6, 1] = ne(%0, %4)
            %6: f32[] = constant(value=0.0, dtype=f32, device=cpu)
            %7: i64[] = constant(value=0, dtype=i64, device=cpu)
            %8: b8[6, 1] = ge(%0, %7)
            %9: i64[] = constant(value=7, dtype=i64, device=cpu)
            %10: b8[6, 1] = lt(%0, %9)
            %11: b8[6, 1] = bitwise_and(%8, %10)
            %12: b8[6, 1] = bitwise_and(%11, %5)
            %13: f32[6, 1] = where(%12, %1, %6)
            %14: bf16[6, 1] = convert(%13, dtype=bf16)
            %15: f32[6, 1] = convert(%14, dtype=f32)
            %16: f32[6, 1] = add(%15, %6)
            %17: f32[6] = select(%16, axis=1, index=0)
            return %17
        """,
        inputs=[target, value, *UNREAD],
        tolerance=0,
    )


CHANGED = {
    "another axis": ("f32[6] = sum(%12, axes=(1,))", "f32[7] = sum(%12, axes=(0,))"),
    "a value that changes along the row": ("where(%8, %1, %9)", "where(%8, %2, %9)"),
    "a condition that changes along the row": ("bitwise_and(%7, %5)", "bitwise_and(%7, %3)"),
    "another number elsewhere": ("value=0.0", "value=0.5"),
    "every second index": ("step=1", "step=2"),
    "indices from 1 on": ("start=0", "start=1"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_rows_are_summed(name: str) -> None:
    check_unchanged(OneHotSums(), LOSS.replace(*CHANGED[name]))


def test_rows_of_integers_are_summed() -> None:
    check_unchanged(
        OneHotSums(),
        """
        graph(%0: i64[6, 1] "target", %1: i64[6, 1] "value"):
            %2: i64[7] = iota(length=7, start=0, step=1, dtype=i64, device=cpu)
            %3: b8[6, 7] = eq(%2, %0)
            %4: i64[] = constant(value=0, dtype=i64, device=cpu)
            %5: i64[6, 7] = where(%3, %1, %4)
            %6: i64[6] = sum(%5, axes=(1,))
            return %6
        """,
    )
