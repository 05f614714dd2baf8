"""How far a result is from float64, and whether that is within the contract.

Per output and per gradient: relative L2 error |x - r| / |r| and relative maximum max|x - r| / max|r|. The bound is
the larger of twice eager's error and 4 ulp of the output's scale (ulp: spacing at max|r| of the dtype that is computed
in: under autocast its dtype, else that of the tensor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of one tensor."""

    l2: float
    maximum: float


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst tensor of a run: ours and eager's error there, and the larger ratio to the bound (<= 1 is right)."""

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
        return Error(float("inf"), float("inf"))
    tiny = torch.finfo(torch.float64).tiny
    l2 = difference.norm() / reference.norm().clamp_min(tiny)
    maximum = difference.abs().max() / reference.abs().max().clamp_min(tiny)
    return Error(float(l2), float(maximum))


def judge(
    ours: list[Tensor], eager: list[Tensor], reference: list[Tensor], computed: torch.dtype | None = None
) -> Verdict:
    """Compare each tensor with its bound; the worst one speaks for the run. `computed`: the dtype of autocast."""
    if not len(ours) == len(eager) == len(reference):
        return Verdict(Error(float("inf"), float("inf")), Error(0.0, 0.0), float("inf"), -1)
    verdicts = [
        _judge_one(*three, place, computed) for place, three in enumerate(zip(ours, eager, reference, strict=True))
    ]
    return max(verdicts, key=lambda verdict: verdict.ratio)


def _judge_one(ours: Tensor, eager: Tensor, reference: Tensor, place: int, computed: torch.dtype | None) -> Verdict:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return Verdict(Error(float("inf"), float("inf")), Error(0.0, 0.0), float("inf"), place)
    if not eager.dtype.is_floating_point or eager.numel() == 0:
        return Verdict(Error(0.0, 0.0), Error(0.0, 0.0), 0.0 if torch.equal(ours, eager) else float("inf"), place)
    mine, theirs = error_of(ours, reference), error_of(eager, reference)
    floor = 4 * torch.finfo(computed or eager.dtype).eps
    ratio = max(mine.l2 / max(2 * theirs.l2, floor), mine.maximum / max(2 * theirs.maximum, floor))
    return Verdict(mine, theirs, ratio, place)
