"""Axis splits: an axis that a node takes apart in its indices becomes several, so that its accesses are affine.

    out[i0, i1] = x[i0, i1 // 64, i1 % 64]         i1: 768   =>   64*d1 + d0, d1: 12, d0: 64
                  x[i0, d1, d0]

A part of size b at multiple m of an axis is what `axis // m % b` picks. Axes of index reductions and scans are not
split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from kiln.loops.body.affine import Affine, affine, divides
from kiln.loops.body.body import Index, IndexValue, Load
from kiln.loops.body.indexing import Axis, axis_bounds, linear_index, symbols_of
from kiln.loops.fusion.group import FusableNode
from kiln.loops.program.analyses import node_axes
from kiln.support.records import dataclass
from kiln.symbolic import Expr, FloorDiv, Int, Symbol, is_static, simplify_in_ranges, substituted, symbol
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
"""The parts of each axis, the largest multiple first."""


def axis_splits(node: FusableNode, unsplittable: frozenset[Symbol]) -> AxisSplits:
    """The parts of the axes of `node`; an axis that is nowhere taken apart is its own part."""
    cuts: dict[Symbol, dict[Int, None]] = {}
    for axis, multiple in _cuts(node):
        if axis not in unsplittable:
            cuts.setdefault(axis, {})[multiple] = None
    splits: AxisSplits = {}
    count = 0
    for loop_axis in node_axes(node):
        parts = splits[loop_axis.symbol] = _split(loop_axis, list(cuts.get(loop_axis.symbol, ())), count)
        count += len(parts)
    return splits


def _cuts(node: FusableNode) -> Iterator[tuple[Symbol, Int]]:
    """(axis, multiple) of each division of an axis in an index: `a // 64`, `a % 64`, `a // 64 % 12`."""
    for op in node.body.ops:
        for index in op.index if isinstance(op, Load) else (op.expr,) if isinstance(op, IndexValue) else ():
            terms = index.terms if isinstance(index, Expr) else ()
            for atom in (atom for monomial, _ in terms for atom in monomial if isinstance(atom, Quotient)):
                yield from _cuts_of(atom)


def _cuts_of(atom: Quotient) -> Iterator[tuple[Symbol, Int]]:
    """Of one division or remainder, whose dividend may be a division itself."""
    scale: Int = 1
    inner = atom.dividend
    if isinstance(inner, FloorDiv):
        scale, inner = inner.divisor, inner.dividend
        if isinstance(inner, Symbol):
            yield inner, scale
    if isinstance(inner, Symbol):
        yield inner, scale * atom.divisor


def _split(axis: Axis, cuts: list[Int], first: int) -> tuple[SubAxis, ...]:
    """Parts between the cuts that divide each other and the axis."""
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
    """Accesses as affine forms over the parts of axes."""

    def __init__(self, splits: AxisSplits, opaque: frozenset[Symbol]) -> None:
        axes = [Axis(part.symbol, part.size) for parts in splits.values() for part in parts]
        self.symbols = frozenset(axis.symbol for axis in axes)
        self.opaque = opaque
        self.values: Mapping[Symbol, Int] = {
            axis: sum(part.symbol * part.multiple for part in parts) for axis, parts in splits.items() if len(parts) > 1
        }
        self.bounds = axis_bounds(axes) if self.values else None

    def form(self, spec: TensorSpec, index: Index) -> Affine | None:
        """The address of an access, from the first element of the tensor on."""
        return affine(self._address(spec, index), self.symbols, self.opaque)

    def neighbours(self, spec: TensorSpec, index: Index) -> tuple[Symbol, ...]:
        """The symbols along which memory is in order, of an access at a place that data decide."""
        if self.opaque.isdisjoint(symbols_of(*index)):
            return ()
        form = affine(self._address(spec, index), self.symbols)
        return tuple([name for name, step in form.strides.items() if is_static(step) and step == 1]) if form else ()

    def _address(self, spec: TensorSpec, index: Index) -> Int:
        address = linear_index(spec, index)
        if self.bounds is not None:
            address = simplify_in_ranges(substituted(address, self.values), self.bounds)
        return address
