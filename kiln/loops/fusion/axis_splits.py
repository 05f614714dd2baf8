"""Axes that a node takes apart in its indices, as several axes, so that its accesses become affine.

    out[i0, i1] = x[i0, i1 // 64, i1 % 64]         i1: 768   =>   64*d1 + d0, d1: 12, d0: 64
                  x[i0, d1, d0]

A digit of size b at multiple m of an axis is what `axis // m % b` picks. Axes of index reductions and scans stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from kiln.loops.body.affine import Affine, affine, divides
from kiln.loops.body.body import Index, IndexValue, Load
from kiln.loops.body.indexing import Axis, axis_bounds, linear_index, substituted
from kiln.loops.fusion.group import FusableNode
from kiln.loops.program.analyses import node_axes
from kiln.symbolic import Expr, FloorDiv, Int, Symbol, simplify_in_ranges, symbol
from kiln.symbolic.expr import Quotient
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class SubAxis:
    """Part of an axis: the axis is the sum of `multiple` * `symbol`, `symbol` running to `size` - 1."""

    symbol: Symbol
    size: Int
    multiple: Int


AxisSplits = dict[Symbol, tuple[SubAxis, ...]]
"""The digits of each axis, the largest multiple first."""


def axis_splits(node: FusableNode, whole: frozenset[Symbol]) -> AxisSplits:
    """The digits of the axes of `node`; an axis that is nowhere taken apart is its own digit."""
    cuts: dict[Symbol, list[Int]] = {}
    for axis, cut in _cuts(node):
        if axis not in whole and cut not in cuts.setdefault(axis, []):
            cuts[axis].append(cut)
    digits: AxisSplits = {}
    count = 0
    for one in node_axes(node):
        made = _cut(one, cuts.get(one.symbol, []), count)
        count += len(made)
        digits[one.symbol] = made
    return digits


def _cuts(node: FusableNode) -> Iterator[tuple[Symbol, Int]]:
    for op in node.body.ops:
        if isinstance(op, Load):
            for at in op.index:
                yield from _cuts_of(at)
        elif isinstance(op, IndexValue):
            yield from _cuts_of(op.expr)


def _cuts_of(value: Int) -> Iterator[tuple[Symbol, Int]]:
    """(axis, multiple) of each division of an axis: `a // 64`, `a % 64`, `a // 64 % 12`."""
    if not isinstance(value, Expr):
        return
    for monomial, _ in value.terms:
        for atom in monomial:
            if isinstance(atom, Quotient):
                yield from _cuts_of_quotient(atom)


def _cuts_of_quotient(atom: Quotient) -> Iterator[tuple[Symbol, Int]]:
    """Of one division or remainder, whose dividend may be a division itself."""
    scale: Int = 1
    inner = atom.dividend
    if isinstance(inner, FloorDiv):
        scale, inner = inner.divisor, inner.dividend
        if isinstance(inner, Symbol):
            yield inner, scale
    if isinstance(inner, Symbol):
        yield inner, scale * atom.divisor


def _cut(axis: Axis, cuts: list[Int], first: int) -> tuple[SubAxis, ...]:
    """AxisSplits between the cuts that divide each other and the axis."""
    below: Int = 1
    found: list[SubAxis] = []
    for cut in sorted(cuts, key=size_hint):
        if cut != axis.size and cut != below and divides(below, cut) and divides(cut, axis.size):
            found.append(SubAxis(symbol(f"d{first + len(found)}"), cut // below, below))
            below = cut
    if not found:
        return (SubAxis(axis.symbol, axis.size, 1),)
    found.append(SubAxis(symbol(f"d{first + len(found)}"), axis.size // below, below))
    return tuple(reversed(found))


@final
class SplitForms:
    """Accesses as forms over digits."""

    def __init__(self, digits: AxisSplits, opaque: frozenset[Symbol]) -> None:
        parts = [one for made in digits.values() for one in made]
        self.symbols = frozenset(one.symbol for one in parts)
        self.opaque = opaque
        self.values: Mapping[Symbol, Int] = {axis: _value(made) for axis, made in digits.items() if len(made) > 1}
        self.bounds = axis_bounds([Axis(one.symbol, one.size) for one in parts]) if self.values else None

    def form(self, spec: TensorSpec, index: Index) -> Affine | None:
        """The place in memory of an access, from the first element of the tensor on."""
        address = linear_index(spec, index)
        if self.bounds is not None:
            address = simplify_in_ranges(substituted(address, self.values), self.bounds)
        return affine(address, self.symbols, self.opaque)


def _value(digits: tuple[SubAxis, ...]) -> Int:
    total: Int = 0
    for one in digits:
        total = total + one.symbol * one.multiple
    return total
