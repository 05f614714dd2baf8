"""Expressions over sizes as nodes of a `torch.fx` graph.

    sizes = FxSizes(graph)
    sizes.learn(s0, size_node)            %sym_size = torch.ops.aten.sym_size.int(x, 0)
    sizes.number(s0 * 2 + 1)              %mul = operator.mul(%sym_size, 2);  %add = operator.add(%mul, 1)

Each expression is computed once, at its first use. Where symbols are known in a sum only, that is the base:

    sizes.offer(u0 + u1 + 4, make_size)   %size = call_method size (x, 0)
    sizes.number(u0 + u1 + 2)             %add = operator.add(%size, -2)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import final

import torch.fx
from torch.fx.node import Argument as FxArgument

from kiln.symbolic import Expr, FloorDiv, Max, Min, Mod
from kiln.symbolic.values import REAL_OPS, Given, Real


@final
class FxSizes:
    """The symbolic numbers of an fx graph."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self._known: dict[Expr | Real, torch.fx.Node] = {}
        self._offered: dict[Expr, Callable[[], torch.fx.Node]] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._known

    def can_find(self, value: Expr) -> bool:
        """Whether a node holds the number of `value`, or can be added for it."""
        return value in self._known or value in self._offered

    def learn(self, value: Expr | Real, node: torch.fx.Node) -> None:
        """`node` holds the number of `value`."""
        self._known.setdefault(value, node)

    def offer(self, value: Expr, make: Callable[[], torch.fx.Node]) -> None:
        """`make` adds the node of `value`, if anything asks for it."""
        self._offered.setdefault(value, make)

    def concrete(self, value: object) -> FxArgument:
        """`value` with the expressions in it replaced by nodes."""
        if isinstance(value, tuple):
            return tuple([self.concrete(part) for part in value])
        return self.number(value)

    def number(self, value: object) -> FxArgument:
        """The node of an expression; other values are unchanged."""
        if not isinstance(value, Expr | Real):
            return value  # type: ignore[return-value]
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._computed(value)
        return found

    def _computed(self, value: Expr | Real) -> torch.fx.Node:
        if isinstance(value, Expr) and not (self._has_symbols(value) or self._find_symbols(value)):
            base = self._base_of(value)
            if base is value:
                return self._offered[base]()
            return self._fold(operator.add, [base, value - base])
        match value:
            case Real():
                if any(isinstance(arg, Given) for arg in value.args):
                    raise ValueError(f"no input is the number {value}")
                return self.graph.call_function(REAL_OPS[value.op], tuple([self.number(arg) for arg in value.args]))
            case FloorDiv() | Mod():
                target: Callable[..., object] = operator.floordiv if isinstance(value, FloorDiv) else operator.mod
                return self._fold(target, [value.dividend, value.divisor])
            case Min() | Max():
                return self._fold(min if isinstance(value, Min) else max, value.args)
        terms = []
        for monomial, coefficient in value.terms:
            factors = [*monomial] if coefficient == 1 and monomial else [*monomial, coefficient]
            terms.append(self._fold(operator.mul, factors))
        return self._fold(operator.add, terms)

    def _has_symbols(self, value: object) -> bool:
        return not isinstance(value, Expr) or all([symbol in self._known for symbol in value.free_symbols()])

    def _find_symbols(self, value: Expr) -> bool:
        """Whether nodes hold, or now hold, each symbol of `value`: `128 * u0` where a size is `u0`."""
        if value in self._offered or not all([self.can_find(symbol) for symbol in value.free_symbols()]):
            return False
        for symbol in value.free_symbols():
            self.number(symbol)
        return True

    def _base_of(self, value: Expr) -> Expr:
        """Of what nodes hold, or can hold: itself, or a number that differs from it by known symbols."""
        if value in self._offered:
            return value
        for base in (*self._known, *self._offered):
            if isinstance(base, Expr) and self._has_symbols(value - base):
                return base
        raise ValueError(f"no input has the symbols of {value}")

    def _fold(self, target: Callable[..., object], values: Sequence[object]) -> torch.fx.Node:
        result, *rest = [self.number(value) for value in values]
        for operand in rest:
            result = self.graph.call_function(target, (result, operand))
        return result  # type: ignore[return-value]
