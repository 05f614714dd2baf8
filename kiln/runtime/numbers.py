"""Python numbers as a region takes them, computed by transformed code in front of it.

scale = 0.5             number_tensor(scale)                    ->   tensor(0.5, dtype=float64)
math.gamma(scale)       attempted(math.gamma, scale)    ->   1.772..., and None where it raises
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Mapping

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


def unless_refused(function: Callable[..., float], *numbers: float) -> float:
    """`function(*numbers)`; 0 for a divisor of zero, or outside of the domain: the region has checked that they are not
    such wherever the result is used."""
    try:
        return function(*numbers)
    except (ValueError, ArithmeticError) as error:
        if function is operator.pow and type(error) is OverflowError:  # which is not checked
            raise
        return 0


def tensor_of_numbers(items: object) -> torch.Tensor | None:
    """`torch.tensor(items)` of a list of numbers of one type; None of anything else. Guards ask it, too."""
    if type(items) is not list or not items or type(items[0]) not in (int, float, bool):
        return None
    kind = type(items[0])
    if not all([type(item) is kind for item in items]):
        return None
    code, dtype = FORMATS[kind]
    if kind is float and torch.get_default_dtype() is not dtype:
        return torch.tensor(items, device="cpu")
    try:
        return torch.frombuffer(array(code, items), dtype=dtype)  # a third of the time that `torch.tensor` takes
    except OverflowError:  # an integer of more than 64 bits
        return None


FORMATS: Mapping[type, tuple[str, torch.dtype]] = {
    int: ("q", torch.int64),
    float: ("f", torch.float32),
    bool: ("b", torch.bool),
}
