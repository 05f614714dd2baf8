"""How far results are from float64, and whether that is within the contract.

one = compare(ours, eager, reference)           # a seed: the errors of each tensor
judge([one, another])                           # the worst tensor over all seeds
worst_seed([one, another]).ratio                # ... of the seed in which it is worst
worst_seed(against_itself([one, another]))      # how eager would be judged

Per output and per gradient: relative L2 error |x - r| / |r| and relative maximum max|x - r| / max|r|. The bound is
the larger of twice eager's error and 4 ulp of the output's scale (ulp: spacing at max|r| of the dtype that is computed
in: under autocast its dtype, else that of the tensor).

An error is a random number: it changes with weights and data. That of a gradient of four numbers may be three times
another draw of it by chance alone, so the errors of a tensor are taken over all seeds (root of the mean square) before
they are compared. The worst single seed is told beside it, with how eager fares on one seed against itself on another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor


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
    """The worst tensor: ours and eager's error there, and the larger ratio to the bound (<= 1 is right)."""

    ours: Error
    eager: Error
    ratio: float
    place: int

    @property
    def right(self) -> bool:
        return self.ratio <= 1.0


def error_of(actual: Tensor, reference: Tensor) -> Error:
    """Errors of `actual` against the float64 `reference` of the same shape."""
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
    """The errors of a run, tensor by tensor. `computed`: the dtype of autocast. Another number of results than
    eager's is an infinite error of them all."""
    if not len(ours) == len(eager) == len(reference):
        return [Compared(INFINITE, NONE, 0.0) for _ in eager]
    return [_compare_one(*three, computed) for three in zip(ours, eager, reference, strict=True)]


def _compare_one(ours: Tensor, eager: Tensor, reference: Tensor, computed: torch.dtype | None) -> Compared:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return Compared(INFINITE, NONE, 0.0)
    if not eager.dtype.is_floating_point or eager.numel() == 0:
        return Compared(NONE if torch.equal(ours, eager) else INFINITE, NONE, 1.0)
    floor = 4 * torch.finfo(computed or eager.dtype).eps
    return Compared(error_of(ours, reference), error_of(eager, reference), floor)


def judge(seeds: Sequence[Seed]) -> Verdict:
    """The worst tensor, its errors taken over all seeds."""
    verdicts = [_judge_one(draws, place) for place, draws in enumerate(zip(*seeds, strict=True))]
    return max(verdicts, key=lambda verdict: verdict.ratio)


def worst_seed(seeds: Sequence[Seed]) -> Verdict:
    """The worst tensor of the worst seed."""
    return max((judge([seed]) for seed in seeds), key=lambda verdict: verdict.ratio)


def against_itself(seeds: Sequence[Seed]) -> list[Seed]:
    """Eager's errors of each seed in our place, those of the next seed in eager's: what chance does to a ratio."""
    following = [*seeds[1:], seeds[0]]
    return [
        [replace(one, ours=other.eager) for one, other in zip(seed, after, strict=True)]
        for seed, after in zip(seeds, following, strict=True)
    ]


def _judge_one(draws: Seed, place: int) -> Verdict:
    ours, eager = over_seeds([one.ours for one in draws]), over_seeds([one.eager for one in draws])
    floor = draws[0].floor
    ratio = max(_share(ours.l2, eager.l2, floor), _share(ours.maximum, eager.maximum, floor))
    return Verdict(ours, eager, ratio, place)


def _share(ours: float, eager: float, floor: float) -> float:
    bound = max(2 * eager, floor)
    return ours / bound if bound else math.inf


def over_seeds(errors: Sequence[Error]) -> Error:
    """The root of the mean square."""

    def root(values: list[float]) -> float:
        return math.sqrt(sum(value * value for value in values) / len(values))

    return Error(root([one.l2 for one in errors]), root([one.maximum for one in errors]))
