"""Comparisons of integer expressions in canonical form: what a shape guard says.

    rel_lt(3, s0)               s0 >= 4 is written  4 <= s0
    rel_eq(2*s0, 2*s1 + 4)      s0 == s1 + 2
    rel_eq(2*s0, 2*s1 + 1)      False             (decided: a plain bool)
    rel_le(s0 + 1, s1)          s0 < s1

All six comparisons become `d == 0`, `d != 0` or `d <= 0` for a difference `d` without a common factor (orders
are tightened to integers), so equivalent linear relations are one object. `lhs`, `op` and `rhs` are the readable form,
without minus signs where possible.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, final

import kiln.symbolic.terms as poly
from kiln.symbolic.expr import Expr, Int, Symbol, Terms, evaluate, from_terms
from kiln.symbolic.parse import read_int
from kiln.symbolic.tables import InternTable, Memo

RelationOp = Literal["eq", "ne", "lt", "le"]
RelationKind = Literal["eq", "ne", "le"]
SIGNS: Mapping[RelationOp, str] = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_HOLDS: Mapping[str, Callable[[int], bool]] = {
    "eq": lambda difference: difference == 0,
    "ne": lambda difference: difference != 0,
    "le": lambda difference: difference <= 0,
}


class Readable(NamedTuple):
    """`lhs op rhs`."""

    op: RelationOp
    lhs: Int
    rhs: Int


@final
class Relation:
    """An undecided `lhs op rhs`. `kind` and `difference` are the canonical form: `difference kind 0`."""

    __slots__ = ("__weakref__", "_readable", "_text", "difference", "kind")
    kind: RelationKind
    difference: Expr
    _readable: Readable | None
    _text: str | None

    @property
    def readable(self) -> Readable:
        """The two sides, computed on demand."""
        if self._readable is None:
            self._readable = _sides(self.kind, self.difference)
        return self._readable

    @property
    def op(self) -> RelationOp:
        return self.readable.op

    @property
    def lhs(self) -> Int:
        return self.readable.lhs

    @property
    def rhs(self) -> Int:
        return self.readable.rhs

    def negate(self) -> Relation:
        """The relation that holds exactly where this one does not."""
        if self.kind == "le":
            return _relation("le", 1 - self.difference)
        return _relation("ne" if self.kind == "eq" else "eq", self.difference)

    def evaluate(self, values: Mapping[Symbol, int] | Mapping[str, int]) -> bool:
        """Does it hold under `values`?"""
        return _HOLDS[self.kind](evaluate(self.difference, values))

    def free_symbols(self) -> frozenset[Symbol]:
        return self.difference.free_symbols()

    def substitute(self, values: Mapping[Symbol, Int]) -> Relation | bool:
        return relate(self.kind, self.difference.substitute(values))

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of `{self}` depends on a size: use ShapeEnv.known or ShapeEnv.decide")

    def __str__(self) -> str:
        if self._text is None:
            self._text = f"{self.lhs} {SIGNS[self.op]} {self.rhs}"
        return self._text

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:
        return relate, (self.kind, self.difference)


_RELATIONS: InternTable[tuple[RelationKind, Expr], Relation] = InternTable("relation")


def _make_relation(key: tuple[RelationKind, Expr]) -> Relation:
    made = Relation()
    made.kind, made.difference = key
    made._readable = made._text = None
    return made


def _sides(kind: RelationKind, difference: Expr) -> Readable:
    """The readable form: positive terms to the left, negative ones to the right."""
    body, constant = _parts(difference)
    left = from_terms(tuple(term for term in body if term[1] > 0))
    right = from_terms(poly.scaled(tuple(term for term in body if term[1] < 0), -1))
    if not isinstance(left, Expr):
        return Readable(kind, constant, right)
    if not isinstance(right, Expr):
        return Readable(kind, left, -constant)
    if kind == "le" and constant == 1:
        return Readable("lt", left, right)
    return Readable(kind, left + constant, right) if constant > 0 else Readable(kind, left, right - constant)


def _parts(difference: Expr) -> tuple[Terms, int]:
    terms = difference.terms
    return (terms[:-1], terms[-1][1]) if not terms[-1][0] else (terms, 0)


def _relation(kind: RelationKind, difference: Int) -> Relation:
    result = relate(kind, difference)
    assert isinstance(result, Relation), "the negation of an open relation is open"
    return result


def _relate(kind: RelationKind, difference: Int) -> Relation | bool:
    if not isinstance(difference, Expr):
        return _HOLDS[kind](difference)
    body, constant = _parts(difference)
    factor = poly.content(body)
    if kind == "le":
        # n*x + k <= 0 is x <= floor(-k/n).
        reduced = poly.add(poly.divide_all(body, (), factor), poly.constant_terms(-(-constant // factor)))
    elif constant % factor:
        return kind == "ne"
    else:
        reduced = poly.divide_all(difference.terms, (), factor if body[0][1] > 0 else -factor)
    canonical = from_terms(reduced)
    assert isinstance(canonical, Expr)
    return _RELATIONS.get_or_make((kind, canonical), _make_relation)


_RELATE: Memo[tuple[RelationKind, Int], Relation | bool] = Memo("relate", _relate)


def relate(kind: RelationKind, difference: Int) -> Relation | bool:
    """`difference kind 0`, or its truth where the form decides it."""
    return _RELATE[kind, difference]


_EQ: Memo[tuple[Int, Int], Relation | bool] = Memo("eq", lambda a, b: _RELATE["eq", a - b])
_NE: Memo[tuple[Int, Int], Relation | bool] = Memo("ne", lambda a, b: _RELATE["ne", a - b])
_LE: Memo[tuple[Int, Int], Relation | bool] = Memo("le", lambda a, b: _RELATE["le", a - b])
_LT: Memo[tuple[Int, Int], Relation | bool] = Memo("lt", lambda a, b: _RELATE["le", a - b + 1])


def rel_eq(a: Int, b: Int) -> Relation | bool:
    """`a == b`."""
    return _EQ[a, b]


def rel_ne(a: Int, b: Int) -> Relation | bool:
    """`a != b`."""
    return _NE[a, b]


def rel_lt(a: Int, b: Int) -> Relation | bool:
    """`a < b`."""
    return _LT[a, b]


def rel_le(a: Int, b: Int) -> Relation | bool:
    """`a <= b`."""
    return _LE[a, b]


def rel_gt(a: Int, b: Int) -> Relation | bool:
    """`a > b`."""
    return _LT[b, a]


def rel_ge(a: Int, b: Int) -> Relation | bool:
    """`a >= b`."""
    return _LE[b, a]


def negate(relation: Relation | bool) -> Relation | bool:
    """The opposite."""
    return relation.negate() if isinstance(relation, Relation) else not relation


_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Int, Int], Relation | bool]] = {
    ast.Eq: rel_eq,
    ast.NotEq: rel_ne,
    ast.Lt: rel_lt,
    ast.LtE: rel_le,
    ast.Gt: rel_gt,
    ast.GtE: rel_ge,
}


def parse_relation(text: str) -> Relation | bool:
    """The relation (or bool) that prints as `text`. Raises `ValueError` for text of another grammar."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a relation: {text!r}") from error
    match node:
        case ast.Constant(value=bool() as value):
            return value
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](read_int(left), read_int(right))
    raise ValueError(f"not a relation: {text!r}")


INT64 = 1 << 63


def beyond_int64(relation: Relation) -> bool | None:
    """Whether it holds for all symbols of 64 bits, if a number decides that which no guard can hold; else None.

    rel_ne(s0, 2**70)     True
    """
    constant, others = 0, 0
    for monomial, coefficient in relation.difference.terms:
        if not all([isinstance(atom, Symbol) for atom in monomial]):
            return None
        if monomial:
            others += abs(coefficient) * INT64 ** len(monomial)
        else:
            constant = coefficient
    if abs(constant) < INT64 or abs(constant) <= others:
        return None
    return _HOLDS[relation.kind](constant)


def guard_can_hold(relation: Relation) -> bool:
    """Whether its numbers have 64 bits."""
    return all(-INT64 <= coefficient < INT64 for _, coefficient in relation.difference.terms)
