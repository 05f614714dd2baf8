"""The sides of an `if` on data may leave tensors of different sizes: the size that was taken is one more number from
data. No break, at most two compiles for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import kiln
from kiln.api import report_of

Program = Callable[[Tensor, Tensor], Any]


def keeps_rows(x: Tensor, gate: Tensor) -> Any:
    chosen = gate > 0.5
    if chosen.any():
        x = x[chosen]
    return x * 2


def returns_the_size(x: Tensor, gate: Tensor) -> Any:
    y = x[gate > 0] if gate.sum() > 0 else torch.cat([x, x])
    return y.relu().sum(0), y.shape[0]


def cuts_indices(x: Tensor, gate: Tensor) -> Any:
    index = (gate * 3).long().clamp(0)
    if index.max() >= 3:
        index = index[index < 3]
    return torch.zeros(3).index_add(0, index, torch.ones_like(index, dtype=torch.float))


def selects_twice(x: Tensor, gate: Tensor) -> Any:
    if gate.sum() > 0:
        x = x[gate > 0]
    if x.sum() > 0:
        x = x[x.sum(1) > 0]
    return x, x.numel()


def selects_in_a_side(x: Tensor, gate: Tensor) -> Any:
    if gate.sum() > 0:
        x = x[gate > 1] if gate.max() > 1 else x[:2]
    return x @ torch.ones(4, 2)


def selects_two(x: Tensor, gate: Tensor) -> Any:
    index = torch.arange(len(x))
    if (gate > 1).any():
        chosen = gate > 1
        x, index = x[chosen], index[chosen]
    return x, index, len(index)


def selects_columns(x: Tensor, gate: Tensor) -> Any:
    x = x.t()
    return x[:, gate > 0] if gate.sum() > 0 else x


def changes_another(x: Tensor, gate: Tensor) -> Any:
    gate = gate.clone()
    if gate.sum() > 0:
        x = x[gate > 0]
        gate.zero_()
    return x, gate


def returns_early(x: Tensor, gate: Tensor) -> Any:
    if gate.sum() > 0:
        return x[gate > 0] * 2
    return x + 1


def of_the_operator(x: Tensor, gate: Tensor) -> Any:
    (y,) = torch.cond(gate.sum() > 0, lambda a, b: (a[b > 0] * 2,), lambda a, b: (a + 1,), (x, gate))
    return y.sum(0), y.shape[0]


PROGRAMS = [
    keeps_rows, returns_the_size, cuts_indices, selects_twice, selects_in_a_side, selects_two,
    selects_columns, changes_another, returns_early, of_the_operator,
]  # fmt: skip


def check(program: Program, compiled: Program, number: int, gradients: bool) -> None:
    """Some calls take each side."""
    torch.manual_seed(number)
    x, gate = torch.randn(number, 4), torch.randn(number)
    given = [x.clone().requires_grad_(gradients) for _ in range(2)]
    wanted, found = program(given[0], gate.clone()), compiled(given[1], gate.clone())
    torch.testing.assert_close(found, wanted)
    for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if isinstance(one, Tensor):
            assert one.stride() == other.stride() and one.requires_grad == other.requires_grad
    leaves = [[leaf for leaf in tree_leaves(each) if getattr(leaf, "requires_grad", False)] for each in (wanted, found)]
    if leaves[0]:
        for results in leaves:
            torch.stack([result.square().sum() for result in results]).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(given[1].grad, given[0].grad)


CASES = [(program, gradients) for program in PROGRAMS for gradients in (False, True)]
CASES.remove((of_the_operator, True))  # torch's own gradient of it needs equal sizes


@pytest.mark.parametrize(("program", "gradients"), CASES)
def test_sides_of_other_sizes(program: Program, gradients: bool) -> None:
    compiled = kiln.compile(program)
    for number in (5, 7, 9, 6, 12, 8):
        check(program, compiled, number, gradients)
    report = report_of(compiled)
    assert (report.breaks, report.eager) == ([], 0) and report.compiles <= 2, report


def on_three_levels(x: Tensor, gate: Tensor) -> Any:
    if gate[0] > 0:
        x = x[gate > 0]
        if x.sum() > 0:
            x = x[x.sum(1) > 0]
            if x.mean() > 0:
                x = x[:1]
    return x * 2


def test_the_graph_does_not_double_with_each_level() -> None:
    compiled = kiln.compile(on_three_levels)
    for number in (5, 7, 9, 6, 12, 8):
        check(on_three_levels, compiled, number, False)
    assert report_of(compiled).breaks


def returns_columns(x: Tensor, gate: Tensor) -> Any:
    y = x * 2
    return y[:, :3] if gate.sum() > 0 else y


def cuts_columns(x: Tensor, gate: Tensor) -> Any:
    if gate.sum() > 0:
        x = x[:, :3]
    return x.sum(1) + 1


def repeats_a_row(x: Tensor, gate: Tensor) -> Any:
    row = x.sum(0)
    return row.expand(3, 4) if gate.sum() > 0 else row.expand(2, 4)


def indices_of_a_mask(x: Tensor, gate: Tensor) -> Any:
    return gate.nonzero() if gate.sum() > 0 else torch.zeros(2, 1, dtype=torch.int64)


@pytest.mark.parametrize("program", [returns_columns, cuts_columns, repeats_a_row, indices_of_a_mask])
def test_sides_with_strides_of_their_own_are_taken_in_python(program: Program) -> None:
    compiled = kiln.compile(program)
    for number in (5, 7, 9, 6, 12, 8):
        check(program, compiled, number, False)
    assert report_of(compiled).breaks and not report_of(compiled).eager
