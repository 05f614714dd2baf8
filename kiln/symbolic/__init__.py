"""Symbolic integers: canonical expressions, relations, ranges and the shape environment of a compile."""

from kiln.symbolic.env import DataDependentSize, FalseAssertion, NoHint, ShapeEnv, ShapeGuard
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
    substituted,
    sym_max,
    sym_min,
    symbol,
)
from kiln.symbolic.node import SymNode, from_sym, to_sym
from kiln.symbolic.parse import parse_int
from kiln.symbolic.policy import (
    DimChoice,
    DimKind,
    DimMarks,
    DimPolicy,
    FixedMarkedDim,
    ScalarPolicy,
    read_marks,
    require_open,
)
from kiln.symbolic.ranges import BoundAnalysis, Interval, Range
from kiln.symbolic.relation import (
    Relation,
    negate,
    parse_relation,
    rel_eq,
    rel_ge,
    rel_gt,
    rel_le,
    rel_lt,
    rel_ne,
)
from kiln.symbolic.simplify_in_ranges import simplify_in_ranges

__all__ = [
    "Atom", "BoundAnalysis", "DataDependentSize", "DimChoice", "DimKind", "DimMarks", "DimPolicy", "Expr",
    "FalseAssertion", "FixedMarkedDim", "FloorDiv", "Int", "Interval", "Max", "Min", "Mod", "NoHint", "Range",
    "Relation", "ScalarPolicy", "ShapeEnv", "ShapeGuard", "SymNode", "Symbol", "ceil_div", "evaluate", "from_sym",
    "is_static", "negate", "parse_int", "parse_relation", "product", "read_marks", "rel_eq", "rel_ge",
    "rel_gt", "rel_le", "rel_lt", "rel_ne", "require_open", "simplify_in_ranges", "substituted", "sym_max", "sym_min",
    "symbol", "to_sym",
]  # fmt: skip
