"""Functions of `math` on numbers from outside: they stay in the graph, where the call checks their domain.

math.cos(math.pi * step / total)      cos(3.14 * step / 100), computed in float64 by the region
math.sqrt(1 - beta ** step)           speculates that 1 - beta ** step >= 0; the side exit raises as Python does
math.isnan(scale)                     speculated on like `scale != scale`
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import final

import torch

from kiln.capture.interpreter.alternatives import as_float
from kiln.capture.interpreter.computed_numbers import computed_number
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.operations import (
    Function2,
    assumed_comparison,
    binary,
    compare,
    fold,
    is_number,
    is_symbolic,
    number_of,
)
from kiln.capture.interpreter.speculation import number_truth
from kiln.capture.interpreter.variables.array import as_python_number
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import Tuple, all_items
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.support.records import dataclass
from kiln.symbolic.node import function_of
from kiln.symbolic.values import IN_FRONT, Real, sum_of

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
ROUNDINGS = ("ceil", "floor", "trunc", "round")
"""Which are speculated on at first, see `rounded_number`."""


def function_of_number(function: Callable[..., float]) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        args = [as_float(s, as_python_number(arg)) for arg in args]
        if len(args) == 2 and function is math.log and any(isinstance(arg, Symbolic) for arg in args):
            return binary(s, operator.truediv, *(handler(s, [arg], {}) for arg in args))
        if len(args) == 1 and isinstance(args[0], Symbolic) and in_domain(s, function, args[0]):
            name = NAMES.get(function, function.__name__)
            return s.wrap(torch.SymFloat(function_of(args[0].node.node, name)), None)
        return fold(s, function, *(arg.constant(s) for arg in args))

    return handler


def in_domain(s: CaptureState, function: Callable[..., float], value: Symbolic) -> bool:
    """Whether the function has a result for the number in this call; guards, a check in front of the region or one in
    it hold that."""
    if value.python_type() is bool:
        return False
    if value.python_type() is float and not s.policy.assumes:
        return False
    bounds = DOMAINS[function]
    if value.python_type() is int:
        bounds = tuple(bound for bound in bounds if math.isfinite(bound.number))
    if not value.node.node.has_hint():
        return all(assumed_comparison(s, bound.compare, value, bound.number) for bound in bounds)
    return all(compare(s, bound.compare, value, Constant(bound.number)).truth(s) for bound in bounds)


for _function in DOMAINS:
    handles(_function)(function_of_number(_function))


@handles(math.pow)
def pow_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and any(isinstance(arg, Symbolic) for arg in args):
        left, right = [float_of(s, arg) for arg in args]
        if is_symbolic(s, operator.pow, left, right):  # else `math.pow` itself decides: it has errors of its own
            return binary(s, operator.pow, left, right)
    return fold(s, math.pow, *(arg.constant(s) for arg in args))


def in_front(row: str, function: Callable[..., object]) -> Handler:
    """A handler that calls `IN_FRONT[row]` in front of the region where the arguments are numbers from outside."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if not kwargs and (made := computed_in_front(s, row, args)) is not None:
            return made
        named = {name: value.constant(s) for name, value in kwargs.items()}
        return fold(s, partial(function, **named), *(arg.constant(s) for arg in args))

    return handler


def computed_in_front(s: CaptureState, row: str, args: Args) -> Value | None:
    """None where an argument is no number, none is symbolic, or data decide."""
    if not any(isinstance(arg, Symbolic) for arg in args) or not all(map(is_number, args)):
        return None
    made = computed_number(s, row, *[number_of(s, arg) for arg in args])
    return None if made is None else s.wrap(made, None)


for _name, _function in IN_FRONT.items():
    if _name not in ROUNDINGS and _function in (getattr(math, _name, None), getattr(int, _name, None)):
        handles(_function)(in_front(_name, _function))


@handles(math.fsum)
def fsum(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = all_items(s, args[0])
    return in_front("sum_of", sum_of)(s, items, {})


@handles(math.dist)
def dist(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    first, second = (all_items(s, arg) for arg in args)
    if len(first) != len(second):
        return fold(s, math.dist, *([item.constant(s) for item in items] for items in (first, second)))
    return in_front("hypot", math.hypot)(s, [*map(partial(binary, s, operator.sub), first, second)], {})


def in_parts(function: Callable[..., tuple[object, object]], *rows: str) -> Handler:
    """A handler of a function with several results, which are rows of `IN_FRONT`."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        parts = [computed_in_front(s, row, args) for row in rows]
        if None in parts:
            return fold(s, function, *(arg.constant(s) for arg in args))
        return Tuple([part for part in parts if part is not None])

    return handler


handles(math.modf)(in_parts(math.modf, "fraction", "whole"))


def float_of(s: CaptureState, value: Value) -> Value:
    if isinstance(value, Symbolic):
        return s.wrap(torch.sym_float(value.node), None)
    return fold(s, float, value.constant(s))


@handles(math.isnan)
def isnan(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], Symbolic):
        return compare(s, operator.ne, args[0], args[0])
    return fold(s, math.isnan, *(arg.constant(s) for arg in args))


@handles(math.isinf)
def isinf(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], Symbolic) and args[0].python_type() is float:
        known = number_truth(s, operator.eq, Real("abs", (args[0].node.node.value,)), math.inf)
        if known is not None:
            return Constant(known)
    return fold(s, math.isinf, *(arg.constant(s) for arg in args))


@handles(math.isclose)
def isclose(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if not kwargs and len(args) == 2 and all(map(is_number, args)) and any(isinstance(arg, Symbolic) for arg in args):
        known = number_truth(s, math.isclose, *[number_of(s, arg) for arg in args])
        if known is not None:
            return Constant(known)
    named = {name: value.constant(s) for name, value in kwargs.items()}
    return fold(s, partial(math.isclose, **named), *(arg.constant(s) for arg in args))


@handles(math.isfinite)
def isfinite(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], Symbolic):
        inside = (compare(s, bound.compare, args[0], Constant(bound.number)) for bound in FINITE)
        return Constant(all(truth.truth(s) for truth in inside))
    return fold(s, math.isfinite, *(arg.constant(s) for arg in args))
