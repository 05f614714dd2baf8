"""Comparisons of two numbers or truths: where integers can express it, as a relation of integers.

    s0 / 3 > 1.5              10 <= 2*s0
    s0 / s1 <= 0.75           4*s0 <= 3*s1
    sqrt(s0) * 0.7 < 2.1      s0 <= 8

A quotient is compared with a short fraction by multiplying both sides. Another real number that grows, or falls, with
one integer crosses a constant once at most: where it does is found by halving the range of the integer. Python's own
functions are asked, so that the answer is theirs for each size, rounding included. What is left specialises the sizes.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping

from kiln.support.location import Location
from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import Expr, Int
from kiln.symbolic.relation import Relation, rel_eq, rel_le, rel_lt, rel_ne
from kiln.symbolic.values import (
    REAL_OPS,
    SHORT_FRACTION,
    AllOf,
    AnyOf,
    Real,
    Truth,
    Value,
    all_of,
    any_of,
    as_integer,
    as_quotient,
    hinted_real,
    invert,
    keeps_value,
    specialise_real,
)

COMPARISONS: Mapping[str, tuple[Callable[[Int, Int], Relation | bool], Callable[[float, float], bool]]] = {
    "eq": (rel_eq, operator.eq),
    "ne": (rel_ne, operator.ne),
    "lt": (rel_lt, operator.lt),
    "le": (rel_le, operator.le),
}


def compare(env: ShapeEnv, op: str, a: Value, b: Value, where: Location | None) -> Truth:
    """`a op b` for two numbers or two truths."""
    relation, plain = COMPARISONS[op]
    if isinstance(a, bool | Relation | AllOf | AnyOf) and isinstance(b, bool | Relation | AllOf | AnyOf):
        same = any_of(all_of(a, b), all_of(invert(a), invert(b)))
        return same if op == "eq" else invert(same)
    left, right = as_integer(a), as_integer(b)
    exact = [keeps_value(env, item, where) for item, number in ((a, left), (b, right)) if number is not None]
    if left is not None and right is not None and all(exact):
        return relation(left, right)
    if isinstance(a, Relation | AllOf | AnyOf) or isinstance(b, Relation | AllOf | AnyOf):
        raise TypeError(f"cannot compare a truth with a number: {a} {op} {b}")
    assumed = None if env.assume_number is None else env.assume_number(plain, a, b)
    if assumed is not None:
        return assumed
    integers = compare_reals(env, op, a, b)
    if integers is not None:
        return integers
    for number in (a, b):
        hinted_real(env, number)  # if data decide it, no guard fixes the other one
    return plain(specialise_real(env, a, where), specialise_real(env, b, where))


def compare_reals(env: ShapeEnv, op: str, a: Value, b: Value) -> Truth | None:
    """`a op b` as relations of integers; None where there are none."""
    if any(isinstance(value, int) and abs(value) > sys.float_info.max for value in (a, b)):
        return None
    if op in ("eq", "ne"):
        for value, constant in ((a, b), (b, a)):
            if isinstance(value, Real) and isinstance(constant, int | float):
                equal = by_multiplying(env, "eq", value, constant, below=True)
                if equal is not None:
                    return equal if op == "eq" else invert(equal)
        both = [compare_reals(env, "le", a, b), compare_reals(env, "le", b, a)]
        if both[0] is None or both[1] is None:
            return None
        within = between(both[0], both[1])
        return within if op == "eq" else invert(within)
    for value, constant, below in ((a, b, True), (b, a, False)):
        if isinstance(value, Real) and isinstance(constant, int | float) and math.isfinite(constant):
            found = by_multiplying(env, op, value, constant, below)
            return by_crossing(env, op, value, constant, below) if found is None else found
    return None


def between(most: Truth, least: Truth) -> Truth:
    """Both bounds of an integer, which may leave one integer or none."""
    if isinstance(most, Relation) and isinstance(least, Relation):
        gap = most.difference + least.difference
        if isinstance(gap, int) and gap >= 0:
            return gap == 0 and rel_eq(most.difference, 0)
    return all_of(most, least)


def by_multiplying(env: ShapeEnv, op: str, value: Real, constant: float, below: bool) -> Relation | bool | None:
    """`x / y < p / q` as `q*x < p*y`, or with `below` False the other way round.

    Sizes are so much smaller than 2**53 that a rounded quotient is on the same side of a short fraction.
    """
    x, y = as_quotient(value)
    if x is None or y is None or not math.isfinite(constant) or not are_sizes(env, x, y):
        return None
    p, q = constant.as_integer_ratio()
    if max(abs(p), q) > SHORT_FRACTION or not env.known(rel_lt(0, y)):
        return None
    sides = (x * q, y * p) if below else (y * p, x * q)
    return COMPARISONS[op][0](*sides)


def by_crossing(env: ShapeEnv, op: str, value: Real, constant: float, below: bool) -> Relation | bool | None:
    """`value op constant`, or with `below` False `constant op value`, as a bound of the integer in `value`."""
    integer = monotone(env, value)
    if integer is None or not env.has_hint(integer) or not are_sizes(env, integer):
        return None
    compared = COMPARISONS[op][1]

    def holds(number: int) -> bool:
        real = number_at(value, number)
        return compared(real, constant) if below else compared(constant, real)

    low, high = ends(env, integer)
    try:
        first, last = holds(low), holds(high)
        if first == last:
            return first
        least, most = low, high  # the answer changes behind `least`, at `most` or in front of it
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if holds(middle) == first else (least, middle)
        near = range(max(low, most - NEAR), min(high, most + NEAR) + 1)
        if any(holds(number) != (first if number < most else last) for number in near):
            return None
    except (ArithmeticError, ValueError, TypeError):  # it has no value for some integers, or a complex one
        return None
    return rel_le(most, integer) if last else rel_lt(integer, most)


def are_sizes(env: ShapeEnv, *values: Int) -> bool:
    """Whether they are no numbers of the caller, which may be as large as he likes."""
    return all(not isinstance(value, Expr) or env.unbounded.isdisjoint(value.free_symbols()) for value in values)


def ends(env: ShapeEnv, integer: Expr) -> tuple[int, int]:
    """The least and the largest number that it may be."""
    low, high = env.range_of(integer)
    return max(-LARGEST if low is None else low, -LARGEST), min(LARGEST if high is None else high, LARGEST)


def monotone(env: ShapeEnv, value: object) -> Expr | None:
    """The integer with which a real number never falls, or never grows; None: there is none."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, Real):
        return None
    if len(value.args) == 1 and value.op in MONOTONE:
        return monotone(env, value.args[0])
    if len(value.args) != 2 or value.op not in WITH_CONSTANT:
        return None
    left, right = value.args
    is_left = isinstance(left, int | float)
    number, other = (left, right) if is_left else (right, left)
    integer = monotone(env, other)
    if integer is None or not isinstance(number, int | float):
        return None
    return integer if WITH_CONSTANT[value.op](env, integer, other, float(number), is_left) else None


def of_quotient(env: ShapeEnv, integer: Expr, other: object, number: float, is_left: bool) -> bool:
    """`other / number`, and `number / other` where `other` has one sign."""
    if not is_left:
        return number != 0
    found = [number_at(other, end) for end in ends(env, integer)]
    return number != 0 and (min(found) > 0 or max(found) < 0)


def of_power(env: ShapeEnv, integer: Expr, other: object, number: float, is_left: bool) -> bool:
    """`other ** number` where `other` is not negative, and not 0 if it is divided by."""
    if is_left or number == 0:
        return False
    least = min(number_at(other, end) for end in ends(env, integer))
    return least > 0 or (least == 0 and number > 0)


def number_at(value: object, number: int) -> float:
    """The number of `value` where its integer is `number`."""
    if isinstance(value, Real):
        return REAL_OPS[value.op](*[number_at(arg, number) for arg in value.args])
    return value if isinstance(value, int | float) else number


def always(env: ShapeEnv, integer: Expr, other: object, number: float, is_left: bool) -> bool:
    return True


WITH_CONSTANT: Mapping[str, Callable[[ShapeEnv, Expr, object, float, bool], bool]] = {
    **dict.fromkeys(("add", "sub", "min", "max"), always),
    "mul": lambda env, integer, other, number, is_left: number != 0,
    "truediv": of_quotient,
    "floordiv": lambda env, integer, other, number, is_left: not is_left and number != 0,
    "pow": of_power,
}
"""Functions of a number that changes and a constant: whether they never fall, or never grow, with the former."""
MONOTONE = (
    *("float", "sqrt", "log", "log2", "log10", "log1p", "atan", "asinh", "tanh"),
    *("floor", "ceil", "trunc", "round", "neg"),
)
"""Functions of one number."""
LARGEST = 1 << 52
"""Of the integers that are tried. Each is a float."""
NEAR = 16
"""As many integers on both sides of a crossing are tried as well: a function of the C library may round either way."""
