"""Symbols of index expressions, and substitution that takes plain ints."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.symbolic import Expr, Int, Symbol


def substituted(value: Int, values: Mapping[Symbol, Int]) -> Int:
    """`value` with symbols replaced; an int stays."""
    return value.substitute(values) if isinstance(value, Expr) else value


def symbols_of(*values: Int) -> frozenset[Symbol]:
    """The symbols that occur in `values`."""
    return frozenset().union(*(value.free_symbols() for value in values if isinstance(value, Expr)))
