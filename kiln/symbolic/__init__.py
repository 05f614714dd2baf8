"""Symbolic integers: canonical expressions, relations, ranges and the shape environment of a compile."""

from kiln.symbolic.expr import (
    Atom,
    Expr,
    FloorDiv,
    Int,
    Max,
    Min,
    Mod,
    Symbol,
    ceil_div,
    evaluate,
    is_static,
    product,
    sym_max,
    sym_min,
    symbol,
)
from kiln.symbolic.parse import parse_int

__all__ = [
    "Atom",
    "Expr",
    "FloorDiv",
    "Int",
    "Max",
    "Min",
    "Mod",
    "Symbol",
    "ceil_div",
    "evaluate",
    "is_static",
    "parse_int",
    "product",
    "sym_max",
    "sym_min",
    "symbol",
]
