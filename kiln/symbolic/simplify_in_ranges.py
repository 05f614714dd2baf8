"""Simplification that needs ranges, for sizes and for loop indices.

i in 0..7,  j in 0..63        (8*j + i)//8      =>  j
                              i % 8             =>  i
                              (64*j + i) % 128  =>  64*(j%2) + i
any x                         8*(x//8) + x%8    =>  x
"""

from __future__ import annotations

from math import gcd

import kiln.symbolic.terms as poly
from kiln.symbolic.expr import (
    Atom,
    Expr,
    Extremum,
    FloorDiv,
    Int,
    Min,
    Mod,
    fold_extremum,
    from_terms,
    is_polynomial_in_symbols,
    map_atoms,
    map_polynomial,
    terms_of,
)
from kiln.symbolic.ranges import BoundAnalysis


def simplify_in_ranges(value: Int, bounds: BoundAnalysis) -> Int:
    """`value` without the divisions, minima and maxima that the ranges decide."""
    if not isinstance(value, Expr) or is_polynomial_in_symbols(value):
        return value
    return fold_remainders(map_atoms(value, lambda atom: _simplify_atom(atom, bounds)))


def _simplify_atom(atom: Atom, bounds: BoundAnalysis) -> Int:
    if isinstance(atom, FloorDiv | Mod):
        return _division(atom, bounds)
    return _decide_extremum(atom, bounds) if isinstance(atom, Extremum) else atom


def _division(atom: FloorDiv | Mod, bounds: BoundAnalysis) -> Int:
    a, b = atom.dividend, atom.divisor
    divisor = bounds.of(b)
    if bounds.is_nonnegative(a) and bounds.is_below(a, b):
        return 0 if isinstance(atom, FloorDiv) else a
    whole = bounds.of(atom)
    if whole.lo is not None and whole.lo == whole.hi:
        return whole.lo
    if isinstance(b, int) and divisor.lo is not None:
        return _drop_small_part(atom, a, b, bounds)
    return atom


def _drop_small_part(atom: FloorDiv | Mod, a: Int, b: int, bounds: BoundAnalysis) -> Int:
    """`(c*x + r)//(c*d) = x//d` and `(c*x + r) % (c*d) = c*(x % d) + r` for `0 <= r < c`."""
    for factor in sorted({gcd(b, coefficient) for _, coefficient in terms_of(a)} - {1}, reverse=True):
        large = tuple(term for term in terms_of(a) if term[1] % factor == 0)
        rest = a - from_terms(large)
        small = bounds.of(rest)
        if small.lo is None or small.hi is None or small.lo < 0 or small.hi >= factor:
            continue
        x = from_terms(poly.divide_all(large, (), factor))
        if isinstance(atom, FloorDiv):
            return x // (b // factor)
        return factor * (x % (b // factor)) + rest
    return atom


def _decide_extremum(atom: Extremum, bounds: BoundAnalysis) -> Int:
    """Drops arguments that another one always beats."""
    kept: list[Int] = []
    sign = 1 if isinstance(atom, Min) else -1
    for position, arg in enumerate(atom.args):
        others = kept + list(atom.args[position + 1 :])
        if not any(bounds.is_nonnegative(sign * (arg - other)) for other in others):
            kept.append(arg)
    return fold_extremum(type(atom), *kept)


def fold_remainders(value: Int) -> Int:
    """`8*(x//8) + x%8` is `x`: writes remainders as divisions where that cancels terms."""
    if not isinstance(value, Expr):
        return value
    for monomial, _ in value.terms:
        for atom in monomial:
            if not isinstance(atom, Mod):
                continue
            expanded = expand_remainder(value, atom)
            if not isinstance(expanded, Expr) or len(expanded.terms) < len(value.terms):
                return fold_remainders(expanded)
    return value


def expand_remainder(value: Expr, remainder: Mod) -> Int:
    """`value` with `a % b` in its terms written as `a - b*(a//b)`."""
    a, b = remainder.dividend, remainder.divisor
    return map_polynomial(value, lambda atom: a - b * (a // b) if atom is remainder else atom)


def without_remainders(value: Int) -> Int:
    """`value` with every `%`, at any depth, written with `//`, so that equal values are more often one object."""
    if not isinstance(value, Expr) or is_polynomial_in_symbols(value):
        return value

    def expand(atom: Atom) -> Int:
        return atom.dividend - atom.divisor * (atom.dividend // atom.divisor) if isinstance(atom, Mod) else atom

    return map_atoms(value, expand)
