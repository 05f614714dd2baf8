"""Index expressions as text of a target language.

    IntPrinter(bounds).text(8*i0 + i1//4)       "8*i0 + i1/4"            i1 is known not to be negative
                                                "8*i0 + floor_div(i1, 4)" otherwise

`names` gives symbols other texts (a lane's index, the value of an indirect index).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import final

from kiln.support.records import dataclass
from kiln.symbolic import Atom, BoundAnalysis, Expr, FloorDiv, Int, Min, Relation, Symbol
from kiln.symbolic.expr import Extremum, Quotient
from kiln.symbolic.relation import SIGNS


@final
@dataclass(frozen=True, slots=True)
class IntSyntax:
    """How a language writes what is not `+`, `-` and `*`. `div` and `mod` are for operands that are not negative."""

    div: str = "({0} / {1})"
    mod: str = "({0} % {1})"
    floor_div: str = "floor_div({0}, {1})"
    floor_mod: str = "floor_mod({0}, {1})"
    smallest: str = "min({0}, {1})"
    largest: str = "max({0}, {1})"
    integer: str = "{0}"


@final
@dataclass(frozen=True, slots=True)
class IntPrinter:
    """Prints expressions whose symbols lie in `bounds`."""

    bounds: BoundAnalysis
    syntax: IntSyntax = IntSyntax()
    names: Mapping[Symbol, str] = field(default_factory=dict)

    def text(self, value: Int) -> str:
        """`value` as a sum, to be parenthesised in a tighter context."""
        if not isinstance(value, Expr):
            return self.syntax.integer.format(value)
        if isinstance(value, Atom):
            return self._atom(value)
        pieces: list[str] = []
        for monomial, coefficient in value.terms:
            size = abs(coefficient)
            factors = [self._atom(atom) for atom in monomial]
            if size != 1 or not factors:
                factors.insert(0, self.syntax.integer.format(size))
            sign = "-" if coefficient < 0 else "+" if pieces else ""
            pieces.append(f"{sign} {'*'.join(factors)}" if pieces else f"{sign}{'*'.join(factors)}")
        return " ".join(pieces)

    def operand(self, value: Int) -> str:
        """`value` in parentheses, unless it is a name or a number."""
        text = self.text(value)
        return text if text.isalnum() else f"({text})"

    def relation(self, relation: Relation) -> str:
        return f"({self.text(relation.lhs)} {SIGNS[relation.op]} {self.text(relation.rhs)})"

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return self.names.get(atom, atom.name)
        if isinstance(atom, Quotient):
            return self._quotient(atom)
        assert isinstance(atom, Extremum)
        template = self.syntax.smallest if isinstance(atom, Min) else self.syntax.largest
        text = self.text(atom.args[0])
        for other in atom.args[1:]:
            text = template.format(text, self.text(other))
        return text

    def _quotient(self, atom: Quotient) -> str:
        lowest = self.bounds.of(atom.divisor).lo
        plain = self.bounds.is_nonnegative(atom.dividend) and lowest is not None and lowest >= 0
        if isinstance(atom, FloorDiv):
            template = self.syntax.div if plain else self.syntax.floor_div
        else:
            template = self.syntax.mod if plain else self.syntax.floor_mod
        if plain:
            return template.format(self.operand(atom.dividend), self.operand(atom.divisor))
        return template.format(self.text(atom.dividend), self.text(atom.divisor))
