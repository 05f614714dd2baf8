"""Arithmetic of sorted polynomials, on plain tuples.

    2*s0*s1 + 3   is   (((s0, s1), 2), ((), 3))

A polynomial is a tuple of (monomial, coefficient), a monomial a sorted tuple of atoms; the monomial of the constant is
`()`. Terms are in graded lexicographic order, highest degree first, constant last. The order is compatible with
multiplication, as the exact division below requires. Atoms are compared by identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Protocol, TypeVar

SortKey = tuple[int, str, int, str]


class Sortable(Protocol):
    """What is required of an atom: a key that depends on its text only."""

    @property
    def sort_key(self) -> SortKey: ...


A = TypeVar("A", bound=Sortable)
Monomial = tuple[A, ...]
Term = tuple[Monomial[A], int]
Terms = tuple[Term[A], ...]

MAX_QUOTIENT_TERMS = 64  # what is left then is the rest


def _atom_key(atom: Sortable) -> SortKey:
    return atom.sort_key


def _term_key(term: Term[A]) -> tuple[int, tuple[SortKey, ...]]:
    monomial = term[0]
    return -len(monomial), tuple([atom.sort_key for atom in monomial])


def constant_terms(value: int) -> Terms[A]:
    return (((), value),) if value else ()


def collect(counts: dict[Monomial[A], int]) -> Terms[A]:
    """The canonical tuple of the terms `counts`."""
    kept = [term for term in counts.items() if term[1]]
    if len(kept) > 1:
        kept.sort(key=_term_key)
    return tuple(kept)


def add(a: Terms[A], b: Terms[A], scale: int = 1) -> Terms[A]:
    """`a + scale * b`."""
    counts = dict(a)
    for monomial, coefficient in b:
        counts[monomial] = counts.get(monomial, 0) + scale * coefficient
    return collect(counts)


def scaled(a: Terms[A], factor: int) -> Terms[A]:
    return tuple([(monomial, coefficient * factor) for monomial, coefficient in a]) if factor else ()


def join(a: Monomial[A], b: Monomial[A]) -> Monomial[A]:
    """The product of two monomials."""
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=_atom_key))


def multiply(a: Terms[A], b: Terms[A]) -> Terms[A]:
    counts: dict[Monomial[A], int] = {}
    for left, k in a:
        for right, n in b:
            monomial = join(left, right)
            counts[monomial] = counts.get(monomial, 0) + k * n
    return collect(counts)


def cofactor(monomial: Monomial[A], divisor: Monomial[A]) -> Monomial[A] | None:
    """`monomial / divisor`, or None where it does not divide."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def common_monomial(terms: Iterable[Term[A]]) -> Monomial[A]:
    """The largest monomial that divides every term."""
    common: list[A] | None = None
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


def content(terms: Iterable[Term[A]]) -> int:
    """The greatest common divisor of the coefficients."""
    return gcd(*(coefficient for _, coefficient in terms))


def divide_all(terms: Terms[A], monomial: Monomial[A], factor: int) -> Terms[A]:
    """`terms / (factor * monomial)`, which must divide every term."""
    counts: dict[Monomial[A], int] = {}
    for left, coefficient in terms:
        rest = cofactor(left, monomial)
        if rest is None or coefficient % factor:
            raise ValueError("not a common factor")
        counts[rest] = coefficient // factor
    return collect(counts)


def split_multiples(terms: Terms[A], divisor: Term[A]) -> tuple[Terms[A], Terms[A]]:
    """`(quotient, rest)` with `terms = quotient * divisor + rest`, term by term.

    For a constant divisor c each coefficient keeps the rest of the division towards zero, the constant the
    one in `0 .. |c|-1`, so that `(s0 + 9)//8` and `1 + (s0 + 1)//8` meet.
    """
    by, factor = divisor
    whole: dict[Monomial[A], int] = {}
    rest: dict[Monomial[A], int] = {}
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


def exact_quotient(terms: Terms[A], divisor: Terms[A]) -> Terms[A] | None:
    """`terms / divisor` when the division of polynomials leaves nothing, else None."""
    quotient, rest = division(terms, divisor)
    return None if rest else quotient


def division(terms: Terms[A], divisor: Terms[A]) -> tuple[Terms[A], Terms[A]]:
    """`(quotient, rest)` of polynomials, where the leading term of the rest is no multiple of that of `divisor`."""
    lead, factor = divisor[0]
    quotient: Terms[A] = ()
    for _ in range(MAX_QUOTIENT_TERMS):
        if not terms:
            break
        monomial, coefficient = terms[0]
        left = cofactor(monomial, lead)
        if left is None or coefficient % factor:
            break
        step: Terms[A] = ((left, coefficient // factor),)
        quotient = add(quotient, step)
        terms = add(terms, multiply(step, divisor), -1)
    return quotient, terms
