"""The slow reference: SymPy says what an expression means, and proves what the fast engine cannot.

    to_sympy(parse_int("(s0 + 7)//8"))        floor((s0 + 7)/8)
    ShapeEnv(prover=prove)                    asked only before a data-dependent question fails

SymPy is loaded by the first call. Without it `prove` knows nothing, and `to_sympy` raises `ImportError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.support.optional import load
from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import Expr, Extremum, FloorDiv, Int, Min, Quotient, Symbol
from kiln.symbolic.ranges import Interval
from kiln.symbolic.relation import Relation


def to_sympy(value: Int, ranges: Mapping[Symbol, Interval] | None = None) -> Any:
    """The same number as a SymPy expression; signs of symbols from `ranges`."""
    sympy = load("sympy")
    if sympy is None:
        raise ImportError("the reference needs the package sympy")
    return _translate(sympy, value, ranges or {})


def _translate(sympy: Any, value: Int, ranges: Mapping[Symbol, Interval]) -> Any:
    def deeper(part: Int) -> Any:
        return _translate(sympy, part, ranges)

    if not isinstance(value, Expr):
        return sympy.Integer(value)
    if isinstance(value, Symbol):
        return sympy.Symbol(value.name, integer=True, **_signs(ranges.get(value)))
    if isinstance(value, Quotient):
        a, b = deeper(value.dividend), deeper(value.divisor)
        return sympy.floor(a / b) if isinstance(value, FloorDiv) else sympy.Mod(a, b)
    if isinstance(value, Extremum):
        return (sympy.Min if isinstance(value, Min) else sympy.Max)(*map(deeper, value.args))
    return sympy.Add(*(sympy.Mul(coefficient, *map(deeper, monomial)) for monomial, coefficient in value.terms))


def _signs(within: Interval | None) -> dict[str, bool]:
    if within is None or within.lo is None or within.lo < 0:
        return {}
    return {"positive": True} if within.lo > 0 else {"nonnegative": True}


def prove(relation: Relation, env: ShapeEnv) -> bool | None:
    """Whether the relation holds whatever the sizes are; None where SymPy is missing or does not know."""
    sympy = load("sympy")
    if sympy is None:
        return None
    ranges = {one: env.range_of(one) for one in relation.free_symbols()}
    difference = sympy.factor(to_sympy(env.simplify(relation.difference), ranges))
    if relation.kind == "le":
        return _truth(difference.is_nonpositive)
    zero = _truth(difference.is_zero)
    return zero if zero is None or relation.kind == "eq" else not zero


def _truth(answer: Any) -> bool | None:
    return answer if isinstance(answer, bool) else None
