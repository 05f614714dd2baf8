"""Functions of `math` on numbers from outside: they stay in the graph, where the call checks their domain.

math.cos(math.pi * step / total)      cos(3.14 * step / 100), computed in float64 by the region
math.sqrt(1 - beta ** step)           speculates that 1 - beta ** step >= 0; the side exit raises as Python does
math.isnan(scale)                     speculated on like `scale != scale`
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import final

import torch

from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.operations import Function2, binary, compare, fold, is_symbolic
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import Symbolic
from kiln.support.records import dataclass
from kiln.symbolic.node import function_of

LARGEST_EXPONENT = 709.0
"""`math.exp` of it is finite; of 710 it raises OverflowError."""


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """What the argument of a function has to satisfy: `compare(argument, number)`."""

    compare: Function2
    number: float


FINITE = (Bound(operator.lt, math.inf), Bound(operator.gt, -math.inf))
POSITIVE = (Bound(operator.gt, 0), Bound(operator.lt, math.inf))
SMALL = (Bound(operator.le, LARGEST_EXPONENT),)
DOMAINS: dict[Callable[[float], float], tuple[Bound, ...]] = {
    math.sqrt: (Bound(operator.ge, 0),),
    math.exp: SMALL,
    math.expm1: SMALL,
    math.log: POSITIVE,
    math.log2: POSITIVE,
    math.log10: POSITIVE,
    math.log1p: (Bound(operator.gt, -1), Bound(operator.lt, math.inf)),
    math.sin: FINITE,
    math.cos: FINITE,
    math.tan: FINITE,
    math.tanh: (),
    math.fabs: (),
}
"""Function -> where it has a result and raises nothing."""
NAMES = {math.fabs: "abs"}


def function_of_number(function: Callable[..., float]) -> Callable[[CaptureState, Args, Kwargs], Value]:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if len(args) == 2 and function is math.log and any(isinstance(arg, Symbolic) for arg in args):
            return binary(s, operator.truediv, *(handler(s, [arg], {}) for arg in args))
        if len(args) == 1 and isinstance(args[0], Symbolic) and in_domain(s, function, args[0]):
            name = NAMES.get(function, function.__name__)
            return s.wrap(torch.SymFloat(function_of(args[0].node.node, name)), None)
        return fold(s, function, *(arg.constant(s) for arg in args))

    return handler


def in_domain(s: CaptureState, function: Callable[..., float], value: Symbolic) -> bool:
    """Whether the function has a result for the number in this call; guards or a check in front of the region hold it.

    Not where data decide the number: the program then needs its value.
    """
    if value.python_type() is bool or not value.node.node.has_hint():
        return False
    if value.python_type() is float and not s.policy.speculate:
        return False
    bounds = DOMAINS[function]
    if value.python_type() is int:
        bounds = tuple(bound for bound in bounds if math.isfinite(bound.number))
    return all(compare(s, bound.compare, value, Constant(bound.number)).truth(s) for bound in bounds)


for _function in DOMAINS:
    handles(_function)(function_of_number(_function))


@handles(math.pow)
def pow_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and any(isinstance(arg, Symbolic) for arg in args):
        left, right = [as_float(s, arg) for arg in args]
        if is_symbolic(s, operator.pow, left, right):  # else `math.pow` itself decides: it has errors of its own
            return binary(s, operator.pow, left, right)
    return fold(s, math.pow, *(arg.constant(s) for arg in args))


def as_float(s: CaptureState, value: Value) -> Value:
    if isinstance(value, Symbolic):
        return s.wrap(torch.sym_float(value.node), None)
    return fold(s, float, value.constant(s))


@handles(math.isnan)
def isnan(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], Symbolic):
        return compare(s, operator.ne, args[0], args[0])
    return fold(s, math.isnan, *(arg.constant(s) for arg in args))


@handles(math.isfinite)
def isfinite(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], Symbolic):
        inside = (compare(s, bound.compare, args[0], Constant(bound.number)) for bound in FINITE)
        return Constant(all(truth.truth(s) for truth in inside))
    return fold(s, math.isfinite, *(arg.constant(s) for arg in args))
