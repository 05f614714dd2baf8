"""`is` between numbers that are symbols: Python has one object for each truth and for each small integer.

n is 3              n == 3
n is m              n == m, and if both are large, Python has to say
"""

from __future__ import annotations

import torch

from kiln.capture.interpreter.breaks import UnsupportedOperation
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.variables.symbolic import Symbolic

LEAST_SHARED, GREATEST_SHARED = -5, 256
"""CPython keeps the integers in between."""


def same_number(s: CaptureState, left: Value, right: Value) -> bool | None:
    """Whether two values, at least one of them a symbol, are one object; None: they are of other types than numbers.

    Raises:
        UnsupportedOperation: if it depends on which objects the caller has.
    """
    kind = left.python_type()
    if kind is not right.python_type():
        return None
    if kind is bool:
        return left.truth(s) is right.truth(s)
    if kind is int:
        first, second = number_of(s, left), number_of(s, right)
        if not s.wrap(first == second, None).truth(s):
            return False
        if s.wrap(first >= LEAST_SHARED, None).truth(s) and s.wrap(first <= GREATEST_SHARED, None).truth(s):
            return True
    elif kind is not float or left.is_constant or right.is_constant:
        return None
    raise UnsupportedOperation(operation="is", type=kind.__name__, why="equal numbers may be one object or two")


def number_of(s: CaptureState, value: Value) -> torch.SymInt | int:
    """A symbol of torch, or an integer."""
    found: torch.SymInt | int = value.node if isinstance(value, Symbolic) else value.constant(s)
    return found
