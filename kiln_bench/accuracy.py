"""Errors of results against float64, and whether they are within the numerics contract.

first = compare(ours, eager, reference)           # one seed: the errors of each tensor
judge([first, second])                            # the worst tensor over all seeds
worst_seed([first, second]).ratio                 # the worst tensor of the worst seed
worst_seed(against_itself([first, second]))       # how eager would be judged

Per output and gradient: relative L2 error |x - r| / |r| and relative maximum max|x - r| / max|r|. The bound is twice
eager's error, or twice the error of a single rounding where eager's is smaller (half an ulp at max|r| in the dtype of
the computation: that of autocast, or else of the tensor).

An error varies with weights and data: for a gradient of four numbers, threefold by chance alone. So the errors of a
tensor are combined over all seeds (root mean square) before they are compared. The worst single seed is reported too,
with eager on one seed against itself on another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of one tensor."""

    l2: float
    maximum: float


NONE, INFINITE = Error(0.0, 0.0), Error(float("inf"), float("inf"))


@final
@dataclass(frozen=True, slots=True)
class Compared:
    """One tensor of one seed; `floor` is the error that is always allowed."""

    ours: Error
    eager: Error
    floor: float


Seed = Sequence[Compared]
"""The tensors of a run, in order."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst tensor: our error and eager's, and the larger ratio to the bound (at most 1 is right)."""

    ours: Error
    eager: Error
    ratio: float
    tensor: int

    @property
    def right(self) -> bool:
        return self.ratio <= 1.0


def error_of(actual: Tensor, reference: Tensor) -> Error:
    """Errors of `actual` against `reference`, in float64 and of the same shape."""
    difference = actual.double() - reference
    if not torch.isfinite(difference).all() and torch.isfinite(reference).all():
        return INFINITE
    tiny = torch.finfo(torch.float64).tiny
    l2 = difference.norm() / reference.norm().clamp_min(tiny)
    maximum = difference.abs().max() / reference.abs().max().clamp_min(tiny)
    return Error(float(l2), float(maximum))


def compare(
    ours: list[Tensor], eager: list[Tensor], reference: list[Tensor], computed: torch.dtype | None = None
) -> list[Compared]:
    """The errors of a run, tensor by tensor; infinite if the counts of results differ. `computed`: autocast's dtype."""
    if not len(ours) == len(eager) == len(reference):
        return [Compared(INFINITE, NONE, 0.0) for _ in eager]
    return [_compare_one(*three, computed) for three in zip(ours, eager, reference, strict=True)]


def _compare_one(ours: Tensor, eager: Tensor, reference: Tensor, computed: torch.dtype | None) -> Compared:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return Compared(INFINITE, NONE, 0.0)
    if not eager.dtype.is_floating_point or eager.numel() == 0:
        return Compared(NONE if torch.equal(ours, eager) else INFINITE, NONE, 1.0)
    floor = torch.finfo(computed or eager.dtype).eps
    return Compared(error_of(ours, reference), error_of(eager, reference), floor)


def judge(seeds: Sequence[Seed]) -> Verdict:
    """The worst tensor, its errors taken over all seeds."""
    verdicts = [_judge_tensor(draws, number) for number, draws in enumerate(zip(*seeds, strict=True))]
    return max(verdicts, key=lambda verdict: verdict.ratio)


def worst_seed(seeds: Sequence[Seed]) -> Verdict:
    """The worst tensor of the worst seed."""
    return max((judge([seed]) for seed in seeds), key=lambda verdict: verdict.ratio)


def against_itself(seeds: Sequence[Seed]) -> list[Seed]:
    """Eager's errors on each seed as ours, those on the next seed as eager's: how chance affects the ratio."""
    following = [*seeds[1:], seeds[0]]
    return [
        [replace(tensor, ours=other.eager) for tensor, other in zip(seed, after, strict=True)]
        for seed, after in zip(seeds, following, strict=True)
    ]


def _judge_tensor(draws: Seed, number: int) -> Verdict:
    ours, eager = over_seeds([draw.ours for draw in draws]), over_seeds([draw.eager for draw in draws])
    floor = draws[0].floor
    ratio = max(_share(ours.l2, eager.l2, floor), _share(ours.maximum, eager.maximum, floor))
    return Verdict(ours, eager, ratio, number)


def _share(ours: float, eager: float, floor: float) -> float:
    bound = max(2 * eager, floor)
    return ours / bound if bound else math.inf


def over_seeds(errors: Sequence[Error]) -> Error:
    """The root of the mean square."""

    def root(values: list[float]) -> float:
        return math.sqrt(sum(value * value for value in values) / len(values))

    return Error(root([error.l2 for error in errors]), root([error.maximum for error in errors]))
