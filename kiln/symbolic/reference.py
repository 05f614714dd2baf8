"""The slow reference: SymPy says what an expression means, and proves what the fast engine cannot.

    to_sympy(parse_int("(s0 + 7)//8"))        floor((s0 + 7)/8)
    ShapeEnv(prover=prove)                    called only before a data-dependent question fails

The first call loads SymPy. Without it `prove` returns None and `to_sympy` raises `ImportError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Protocol

from kiln.support.optional import load
from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import Expr, Extremum, FloorDiv, Int, Min, Quotient, Symbol
from kiln.symbolic.ranges import Interval
from kiln.symbolic.relation import Relation


class SympyExpr(Protocol):
    """What is used of a `sympy.Expr`, which has no types."""

    is_nonpositive: bool | None
    is_zero: bool | None

    def __truediv__(self, other: SympyExpr, /) -> SympyExpr: ...


def to_sympy(value: Int, ranges: Mapping[Symbol, Interval] | None = None) -> SympyExpr:
    """The same number as a SymPy expression; signs of symbols from `ranges`."""
    sympy = load("sympy")
    if sympy is None:
        raise ImportError("the reference needs the package sympy")
    return _translate(sympy, value, ranges or {})


def _translate(sympy: ModuleType, value: Int, ranges: Mapping[Symbol, Interval]) -> SympyExpr:
    result: SympyExpr

    def deeper(part: Int) -> SympyExpr:
        return _translate(sympy, part, ranges)

    if not isinstance(value, Expr):
        result = sympy.Integer(value)
    elif isinstance(value, Symbol):
        result = sympy.Symbol(value.name, integer=True, **_signs(ranges.get(value)))
    elif isinstance(value, Quotient):
        a, b = deeper(value.dividend), deeper(value.divisor)
        result = sympy.floor(a / b) if isinstance(value, FloorDiv) else sympy.Mod(a, b)
    elif isinstance(value, Extremum):
        result = (sympy.Min if isinstance(value, Min) else sympy.Max)(*map(deeper, value.args))
    else:
        products = (sympy.Mul(coefficient, *map(deeper, monomial)) for monomial, coefficient in value.terms)
        result = sympy.Add(*products)
    return result


def _signs(within: Interval | None) -> dict[str, bool]:
    if within is None or within.lo is None or within.lo < 0:
        return {}
    return {"positive": True} if within.lo > 0 else {"nonnegative": True}


def prove(relation: Relation, env: ShapeEnv) -> bool | None:
    """Whether the relation holds for all sizes; None if SymPy is missing or undecided."""
    sympy = load("sympy")
    if sympy is None:
        return None
    ranges = {symbol: env.range_of(symbol) for symbol in relation.free_symbols()}
    difference: SympyExpr = sympy.factor(to_sympy(env.simplify(relation.difference), ranges))
    if relation.kind == "le":
        return difference.is_nonpositive
    zero = difference.is_zero
    return zero if zero is None or relation.kind == "eq" else not zero
