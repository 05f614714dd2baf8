"""Functions of numbers that have no symbolic form: what computes them.

n & 7, n >> 2                 a whole multiple or rest of `n`: symbolic after all
math.gcd(n, m), n & m         in front of the region, which takes the result (`speculation.py`)
round(n / 3), math.atan(n)    in a program that leaves the process, by its graph: nothing runs in front of that
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch

from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.data_values import assume, is_needed, number_made
from kiln.capture.interpreter.speculation import Number, Speculations, number_in_front
from kiln.capture.interpreter.variables.tensor import from_torch
from kiln.graph.trace.fake import FakeTensor
from kiln.symbolic import Expr, to_sym
from kiln.symbolic.values import Real

ON_REALS = frozenset({"atan", "atan2", "asinh", "hypot", "copysign", "erf", "erfc"})
"""Functions of real numbers that have a result for all finite ones: nodes of the graph."""
ROUNDINGS: Mapping[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "round")
}
ON_INTEGERS: Mapping[str, Callable[..., torch.Tensor]] = {
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
}
SHIFT = torch.bitwise_left_shift
LONGEST_SHIFT = 32
"""Shifts by larger numbers are not products."""
BITS = 62
"""Of the largest size."""
Made = torch.SymInt | torch.SymFloat | None


def computed_number(s: CaptureState, row: str, *args: Number) -> Made:
    """`row` of numbers, a row of `IN_FRONT`. None where it has to be computed now, with the numbers guarded."""
    return number_in_region(s, row, *args) if s.policy.whole else number_in_front(s, row, *args)


def value_of_number(s: CaptureState, row: str, *args: Number) -> object:
    """What stands for `computed_number` in expressions."""
    made = computed_number(s, row, *args)
    return None if made is None else made.node.value


def with_constant(row: str, left: object, right: object) -> object:
    """An operation on the bits of an integer and a constant, as arithmetic; None where it is none."""
    if type(right) is not int or not isinstance(left, torch.SymInt):
        return None
    if row in ("lshift", "rshift") and 0 <= right <= LONGEST_SHIFT:
        return left * (1 << right) if row == "lshift" else left // (1 << right)
    power = right + 1 if right >= 0 else -right
    if row != "and_" or power & (power - 1):
        return None
    return left % power if right >= 0 else left - left % power


def number_in_region(s: CaptureState, row: str, *args: Number) -> Made:
    """A number of a program that leaves the process: its graph computes it. None if the graph has no such operator, or
    if an earlier attempt found that Python needs the number."""
    if row in ON_REALS:
        return cast(torch.SymFloat, to_sym(Real(row, args), s.recorder.env))
    if row == "power" and args[0] == 2:
        return number_in_region(s, "lshift", 1, args[1])
    known_row = row in ROUNDINGS or row in ("bit_length", "isqrt") or are_integers(row, args)
    if s.frame is None or not known_row or is_needed(s):
        return None
    known = s.part(Speculations).in_region
    if (row, args) not in known or known[row, args][0] not in s.recorder.calls:
        call = partial(s.recorder.call, stack=s.frame.locations())
        dtype = torch.float64 if row in ROUNDINGS or row == "isqrt" else torch.int64
        tensors = [call(torch.scalar_tensor, (to_sym(arg, s.recorder.env),), {"dtype": dtype}) for arg in args]
        integer = integer_tensor(s, row, tensors)
        made = call(torch.Tensor.item, (integer,), {})
        assert isinstance(made, torch.SymInt)
        known[row, args] = s.recorder.calls[-1], made
        number_made(s, made.node.value, from_torch(s, integer), integer, None)
    return known[row, args][1]


def are_integers(row: str, args: tuple[Number, ...]) -> bool:
    return (row in ON_INTEGERS or row == "lshift") and len(args) == 2 and all(isinstance(x, int | Expr) for x in args)


def integer_tensor(s: CaptureState, row: str, args: list[object]) -> FakeTensor:
    """The tensor of a number, recorded."""
    assert s.frame is not None
    call = partial(s.recorder.call, stack=s.frame.locations())

    def of(function: Callable[..., object], *operands: object) -> FakeTensor:
        return cast(FakeTensor, call(function, operands, {}))

    if row in ROUNDINGS:
        return of(torch.Tensor.to, of(ROUNDINGS[row], *args), torch.int64)
    if row == "isqrt":  # the root of a size, which is less than 2**52, is not rounded up to an integer
        assume(s, of(torch.ge, args[0], 0))
        return of(torch.Tensor.to, of(torch.floor, of(torch.sqrt, *args)), torch.int64)
    if row == "bit_length":  # how often it can be halved
        halves = of(torch.bitwise_right_shift, of(torch.abs, *args), of(torch.arange, BITS))
        return of(torch.sum, of(torch.gt, halves, 0))
    if row != "lshift":
        return of(ON_INTEGERS[row], *args)
    value, count = args
    made = of(SHIFT, value, count)
    assume(s, of(torch.ge, count, 0))
    assume(s, of(torch.eq, of(torch.bitwise_right_shift, made, count), value))
    return made
