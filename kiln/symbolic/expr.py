"""Integer expressions in canonical form: sizes, strides, offsets and indices of every IR.

    s0, s1 = symbol("s0"), symbol("s1")
    (s0 + 1) * s1 - s1      is  s0*s1            (the same object, so `is` and `==` compare values)
    (8*s0 + 9) // 8         is  s0 + 1
    -((-s0) // 8)           is  (s0 + 7)//8
    s0 - s0                 is  0                (a plain int)

An expression is a polynomial with integer coefficients over atoms: symbols, floor divisions, remainders,
minima and maxima. `//` and `%` are Python's (floor; the sign of the divisor) and assume a divisor other than
zero: `s0*s1 // s1` is `s0`. Rules here hold for all integers; those that need ranges are in `simplify_in_ranges.py`.
Objects are interned and immutable, operators memoised: a repeated operation costs one dictionary look-up.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from math import gcd
from typing import TypeAlias, TypeGuard, cast, final

import kiln.symbolic.terms as poly
from kiln.symbolic.tables import InternTable, Memo

LARGEST_NUMBER = 1 << 62
"""No larger integer of a program is a symbol: all stages count in 64 bits, which the sum of two smaller ones has."""


class Expr:
    """A non-constant integer expression; made by operators and `symbol`, never by its constructor."""

    __slots__ = ("__weakref__", "_symbols", "_text")
    _symbols: frozenset[Symbol]
    _text: str | None

    @property
    def terms(self) -> Terms:
        """The polynomial: (monomial, coefficient) pairs, the constant last."""
        raise NotImplementedError

    def free_symbols(self) -> frozenset[Symbol]:
        return self._symbols

    def substitute(self, values: Mapping[Symbol, Int]) -> Int:
        """Every symbol that is a key of `values` replaced, all at once."""
        if self._symbols.isdisjoint(values):
            return self
        return map_atoms(self, lambda atom: values.get(atom, atom) if isinstance(atom, Symbol) else atom)

    def __add__(self, other: Int) -> Int:
        return ADD[self, other]

    __radd__ = __add__

    def __mul__(self, other: Int) -> Int:
        return MUL[self, other]

    __rmul__ = __mul__

    def __sub__(self, other: Int) -> Int:
        return SUB[self, other]

    def __rsub__(self, other: Int) -> Int:
        return SUB[other, self]

    def __floordiv__(self, other: Int) -> Int:
        return FLOORDIV[self, other]

    def __rfloordiv__(self, other: Int) -> Int:
        return FLOORDIV[other, self]

    def __mod__(self, other: Int) -> Int:
        return MOD[self, other]

    def __rmod__(self, other: Int) -> Int:
        return MOD[other, self]

    def __neg__(self) -> Int:
        return MUL[self, -1]

    def __pos__(self) -> Int:
        return self

    def __pow__(self, exponent: int) -> Int:
        return product([self] * exponent) if exponent >= 0 else _FOREIGN

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of `{self}` depends on a size: use ShapeEnv.known or ShapeEnv.decide")

    def __str__(self) -> str:
        text = self._text
        if text is None:
            text = self._text = self._write()
        return text

    def __repr__(self) -> str:
        return str(self)

    def _write(self) -> str:
        raise NotImplementedError


Int = int | Expr
"""A size, stride, offset or index: a plain int where it is static."""
Terms: TypeAlias = "poly.Terms[Atom]"


@final
class Polynomial(Expr):
    """A sum of at least two terms, or one term that is not an atom."""

    __slots__ = ("_terms",)
    _terms: Terms

    @property
    def terms(self) -> Terms:
        return self._terms

    def _write(self) -> str:
        return write_terms(self._terms)

    def __reduce__(self) -> tuple[object, ...]:
        return from_terms, (self._terms,)


class Atom(Expr):
    """A factor of a monomial. `sort_key` depends on the text only, so that every process orders alike."""

    __slots__ = ("sort_key",)
    sort_key: poly.SortKey

    @property
    def terms(self) -> Terms:
        return (((self,), 1),)


@final
class Symbol(Atom):
    """An unknown integer, identified by its name."""

    __slots__ = ("name",)
    name: str

    def _write(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return symbol, (self.name,)


class Quotient(Atom):
    """Base of the two results of a division."""

    __slots__ = ("dividend", "divisor")
    dividend: Int
    divisor: Int
    sign = ""

    def _write(self) -> str:
        return f"{_operand(self.dividend)}{self.sign}{_operand(self.divisor)}"

    def __reduce__(self) -> tuple[object, ...]:
        return _divide, (type(self), self.dividend, self.divisor)


@final
class FloorDiv(Quotient):
    """`dividend // divisor`, rounded down."""

    __slots__ = ()
    sign = "//"


@final
class Mod(Quotient):
    """`dividend % divisor`, with the sign of the divisor."""

    __slots__ = ()
    sign = "%"


class Extremum(Atom):
    """Base of the smallest and the largest of two or more values."""

    __slots__ = ("args",)
    args: tuple[Int, ...]
    function = ""

    def _write(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"

    def __reduce__(self) -> tuple[object, ...]:
        return fold_extremum, (type(self), *self.args)


@final
class Min(Extremum):
    __slots__ = ()
    function = "min"


@final
class Max(Extremum):
    __slots__ = ()
    function = "max"


# Text.


def _operand(value: Int) -> str:
    text = str(value)
    return text if isinstance(value, Symbol | Extremum) or (isinstance(value, int) and value >= 0) else f"({text})"


def _write_monomial(monomial: tuple[Atom, ...]) -> str:
    factors = []
    for atom in dict.fromkeys(monomial):
        power = monomial.count(atom)
        factors.append(_operand(atom) + (f"**{power}" if power > 1 else ""))
    return "*".join(factors)


def write_terms(terms: Terms) -> str:
    """`2*s0*s1 - s0 + 3`."""
    pieces: list[str] = []
    for monomial, coefficient in terms:
        size = abs(coefficient)
        if not monomial:
            body = str(size)
        elif size != 1:
            body = f"{size}*{_write_monomial(monomial)}"
        elif len(monomial) == 1:
            body = str(monomial[0])
        else:
            body = _write_monomial(monomial)
        if not pieces:
            # Otherwise the minus would apply to the dividend alone.
            quotient = coefficient == -1 and len(monomial) == 1 and isinstance(monomial[0], Quotient)
            pieces.append((f"-({body})" if quotient else f"-{body}") if coefficient < 0 else body)
        else:
            pieces.append(f"{'-' if coefficient < 0 else '+'} {body}")
    return " ".join(pieces)


# Making objects.

_POLYNOMIALS: InternTable[Terms, Polynomial] = InternTable("polynomial")
_SYMBOLS: InternTable[str, Symbol] = InternTable("symbol")
_QUOTIENTS: InternTable[tuple[type[Quotient], Int, Int], Quotient] = InternTable("quotient")
_EXTREMA: InternTable[tuple[type[Extremum], tuple[Int, ...]], Extremum] = InternTable("extremum")


def _symbols_of(values: Iterable[Int]) -> frozenset[Symbol]:
    return frozenset().union(*(value._symbols for value in values if isinstance(value, Expr)))


def _make_polynomial(terms: Terms) -> Polynomial:
    made = Polynomial()
    made._terms = terms
    made._text = None
    made._symbols = _symbols_of(atom for monomial, _ in terms for atom in monomial)
    return made


def _make_symbol(name: str) -> Symbol:
    match = re.fullmatch(r"([A-Za-z_]\w*?)(\d*)", name, re.ASCII)
    if match is None:
        raise ValueError(f"not a name for a symbol: {name!r}")
    made = Symbol()
    made.name = made._text = name
    made._symbols = frozenset()
    made.sort_key = (0, match[1], int(match[2] or -1), name)
    made._symbols = frozenset((made,))
    return made


def _finish_atom(made: Atom, parts: Iterable[Int]) -> None:
    made._symbols = _symbols_of(parts)
    made._text = made._write()
    made.sort_key = (1, type(made).__name__, 0, made._text)


def _make_quotient(key: tuple[type[Quotient], Int, Int]) -> Quotient:
    made = key[0]()
    _, made.dividend, made.divisor = key
    _finish_atom(made, key[1:])
    return made


def _make_extremum(key: tuple[type[Extremum], tuple[Int, ...]]) -> Extremum:
    made = key[0]()
    made.args = key[1]
    _finish_atom(made, made.args)
    return made


def _quotient(kind: type[Quotient], dividend: Int, divisor: Int) -> Int:
    return _QUOTIENTS.get_or_make((kind, dividend, divisor), _make_quotient)


def symbol(name: str) -> Symbol:
    """The symbol called `name`; one object per name."""
    return _SYMBOLS.get_or_make(name, _make_symbol)


def from_terms(terms: Terms) -> Int:
    """The expression of canonical `terms`; an int when they are constant."""
    if not terms:
        return 0
    if len(terms) == 1:
        monomial, coefficient = terms[0]
        if not monomial:
            return coefficient
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return _POLYNOMIALS.get_or_make(terms, _make_polynomial)


def terms_of(value: Int) -> Terms:
    return value.terms if isinstance(value, Expr) else poly.constant_terms(int(value))


def _are_ints(*values: object) -> bool:
    return all(isinstance(value, int | Expr) for value in values)


# Operations, each behind a memo.

_FOREIGN = cast(Int, NotImplemented)
"""Tells Python to ask the other operand."""


def _add(a: Int, b: Int) -> Int:
    return from_terms(poly.add(terms_of(a), terms_of(b))) if _are_ints(a, b) else _FOREIGN


def _sub(a: Int, b: Int) -> Int:
    return from_terms(poly.add(terms_of(a), terms_of(b), -1)) if _are_ints(a, b) else _FOREIGN


def _mul(a: Int, b: Int) -> Int:
    if not _are_ints(a, b):
        return _FOREIGN
    if isinstance(b, int):
        return from_terms(poly.scaled(terms_of(a), int(b)))
    return from_terms(poly.multiply(terms_of(a), terms_of(b)))


def _split_constant(a: Int, by: int) -> tuple[Int, Terms, bool]:
    """`(whole, rest, negated)`: `a = by*whole + rest`, or with a negative leading rest `a = by*whole - rest + by - 1`.

    In both cases `rest` has a positive leading coefficient, coefficients below `by` and a constant in `0 .. by-1`.
    """
    whole, rest = poly.split_multiples(terms_of(a), ((), by))
    if rest and rest[0][0] and rest[0][1] < 0:
        return from_terms(whole), poly.add(poly.constant_terms(by - 1), rest, -1), True
    return from_terms(whole), rest, False


def _without_content(rest: Terms, by: int) -> tuple[Int, int, int, int]:
    """`rest = factor*dividend + left` and `by = factor*divisor`, with `0 <= left < factor`."""
    factor = gcd(by, poly.content(term for term in rest if term[0]))
    constant = rest[-1][1] if not rest[-1][0] else 0
    left = constant % factor
    dividend = poly.divide_all(poly.add(rest, poly.constant_terms(left), -1), (), factor)
    return from_terms(dividend), by // factor, factor, left


def _floor_div_constant(a: Int, by: int) -> Int:
    """`a // by` for `by > 1`."""
    whole, rest, negated = _split_constant(a, by)
    if not rest or not rest[0][0]:
        return whole
    dividend, divisor, _, _ = _without_content(rest, by)
    (monomial, coefficient), *tail = terms_of(dividend)
    inner: Atom = monomial[0]
    atom: Int
    single = len(monomial) == 1 and coefficient == 1 and (not tail or not tail[0][0])
    if single and isinstance(inner, FloorDiv) and isinstance(inner.divisor, int):
        # floor((floor(x/d) + k) / n) = floor((x + k*d) / (d*n)) for n > 0.
        constant = tail[0][1] if tail else 0
        atom = (inner.dividend + constant * inner.divisor) // (inner.divisor * divisor)
    else:
        atom = _quotient(FloorDiv, dividend, divisor)
    # floor((c-1-r)/c) with r from 1 on: floor(-x/c) = -floor((x + c-1)/c).
    return whole - atom if negated else whole + atom


def _modulo_constant(a: Int, by: int) -> Int:
    """`a % by` for `by > 1`."""
    unwrapped = _unwrap_remainders(a, by)
    if unwrapped is not a:
        return unwrapped % by
    _, rest, negated = _split_constant(a, by)
    if not rest or not rest[0][0]:
        return rest[0][1] if rest else 0
    dividend, divisor, factor, left = _without_content(rest, by)
    atom: Int = _quotient(Mod, dividend, divisor)
    value = factor * atom + left
    return by - 1 - value if negated else value


def _unwrap_remainders(a: Int, by: int) -> Int:
    """Each `k*(x % d)` of the sum `a` replaced by `k*x` where `by` divides `k*d`."""
    for monomial, coefficient in terms_of(a):
        inner = monomial[0] if len(monomial) == 1 else None
        if isinstance(inner, Mod) and isinstance(inner.divisor, int) and coefficient * inner.divisor % by == 0:
            return _unwrap_remainders(a + coefficient * (inner.dividend - inner), by)
    return a


def _cancel(a: Int, b: Expr) -> tuple[Int, Int, Int, Int]:
    """`(whole, rest, divisor, factor)` with `a = whole*b + factor*rest` and `b = factor*divisor`."""
    numerator, denominator = terms_of(a), terms_of(b)
    if len(denominator) == 1:
        whole, rest = poly.split_multiples(numerator, denominator[0])
    else:
        exact = poly.exact_quotient(numerator, denominator)
        whole, rest = (exact, ()) if exact is not None else ((), numerator)
    if not rest:
        return from_terms(whole), 0, b, 1
    common = poly.common_monomial((*rest, *denominator))
    factor = gcd(poly.content(rest), poly.content(denominator))
    if denominator[0][1] < 0:
        factor = -factor
    rest, denominator = poly.divide_all(rest, common, factor), poly.divide_all(denominator, common, factor)
    return from_terms(whole), from_terms(rest), from_terms(denominator), from_terms(((common, factor),))


def floor_div(a: Int, b: Int) -> Int:
    """`a // b`."""
    if not _are_ints(a, b):
        return _FOREIGN
    if isinstance(b, int):
        if isinstance(a, int) or b == 0:
            return int(a) // b if isinstance(a, int) else 0 // b
        a, b = (a, b) if b > 0 else (-a, -b)
        return a if b == 1 else _floor_div_constant(a, b)
    whole, rest, divisor, _ = _cancel(a, b)
    if isinstance(rest, int) and rest == 0:
        return whole
    if isinstance(divisor, int):
        return whole + rest // divisor
    return whole + _quotient(FloorDiv, rest, divisor)


def modulo(a: Int, b: Int) -> Int:
    """`a % b`."""
    if not _are_ints(a, b):
        return _FOREIGN
    if isinstance(b, int):
        if isinstance(a, int) or b == 0:
            return int(a) % b if isinstance(a, int) else 0 % b
        if b < 0:
            return -((-a) % -b)
        return 0 if b == 1 else _modulo_constant(a, b)
    _, rest, divisor, factor = _cancel(a, b)
    if isinstance(rest, int) and rest == 0:
        return 0
    if isinstance(divisor, int):
        return factor * (rest % divisor)
    return factor * _quotient(Mod, rest, divisor)


def polynomial_quotient(a: Int, b: Int) -> Int:
    """Of a division of polynomials, whatever it leaves: `s0` for `(s0*s1 + 2*s0 + 1) / (s1 + 2)`."""
    return from_terms(poly.division(terms_of(a), terms_of(b))[0]) if b != 0 else 0


def _extremum(kind: type[Extremum], a: Int, b: Int) -> Int:
    """The smallest or largest of all arguments, flattened; of two that differ by a constant one is kept."""
    kept: list[Int] = []
    for value in _flat(kind, a) + _flat(kind, b):
        for position, other in enumerate(kept):
            difference = value - other
            if isinstance(difference, int):
                if (difference < 0) == (kind is Min):
                    kept[position] = value
                break
        else:
            kept.append(value)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=lambda value: (isinstance(value, int), str(value)))
    return _EXTREMA.get_or_make((kind, tuple(kept)), _make_extremum)


def _flat(kind: type[Extremum], value: Int) -> list[Int]:
    return list(value.args) if isinstance(value, kind) else [value]


ADD: Memo[tuple[Int, Int], Int] = Memo("add", _add)
SUB: Memo[tuple[Int, Int], Int] = Memo("sub", _sub)
MUL: Memo[tuple[Int, Int], Int] = Memo("mul", _mul)
FLOORDIV: Memo[tuple[Int, Int], Int] = Memo("floordiv", floor_div)
MOD: Memo[tuple[Int, Int], Int] = Memo("mod", modulo)
MIN: Memo[tuple[Int, Int], Int] = Memo("min", partial(_extremum, Min))
MAX: Memo[tuple[Int, Int], Int] = Memo("max", partial(_extremum, Max))


def sym_min(a: Int, b: Int) -> Int:
    """The smaller of the two."""
    return MIN[a, b]


def sym_max(a: Int, b: Int) -> Int:
    """The larger of the two."""
    return MAX[a, b]


def _divide(kind: type[Quotient], dividend: Int, divisor: Int) -> Int:
    return (FLOORDIV if kind is FloorDiv else MOD)[dividend, divisor]


def fold_extremum(kind: type[Extremum], *values: Int) -> Int:
    """The smallest or largest of `values`."""
    return reduce(sym_min if kind is Min else sym_max, values)


def is_static(value: Int) -> TypeGuard[int]:
    """Is it a plain int?"""
    return not isinstance(value, Expr)


def product(values: Iterable[Int]) -> Int:
    """The product; 1 of nothing."""
    return reduce(operator.mul, values, 1)


def ceil_div(a: Int, b: Int) -> Int:
    """`a / b` rounded up, for `b > 0`."""
    return (a + b - 1) // b


# Walking.


def substituted(value: Int, values: Mapping[Symbol, Int]) -> Int:
    """With each symbol of `values` replaced."""
    return value.substitute(values) if isinstance(value, Expr) else value


def map_polynomial(value: Expr, change: Callable[[Atom], Int]) -> Int:
    """The sum of the terms with each factor replaced by `change(factor)`."""
    result: Int = 0
    for monomial, coefficient in value.terms:
        part: Int = coefficient
        for atom in monomial:
            part = part * change(atom)
        result = result + part
    return result


def map_atoms(value: Int, change: Callable[[Atom], Int]) -> Int:
    """Rebuilt bottom-up: each atom, its parts rebuilt already, replaced by `change(atom)`."""
    return _rebuild(value, change, {}) if isinstance(value, Expr) else value


def _rebuild(value: Int, change: Callable[[Atom], Int], done: dict[Expr, Int]) -> Int:
    if not isinstance(value, Expr):
        return value
    result = done.get(value)
    if result is not None:
        return result
    if isinstance(value, Atom):
        result = _rebuild_atom(value, change, done)
    else:
        result = map_polynomial(value, lambda atom: _rebuild(atom, change, done))
    done[value] = result
    return result


def _rebuild_atom(atom: Atom, change: Callable[[Atom], Int], done: dict[Expr, Int]) -> Int:
    if isinstance(atom, Symbol):
        return change(atom)
    if isinstance(atom, Quotient):
        whole = _divide(type(atom), _rebuild(atom.dividend, change, done), _rebuild(atom.divisor, change, done))
    else:
        assert isinstance(atom, Extremum)
        whole = fold_extremum(type(atom), *[_rebuild(arg, change, done) for arg in atom.args])
    return change(whole) if isinstance(whole, Atom) else whole


def is_polynomial_in_symbols(value: Int) -> bool:
    """Is it free of divisions, minima and maxima?"""
    return all(type(atom) is Symbol for monomial, _ in terms_of(value) for atom in monomial)


def evaluate(value: Int, values: Mapping[Symbol, int] | Mapping[str, int]) -> int:
    """The number it is under `values` (by symbol or by name). Raises `KeyError` for a missing symbol."""
    if not isinstance(value, Expr):
        return value
    if isinstance(value, Symbol):
        by_symbol, by_name = cast(Mapping[Symbol, int], values), cast(Mapping[str, int], values)
        return by_symbol[value] if value in by_symbol else by_name[value.name]
    if isinstance(value, Quotient):
        dividend, divisor = evaluate(value.dividend, values), evaluate(value.divisor, values)
        return dividend // divisor if isinstance(value, FloorDiv) else dividend % divisor
    if isinstance(value, Extremum):
        pick = min if isinstance(value, Min) else max
        return pick([evaluate(arg, values) for arg in value.args])
    total = 0
    for monomial, coefficient in value.terms:
        for atom in monomial:
            coefficient *= evaluate(atom, values)
        total += coefficient
    return total
