"""Python numbers as a region takes them, computed by transformed code in front of it.

scale = 0.5             number_tensor(scale)                    ->   tensor(0.5, dtype=float64)
math.gamma(scale)       attempted(math.gamma, scale)    ->   1.772..., and None where it raises
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kiln.symbolic.expr import LARGEST_NUMBER


def number_tensor(value: float) -> torch.Tensor:
    """A tensor of rank 0."""
    return torch.scalar_tensor(value, dtype=torch.float64, device="cpu")


def attempted(function: Callable[..., float], *numbers: float) -> float | None:
    """`function(*numbers)`; None where it raises, or has a result that is no float and does not fit a size."""
    try:
        result = function(*numbers)
    except (ArithmeticError, ValueError, TypeError):
        return None
    return result if type(result) is float or (type(result) is int and 0 <= result <= LARGEST_NUMBER) else None


def computed(kind: type[int | float], function: Callable[..., float], *numbers: float) -> float | None:
    """`function(*numbers)`; None also where it is not of type `kind`."""
    result = attempted(function, *numbers)
    return result if type(result) is kind else None
