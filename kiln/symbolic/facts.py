"""Facts about sizes, and what follows from them without a guard.

    s0 in 1.., fact s0 <= s1         known(s1 >= 1)   True
    fact s0 % 8 == 0                 known(8*(s0//8) == s0)   True
    fact s1 == s0                    simplify(s1 + 1) is s0 + 1

A fact is a relation that holds for the rest of the compile. An equality that can be solved for a symbol becomes a
replacement; a bound of one symbol tightens its range; others stay linear inequalities `f <= 0`, and `d <= 0` follows
if `k*d - c*f <= 0` does, for positive k and c. Minima and maxima are proved case by case. The search is small on
purpose: what it misses costs a guard, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import kiln.symbolic.terms as poly
from kiln.symbolic.expr import Atom, Expr, Extremum, FloorDiv, Int, Min, Symbol, from_terms, map_atoms, terms_of
from kiln.symbolic.ranges import BoundAnalysis, Interval, Range
from kiln.symbolic.relation import Relation, relate
from kiln.symbolic.simplify_in_ranges import simplify_in_ranges, without_remainders

MAX_STEPS = 3
"""How many facts one proof may use."""


class SizeFacts:
    """Ranges, replacements and inequalities of one shape environment."""

    def __init__(self, ranges: Mapping[Symbol, Range] | None = None) -> None:
        self.ranges: dict[Symbol, Range] = dict(ranges or {})
        self.replacements: dict[Symbol, Int] = {}
        self._below: dict[Expr, None] = {}
        self._below_with: dict[tuple[poly.Monomial[Atom], bool], dict[Expr, int]] = {}
        """The same by each monomial and whether its coefficient is above 0, with the magnitude of that."""
        self._unequal: dict[Expr, None] = {}
        self._bounds = BoundAnalysis(self.ranges)
        self._decided: dict[Relation, bool] = {}
        self._open: set[Relation] = set()
        self._simplified: dict[Expr, Int] = {}

    def declare(self, name: Symbol, within: Range) -> None:
        """A new symbol and its range."""
        self.ranges[name] = within
        self._forget()

    def simplify(self, value: Int) -> Int:
        """The shortest form under all facts."""
        if not isinstance(value, Expr):
            return value
        found = self._simplified.get(value)
        if found is None:
            found = simplify_in_ranges(value.substitute(self.replacements), self._bounds)
            self._simplified[value] = found
        return found

    def interval(self, value: Int) -> Interval:
        """The interval of `value`."""
        return self._bounds.of(self.simplify(value))

    def known(self, relation: Relation | bool) -> bool | None:
        """Whether it holds; None if neither follows."""
        if isinstance(relation, bool):
            return relation
        answer = self._decided.get(relation)
        if answer is not None or relation in self._open:
            return answer
        answer = self._derive(relation)
        if answer is None:
            self._open.add(relation)
        else:
            self._decided[relation] = answer
        return answer

    def learn(self, relation: Relation | bool) -> None:
        """From now on `relation` holds. Raises `ValueError` if it contradicts the facts."""
        known = self.known(relation)
        if known is False:
            raise ValueError(f"`{relation}` contradicts what is known")
        if known or isinstance(relation, bool):
            return
        simpler = relate(relation.kind, self.simplify(relation.difference))
        if not isinstance(simpler, Relation):
            return
        self._decided[relation] = True
        if simpler.kind == "eq":
            self._learn_equal(simpler)
        elif simpler.kind == "le":
            self._learn_below(simpler.difference)
        else:
            self._learn_unequal(simpler.difference)
        self._tighten()
        self._forget()

    def _forget(self) -> None:
        self._open.clear()
        self._simplified.clear()
        self._bounds = BoundAnalysis(self.ranges)

    # Learning.

    def _learn_equal(self, relation: Relation) -> None:
        difference = relation.difference
        solved = _solve(difference)
        if solved is None:
            expanded = without_remainders(difference)
            if isinstance(expanded, Expr):
                self._add_below(expanded)
                self._add_below(-expanded)
            self._add_below(difference)
            self._add_below(-difference)
            return
        name, value = solved
        within = self.ranges.get(name)
        for other, old in self.replacements.items():
            if isinstance(old, Expr):
                self.replacements[other] = old.substitute({name: value})
        self.replacements[name] = value
        self._rewrite({name: value})
        if within is not None:
            self._learn_within(value, within)

    def _learn_within(self, value: Int, within: Range) -> None:
        if not isinstance(value, Expr):
            return
        self._learn_below(within.lo - value)
        if within.hi is not None:
            self._learn_below(value - within.hi)

    def _rewrite(self, values: Mapping[Symbol, Int]) -> None:
        below, self._below, self._below_with = self._below, {}, {}
        unequal, self._unequal = self._unequal, {}
        for difference in below:
            self._learn_below(difference.substitute(values))
        for difference in unequal:
            self._learn_unequal(difference.substitute(values))

    def _learn_below(self, difference: Int) -> None:
        tight = relate("le", difference)
        if not isinstance(tight, Relation):
            return
        terms = tight.difference.terms
        only = terms[0][0][0] if len(terms[0][0]) == 1 and (len(terms) == 1 or not terms[1][0]) else None
        if isinstance(only, Symbol):
            constant = terms[1][1] if len(terms) > 1 else 0
            old = self.ranges.get(only, Range(-(1 << 63)))
            # The canonical form has no common factor, so the coefficient is 1 or -1.
            lo, hi = (None, -constant) if terms[0][1] > 0 else (constant, None)
            self.ranges[only] = old.meet(lo, hi)
        else:
            self._add_below(tight.difference)

    def _add_below(self, difference: Int) -> None:
        if isinstance(difference, Expr):
            self._below[difference] = None
            for monomial, coefficient in difference.terms:
                self._below_with.setdefault((monomial, coefficient > 0), {})[difference] = abs(coefficient)

    def _learn_unequal(self, difference: Int) -> None:
        """`d != 0`."""
        if isinstance(difference, Expr):
            self._unequal[difference] = None

    def _tighten(self) -> None:
        """A `d != 0` at an end of the range of `d` moves that end, which may move others."""
        moved = bool(self._unequal)
        while moved:
            moved = False
            bounds = BoundAnalysis(self.ranges)
            for difference in list(self._unequal):
                ends = bounds.of(difference)
                if ends.lo == 0 or ends.hi == 0:
                    del self._unequal[difference]
                    self._learn_below(1 - difference if ends.lo == 0 else difference + 1)
                    moved = True
                    break

    # Deriving.

    def _derive(self, relation: Relation) -> bool | None:
        difference = self.simplify(relation.difference)
        simpler = relate(relation.kind, difference)
        if isinstance(simpler, bool):
            return simpler
        if simpler.kind == "le":
            if self._is_below(simpler.difference, MAX_STEPS):
                return True
            return False if self._is_below(1 - simpler.difference, MAX_STEPS) else None
        equal = self._derive_equal(simpler.difference)
        return equal if equal is None or simpler.kind == "eq" else not equal

    def _derive_equal(self, difference: Expr) -> bool | None:
        canonical = relate("eq", difference)
        if isinstance(canonical, bool):
            return canonical
        if canonical.difference in self._unequal:
            return False
        if self._is_below(difference + 1, MAX_STEPS) or self._is_below(1 - difference, MAX_STEPS):
            return False
        if self._is_below(difference, MAX_STEPS) and self._is_below(-difference, MAX_STEPS):
            return True
        expanded = without_remainders(difference)
        if expanded != difference:
            return self._derive_equal(expanded) if isinstance(expanded, Expr) else expanded == 0
        return None

    def _is_below(self, difference: Int, steps: int) -> bool:
        """Does `difference <= 0` follow?"""
        if not isinstance(difference, Expr):
            return difference <= 0
        ends = self._bounds.of(difference)
        if ends.hi is not None and ends.hi <= 0:
            return True
        if steps == 0 or (ends.lo is not None and ends.lo > 0):
            return False
        if (split := _first_extremum(difference)) is not None:
            return self._is_below_by_cases(difference, split, steps)
        if self._is_below_without_factor(difference, steps):
            return True
        return self._is_below_by_facts(difference, steps)

    def _is_below_by_cases(self, difference: Expr, split: Extremum, steps: int) -> bool:
        coefficient = dict(difference.terms).get((split,), 0)
        if coefficient * (1 if isinstance(split, Min) else -1) > 0:
            # c*min(a, b) <= c*a and <= c*b: proving one of them is enough.
            for arg in split.args:
                if self._is_below(difference + coefficient * (arg - split), steps - 1):
                    return True
        return all(self._is_below(_replace(difference, split, arg), steps - 1) for arg in split.args)

    def _is_below_without_factor(self, difference: Expr, steps: int) -> bool:
        """`m*x <= 0` for `m >= 0` when `x <= 0`."""
        common = poly.common_monomial(difference.terms)
        if not common or len(difference.terms) == 1:
            return False
        if not all(self._bounds.is_nonnegative(atom) for atom in common):
            return False
        return self._is_below(from_terms(poly.divide_all(difference.terms, common, 1)), steps - 1)

    def _is_below_by_facts(self, difference: Expr, steps: int) -> bool:
        laws = [(law, dict(law.terms)) for law in _division_laws(difference)]
        for monomial, coefficient in difference.terms:
            if not monomial:
                continue
            facts = self._below_with.get((monomial, coefficient > 0), {})
            fitting = {law: abs(of[monomial]) for law, of in laws if of.get(monomial, 0) * coefficient > 0}
            for fact, other in chain(facts.items(), fitting.items()):
                if self._is_below(other * difference - abs(coefficient) * fact, steps - 1):
                    return True
        return False


def _solve(difference: Expr) -> tuple[Symbol, Int] | None:
    """The last symbol for which `difference == 0` can be solved, and its value."""
    best: tuple[Symbol, Int] | None = None
    for monomial, coefficient in difference.terms:
        if abs(coefficient) != 1 or len(monomial) != 1 or not isinstance(monomial[0], Symbol):
            continue
        name = monomial[0]
        value = name - coefficient * difference
        free = value.free_symbols() if isinstance(value, Expr) else frozenset()
        if name not in free and (best is None or name.sort_key > best[0].sort_key):
            best = name, value
    return best


def _division_laws(difference: Expr) -> list[Expr]:
    """`b*(a//b) <= a <= b*(a//b) + b-1` for the divisions by a constant in `difference`, as `f <= 0`."""
    laws: list[Expr] = []
    for monomial, _ in difference.terms:
        for atom in monomial:
            if isinstance(atom, FloorDiv) and isinstance(atom.divisor, int) and atom.divisor > 0:
                scaled = atom.divisor * atom
                laws += [
                    law
                    for law in (scaled - atom.dividend, atom.dividend - scaled - atom.divisor + 1)
                    if isinstance(law, Expr)
                ]
    return laws


def _first_extremum(difference: Expr) -> Extremum | None:
    for monomial, _ in terms_of(difference):
        for atom in monomial:
            if isinstance(atom, Extremum):
                return atom
    return None


def _replace(value: Expr, old: Atom, new: Int) -> Int:
    return map_atoms(value, lambda atom: new if atom is old else atom)
