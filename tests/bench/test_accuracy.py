"""The verdict of the benchmark on errors against float64."""

from __future__ import annotations

import math

import pytest
import torch

from kiln_bench.accuracy import Compared, Error, against_itself, compare, judge, worst_seed

EPS = torch.finfo(torch.float32).eps


def drawn(ours: float, eager: float, floor: float = 0.0) -> Compared:
    return Compared(Error(ours, ours), Error(eager, eager), floor)


def test_errors_are_relative_to_the_size_of_the_reference() -> None:
    reference = torch.tensor([3.0, 4.0], dtype=torch.float64)
    (one,) = compare([torch.tensor([3.5, 4.0])], [torch.tensor([3.0, 4.1])], [reference])
    assert one.ours == Error(0.1, 0.125)
    assert one.eager.maximum == pytest.approx(0.025)
    assert one.floor == EPS


def test_the_bound_is_twice_eagers_error_or_four_ulp() -> None:
    assert judge([[drawn(0.3, 0.1, 0.01)]]).ratio == pytest.approx(1.5)
    assert judge([[drawn(0.03, 0.001, 0.1)]]).ratio == pytest.approx(0.3)


def test_the_worst_tensor_speaks() -> None:
    verdict = judge([[drawn(0.1, 0.1), drawn(0.5, 0.1), drawn(0.2, 0.1)]])
    assert (verdict.tensor, verdict.right) == (1, False)


def test_errors_of_a_tensor_are_taken_over_all_seeds() -> None:
    seeds = [[drawn(0.3, 0.1)], [drawn(0.1, 0.3)]]
    assert judge(seeds).ratio == pytest.approx(0.5)
    assert worst_seed(seeds).ratio == pytest.approx(1.5)


def test_an_error_twice_eagers_in_every_seed_is_not_averaged_away() -> None:
    assert judge([[drawn(0.3, 0.1)], [drawn(0.33, 0.1)]]).ratio > 1.5


def test_eager_is_judged_against_itself_on_another_seed() -> None:
    seeds = [[drawn(0.0, 0.1)], [drawn(0.0, 0.4)]]
    assert worst_seed(against_itself(seeds)).ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    "ours",
    ([], [torch.ones(3)], [torch.ones(2, dtype=torch.float64)], [torch.tensor([1.0, math.nan])]),
    ids=("missing", "shape", "dtype", "nan"),
)
def test_what_cannot_be_compared_is_infinitely_wrong(ours: list[torch.Tensor]) -> None:
    seeds = [compare(ours, [torch.ones(2)], [torch.ones(2, dtype=torch.float64)])]
    good = [compare([torch.ones(2)], [torch.ones(2)], [torch.ones(2, dtype=torch.float64)])]
    assert judge(seeds + good).ratio == math.inf


def test_integers_are_equal_or_wrong() -> None:
    ones = torch.ones(2, dtype=torch.int64)
    assert judge([compare([ones], [ones], [ones])]).ratio == 0
    assert judge([compare([ones + 1], [ones], [ones])]).ratio == math.inf
