"""Which differences from eager are taken for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.sweeps.rounding import MovedRounding, moved_runs, within_rounding

X = torch.tensor([0.25, -1.5, 2.0, 0.75])


def test_exact_results_are_not_moved() -> None:
    for seed in range(5):
        with MovedRounding(seed):
            assert torch.equal(X.clone() * 2 + 0.5, torch.tensor([1.0, -2.5, 4.5, 2.0]))
            drawn = torch.rand(3, generator=torch.Generator().manual_seed(1))
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(1)))


def test_a_difference_of_rounding_is_one() -> None:
    def half() -> list[Tensor | None]:
        return [X.bfloat16().logsumexp(0)]

    exact = X.double().logsumexp(0).bfloat16()
    assert within_rounding([exact], half(), half)


def test_wrong_values_are_none() -> None:
    def program() -> list[Tensor | None]:
        return [X.exp(), X > 0, None]

    eager = program()
    assert eager[0] is not None and eager[1] is not None
    assert within_rounding(eager, eager, program)
    assert not within_rounding([eager[0] * 1.001, eager[1], None], eager, program)
    assert not within_rounding([eager[0], ~eager[1], None], eager, program)
    assert not within_rounding([eager[0], eager[1], eager[0]], eager, program)


def test_every_number_is_moved_in_some_run() -> None:
    """With independent signs, one of 4,000 sums of half precision stays where it is in all of five runs."""
    x, y = torch.linspace(1, 2, 4000).half(), torch.linspace(0.1, 0.2, 4000).half()
    total = x + y
    moved = torch.zeros(4000, dtype=torch.bool)
    for run in moved_runs(lambda: [x + y]):
        assert run[0] is not None
        moved |= run[0] != total
    inexact = total.double() != x.double() + y.double()
    assert bool(inexact.any())
    assert torch.equal(moved & inexact, inexact)
