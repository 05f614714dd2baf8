"""The interval of an expression whose symbols have known ranges.

    s0 in 1..64, s1 in 0..     s0*s1 + 3  in  3..      s0 % 8  in  0..7      s0*(s1 + 1)  in  1..

Interval arithmetic with one refinement: a polynomial is also written in `t = s - lo`, the distances of its symbols
from their lower bounds, which are never negative: so `s0*s1 - s0` with `s1 >= 1` is found to be >= 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

from kiln.support.records import dataclass
from kiln.symbolic.expr import Atom, Expr, Extremum, FloorDiv, Int, Min, Quotient, Symbol

INT64_MIN = -(1 << 63)
"""The lower bound of an unknown value."""


@final
@dataclass(frozen=True, slots=True)
class Range:
    """All integers from `lo` to `hi`, both included; no upper bound when `hi` is None."""

    lo: int
    hi: int | None = None

    def __post_init__(self) -> None:
        if self.hi is not None and self.hi < self.lo:
            raise ValueError(f"an empty range: {self.lo}..{self.hi}")

    def __contains__(self, value: int) -> bool:
        return self.lo <= value and (self.hi is None or value <= self.hi)

    def meet(self, lo: int | None, hi: int | None) -> Range:
        """The part of it between `lo` and `hi`."""
        low = self.lo if lo is None else max(lo, self.lo)
        return Range(low, self.hi if hi is None else hi if self.hi is None else min(hi, self.hi))


class Interval(NamedTuple):
    """Like a range, open on either side where it is None."""

    lo: int | None
    hi: int | None


UNKNOWN = Interval(None, None)


class BoundAnalysis:
    """Intervals of expressions under `ranges`, memoised; a symbol without a range is unknown.

    `ends`: the largest value of symbols, where it depends on others: `s0 - 1` for a loop over `s0`.
    """

    def __init__(self, ranges: Mapping[Symbol, Range], ends: Mapping[Symbol, Int] | None = None) -> None:
        self._ranges = ranges
        self._ends = ends or {}
        self._done: dict[Expr, Interval] = {}

    def of(self, value: Int) -> Interval:
        """The interval of `value`."""
        if not isinstance(value, Expr):
            return Interval(value, value)
        found = self._done.get(value)
        if found is None:
            found = self._done[value] = self._compute(value)
        return found

    def is_nonnegative(self, value: Int) -> bool:
        lo = self.of(value).lo
        return lo is not None and lo >= 0

    def is_below(self, value: Int, limit: Int) -> bool:
        """Whether `value < limit`, as far as the bounds tell."""
        if (lo := self.of(limit - value).lo) is not None and lo > 0:
            return True
        ended = self._at_ends(value) if self._ends and isinstance(value, Expr) else value
        return ended is not value and (lo := self.of(limit - ended).lo) is not None and lo > 0

    def _at_ends(self, value: Expr) -> Int:
        """At least `value`: the symbols that it grows with are at their ends."""
        fixed: set[Symbol] = set()
        for monomial, coefficient in value.terms:
            inner = [atom.free_symbols() for atom in monomial if not isinstance(atom, Symbol)]
            fixed.update(*inner)
            if coefficient < 0 or len(set(monomial)) != len(monomial) or not all(map(self.is_nonnegative, monomial)):
                fixed.update(value.free_symbols().intersection(monomial))
        grown = {name: end for name, end in self._ends.items() if name in value.free_symbols() and name not in fixed}
        return value.substitute(grown) if grown else value

    def _compute(self, value: Expr) -> Interval:
        if isinstance(value, Symbol):
            known = self._ranges.get(value)
            return UNKNOWN if known is None else Interval(None if known.lo <= INT64_MIN else known.lo, known.hi)
        if isinstance(value, Quotient):
            dividend, divisor = self.of(value.dividend), self.of(value.divisor)
            return (floor_div_interval if isinstance(value, FloorDiv) else mod_interval)(dividend, divisor)
        if isinstance(value, Extremum):
            return _extremum_interval(isinstance(value, Min), [self.of(arg) for arg in value.args])
        return self._polynomial(value)

    def _polynomial(self, value: Expr) -> Interval:
        lo: int | None = 0
        hi: int | None = 0
        for monomial, coefficient in value.terms:
            low, high = self.of(monomial[0]) if len(monomial) == 1 else self._monomial(monomial)
            if coefficient < 0:
                low, high = high, low
            lo = None if lo is None or low is None else lo + coefficient * low
            hi = None if hi is None or high is None else hi + coefficient * high
        total = Interval(lo, hi)
        if total.lo is None and (lo := self._lowest_by_shift(value)) is not None:
            total = Interval(lo, total.hi)
        if total.hi is None and (lo := self._lowest_by_shift(-value)) is not None:
            total = Interval(total.lo, -lo)
        return total

    def _monomial(self, monomial: tuple[Atom, ...]) -> Interval:
        total = Interval(1, 1)
        for atom in dict.fromkeys(monomial):
            exponent, interval = monomial.count(atom), self.of(atom)
            power = interval
            for _ in range(exponent - 1):
                power = _multiply(power, interval)
            if exponent % 2 == 0 and (power.lo is None or power.lo < 0):
                power = Interval(0, power.hi)
            total = _multiply(total, power)
        return total

    def _lowest_by_shift(self, value: Int) -> int | None:
        """The constant of the polynomial in the distances from the lower bounds, when no coefficient is negative."""
        assert isinstance(value, Expr)
        if all(len(monomial) < 2 for monomial, _ in value.terms):
            return None
        if all(coefficient < 0 for monomial, coefficient in value.terms if monomial):
            return None
        shifted: Int = 0
        for monomial, coefficient in value.terms:
            part: Int = coefficient
            for atom in monomial:
                lo = self.of(atom).lo
                if lo is None:
                    return None
                part = part * (atom + lo)
            shifted = shifted + part
        if not isinstance(shifted, Expr):
            return shifted
        constant = 0
        for monomial, coefficient in shifted.terms:
            if not monomial:
                constant = coefficient
            elif coefficient < 0:
                return None
        return constant


def _scale(a: Interval, factor: int) -> Interval:
    lo = None if a.lo is None else a.lo * factor
    hi = None if a.hi is None else a.hi * factor
    return Interval(lo, hi) if factor >= 0 else Interval(hi, lo)


def _multiply(a: Interval, b: Interval) -> Interval:
    if None not in a and None not in b:
        corners = [x * y for x in a for y in b if x is not None and y is not None]
        return Interval(min(corners), max(corners))
    if a == (0, 0) or b == (0, 0):
        return Interval(0, 0)
    for left, right in ((a, b), (b, a)):
        if left.hi is not None and left.hi <= 0:
            positive = _multiply(_scale(left, -1), right)
            return _scale(positive, -1)
    if a.lo is None or b.lo is None or a.lo < 0 or b.lo < 0:
        return UNKNOWN
    return Interval(a.lo * b.lo, None)


def floor_div_interval(a: Interval, b: Interval) -> Interval:
    """`a // b`; unknown if the divisor may be negative or zero."""
    if b.lo is None or b.lo <= 0:
        return Interval(0, a.hi) if b.lo == 0 and a.lo is not None and a.lo >= 0 else UNKNOWN
    lo = hi = None
    if a.lo is not None:
        lo = a.lo // b.lo if a.lo < 0 else 0 if b.hi is None else a.lo // b.hi
    if a.hi is not None:
        hi = a.hi // b.lo if a.hi >= 0 else -1 if b.hi is None else a.hi // b.hi
    return Interval(lo, hi)


def mod_interval(a: Interval, b: Interval) -> Interval:
    """`a % b`; the divisor is never zero."""
    if b.lo is None or b.lo < 0:
        return UNKNOWN
    hi = None if b.hi is None else b.hi - 1
    if a.lo is not None and a.lo >= 0 and a.hi is not None:
        hi = a.hi if hi is None else min(hi, a.hi)
    return Interval(0, hi)


def _extremum_interval(smallest: bool, parts: list[Interval]) -> Interval:
    lows = [part.lo for part in parts if part.lo is not None]
    highs = [part.hi for part in parts if part.hi is not None]
    if smallest:
        return Interval(min(lows) if len(lows) == len(parts) else None, min(highs, default=None))
    return Interval(max(lows, default=None), max(highs) if len(highs) == len(parts) else None)
