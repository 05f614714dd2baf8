"""Arithmetic of sorted polynomials, on plain tuples.

    2*s0*s1 + 3   is   (((s0, s1), 2), ((), 3))

A polynomial is a tuple of (monomial, coefficient), a monomial a sorted tuple of atoms, the constant's
monomial is `()`. Terms stand in graded lexicographic order, highest degree first, constant last; the order
is compatible with multiplication, which makes the exact division below the textbook one.
Needs of an atom: identity as equality, and `sort_key`, which depends on nothing but its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

Monomial = tuple[Any, ...]
Term = tuple[Monomial, int]
Terms = tuple[Term, ...]

MAX_QUOTIENT_TERMS = 64


def _atom_key(atom: Any) -> Any:
    return atom.sort_key


def _term_key(term: Term) -> tuple[int, tuple[Any, ...]]:
    monomial = term[0]
    return -len(monomial), tuple([atom.sort_key for atom in monomial])


def constant_terms(value: int) -> Terms:
    return (((), value),) if value else ()


def collect(counts: dict[Monomial, int]) -> Terms:
    """The canonical tuple of the terms `counts`."""
    kept = [term for term in counts.items() if term[1]]
    if len(kept) > 1:
        kept.sort(key=_term_key)
    return tuple(kept)


def add(a: Terms, b: Terms, scale: int = 1) -> Terms:
    """`a + scale * b`."""
    counts = dict(a)
    for monomial, coefficient in b:
        counts[monomial] = counts.get(monomial, 0) + scale * coefficient
    return collect(counts)


def scaled(a: Terms, factor: int) -> Terms:
    return tuple([(monomial, coefficient * factor) for monomial, coefficient in a]) if factor else ()


def join(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=_atom_key))


def multiply(a: Terms, b: Terms) -> Terms:
    counts: dict[Monomial, int] = {}
    for left, k in a:
        for right, n in b:
            monomial = join(left, right)
            counts[monomial] = counts.get(monomial, 0) + k * n
    return collect(counts)


def cofactor(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """`monomial / divisor`, or None where it does not divide."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def common_monomial(terms: Iterable[Term]) -> Monomial:
    """The largest monomial that divides every term."""
    common: list[Any] | None = None
    for monomial, _ in terms:
        if common is None:
            common = list(monomial)
            continue
        rest, kept = list(monomial), []
        for atom in common:
            if atom in rest:
                rest.remove(atom)
                kept.append(atom)
        common = kept
    return tuple(common or ())


def content(terms: Iterable[Term]) -> int:
    """The greatest common divisor of the coefficients."""
    return gcd(*(coefficient for _, coefficient in terms))


def divide_all(terms: Terms, monomial: Monomial, factor: int) -> Terms:
    """`terms / (factor * monomial)`, which must divide every term."""
    counts: dict[Monomial, int] = {}
    for left, coefficient in terms:
        rest = cofactor(left, monomial)
        if rest is None or coefficient % factor:
            raise ValueError("not a common factor")
        counts[rest] = coefficient // factor
    return collect(counts)


def split_multiples(terms: Terms, divisor: Term) -> tuple[Terms, Terms]:
    """`(quotient, rest)` with `terms = quotient * divisor + rest`, term by term.

    For a constant divisor c each coefficient keeps the rest of the division towards zero, the constant the
    one in `0 .. |c|-1`, so that `(s0 + 9)//8` and `1 + (s0 + 1)//8` meet.
    """
    by, factor = divisor
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        left = cofactor(monomial, by)
        if left is None:
            rest[monomial] = coefficient
            continue
        if by:
            quotient = coefficient // factor if coefficient % factor == 0 else 0
        elif monomial:
            quotient = abs(coefficient) // abs(factor) * (1 if (coefficient < 0) == (factor < 0) else -1)
        else:
            quotient = coefficient // factor
        whole[left] = quotient
        rest[monomial] = coefficient - quotient * factor
    return collect(whole), collect(rest)


def exact_quotient(terms: Terms, divisor: Terms) -> Terms | None:
    """`terms / divisor` when the division of polynomials leaves nothing, else None."""
    lead, factor = divisor[0]
    quotient: Terms = ()
    for _ in range(MAX_QUOTIENT_TERMS):
        if not terms:
            return quotient
        monomial, coefficient = terms[0]
        rest = cofactor(monomial, lead)
        if rest is None or coefficient % factor:
            return None
        step: Terms = ((rest, coefficient // factor),)
        quotient = add(quotient, step)
        terms = add(terms, multiply(step, divisor), -1)
    return None
