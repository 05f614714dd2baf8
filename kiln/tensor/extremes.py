"""The least and the greatest number of a dtype: where a search for the largest, or the smallest, begins.

extremes(torch.int8)        (-128, 127)
extremes(torch.float32)     (-inf, inf)
"""

from __future__ import annotations

import torch


def extremes(dtype: torch.dtype) -> tuple[bool | int | float, bool | int | float]:
    """Infinite where the dtype has infinities; False and True are numbers, too."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    if dtype == torch.bool:
        return False, True
    limits = torch.iinfo(dtype)
    return limits.min, limits.max
