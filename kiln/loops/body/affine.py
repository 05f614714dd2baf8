"""Accesses as affine forms of loop symbols.

    x[8*i0 + i1, i2]   of x: f32[64, 32]      {i0: 256, i1: 32, i2: 1} + 0
    x[i0 // 4, i0 % 4] of x: f32[16, 4]       {i0: 1} + 0
    x[j0, i1]          j0 bound by indirect   None

Strides and offset are expressions over size symbols. Accesses with equal forms touch the same element at the same
point, whatever views they go through.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Symbol, is_static
from kiln.symbolic.expr import is_polynomial_in_symbols
from kiln.symbolic.simplify_in_ranges import fold_remainders


@final
@dataclass(slots=True)
class Affine:
    """offset + sum of stride * symbol, where no stride is 0."""

    strides: dict[Symbol, Int]
    offset: Int


def affine(value: Int, loops: Collection[Symbol], opaque: Collection[Symbol] = ()) -> Affine | None:
    """`value` as an affine form in `loops`; None if it is not affine in them or uses a symbol of `opaque`."""
    if isinstance(value, Expr) and not is_polynomial_in_symbols(value):
        value = fold_remainders(value)
    if not isinstance(value, Expr):
        return Affine({}, value)
    strides: dict[Symbol, Int] = {}
    offset: Int = 0
    for monomial, coefficient in value.terms:
        found: Symbol | None = None
        rest: Int = coefficient
        for atom in monomial:
            if isinstance(atom, Symbol) and atom in loops:
                if found is not None:
                    return None
                found = atom
            elif any(symbol in loops or symbol in opaque for symbol in atom.free_symbols()):
                return None
            else:
                rest = rest * atom
        if found is None:
            offset = offset + rest
        else:
            strides[found] = strides.get(found, 0) + rest
    return Affine(strides, offset)


def divides(divisor: Int, value: Int) -> bool:
    rest = 1 if is_static(divisor) and divisor == 0 else value % divisor
    return is_static(rest) and rest == 0
