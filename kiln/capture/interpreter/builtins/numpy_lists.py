"""Lists of numbers that data decide, which NumPy takes as arrays: arrays of the region.

losses.append(loss.item())
return np.mean(losses)              mean(tensor([<number>, <number>], dtype=float64))
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Value
from kiln.capture.interpreter.variables.array import TracedArray, as_python_number
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor

MOST_NUMBERS = 256
"""A list that is longer is left to Python."""


def array_in_front(s: CaptureState, args: Args) -> Args:
    """The arguments of a function of NumPy, with an array in place of a list in front. Other lists may be shapes."""
    if not args:
        return args
    front = args[0]
    unread = isinstance(front, List) and front.source is not None and front._items is None
    if unread and any(map(is_of_data, front.appended)):  # type: ignore[attr-defined]
        raise UnsupportedCall(
            function="numpy", why="it gets a list from outside to which numbers of tensors were added"
        )
    return [array_of_list(s, front), *args[1:]]


def array_of_list(s: CaptureState, value: Value) -> Value:
    """The array that NumPy makes of a list; other values as they are."""
    numbers = list(leaves(value)) if is_list(value) else []
    kinds = {None if number is None else number.python_type() for number in numbers}
    if not any(map(is_of_data, numbers)) or len(numbers) > MOST_NUMBERS or not kinds <= {int, float}:
        return value
    options = {"dtype": s.const(torch.float64 if float in kinds else torch.int64)}
    made = s.wrap(torch.tensor, None).call(s, [of_numbers(value)], options)
    return TracedArray(made) if isinstance(made, Tensor) else value


def is_of_data(value: Value | None) -> bool:
    """Whether it is a number that data decide."""
    return isinstance(value, Symbolic) and not value.node.node.has_hint()


def is_list(value: Value) -> bool:
    return isinstance(value, List | Tuple) and value.cls in (list, tuple) and value._items is not None


def leaves(value: Value) -> Iterator[Value | None]:
    """The numbers in nested lists; None for anything else."""
    if is_list(value):
        for item in value._items:  # type: ignore[attr-defined]
            yield from leaves(item)
        return
    number = as_python_number(value)
    is_number = isinstance(number, Symbolic) or (number.is_constant and type(number.real()) in (int, float))
    yield number if is_number else None


def of_numbers(value: Value) -> Value:
    """The same lists, of numbers of Python."""
    if is_list(value):
        return List([of_numbers(item) for item in value._items])  # type: ignore[attr-defined]
    return as_python_number(value)
