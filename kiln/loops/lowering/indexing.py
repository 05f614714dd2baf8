"""Index arithmetic of views: from the index of an element in a view to its index in the viewed tensor.

    view   f32[6, 64] of f32[6, 4, 16]      (i0, i1)      =>  (i0, i1//16, i1 % 16)
    view   f32[6, 4, 16] of f32[6, 64]      (i0, i1, i2)  =>  (i0, 16*i1 + i2)

Dimensions are matched in runs of equal size, so that an index crosses only the dimensions that are really regrouped.
Simplification uses that inside a loop every size is at least 1, and a loop symbol is below its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import final

from kiln.loops.body.body import Index
from kiln.loops.body.indexing import Axis, counted
from kiln.symbolic import BoundAnalysis, Expr, FloorDiv, Int, Range, Relation, Symbol, simplify_in_ranges, symbol
from kiln.symbolic.expr import Quotient
from kiln.symbolic.relation import rel_le, rel_lt

Sizes = tuple[Int, ...]


@lru_cache(maxsize=64)
def loop_symbol(number: int) -> Symbol:
    return symbol(f"i{number}")


def loop_axes(sizes: Sequence[Int]) -> tuple[Axis, ...]:
    """Axes i0, i1, ... over `sizes`."""
    return tuple([Axis(loop_symbol(dim), size) for dim, size in enumerate(sizes)])


@lru_cache(maxsize=4096)
def regrouped(old: Sizes, new: Sizes) -> tuple[tuple[int, int, int, int], ...]:
    """Runs (old start, old stop, new start, new stop) of dimensions with equal products, as short as possible.

    Products are compared as expressions; where they never meet again, the rest is one run.
    """
    runs: list[tuple[int, int, int, int]] = []
    a = b = 0
    while a < len(old) or b < len(new):
        a0, b0 = a, b
        left: Int = old[a] if a < len(old) else 1
        right: Int = new[b] if b < len(new) else 1
        a, b = min(a + 1, len(old)), min(b + 1, len(new))
        while left != right and (a < len(old) or b < len(new)):
            if b == len(new) or (a < len(old) and _is_shorter(left, right)):
                left, a = left * old[a], a + 1
            else:
                right, b = right * new[b], b + 1
        runs.append((a0, a, b0, b))
    return tuple(runs)


def _is_shorter(left: Int, right: Int) -> bool:
    """Should the left product grow? Of symbolic products the one that divides the other."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return not isinstance(right, int) and isinstance(right % left if left != 0 else right, int)


def view_index(index: Index, new: Sizes, old: Sizes) -> Index:
    """The index into `old` sizes of the element at `index` of `new` sizes, in row-major order."""
    if new == old:
        return index
    result: list[Int] = [0] * len(old)
    if 0 in old:
        # There is no element: any index will do.
        return tuple(result)
    for old_start, old_stop, new_start, new_stop in regrouped(old, new):
        flat = linear(index[new_start:new_stop], new[new_start:new_stop])
        axes = [axis for axis in range(old_start, old_stop) if old[axis] != 1]
        for axis in reversed(axes[1:]):
            result[axis], flat = flat % old[axis], flat // old[axis]
        if axes:
            result[axes[0]] = flat
    return tuple(result)


def linear(index: Index, sizes: Sizes) -> Int:
    """Row-major number of the element at `index`."""
    flat: Int = 0
    for at, size in zip(index, sizes, strict=True):
        flat = flat * size + (at if size != 1 else 0)
    return flat


@final
class IndexRanges:
    """Simplifies indices inside the loops over `axes`."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.sizes = {axis.symbol: axis.size for axis in axes}
        ranges = {axis.symbol: Range(0, axis.size - 1) for axis in axes if isinstance(axis.size, int) and axis.size}
        symbolic = [axis for axis in axes if isinstance(axis.size, Expr)]
        for axis in symbolic:
            ranges[axis.symbol] = Range(0)
            ranges |= {size: Range(1) for size in counted(axis.size)}
        self._symbolic = bool(symbolic)
        self._bounds = BoundAnalysis(ranges)
        self._done: dict[Int, Int] = {}

    def simplify(self, value: Int) -> Int:
        """`value` without the divisions that the ranges decide."""
        if not isinstance(value, Expr) or isinstance(value, Symbol) or not _divides(value):
            return value
        found = self._done.get(value)
        if found is None:
            found = simplify_in_ranges(value, self._bounds)
            if self._symbolic:
                found = self._below_symbolic_sizes(found)
            self._done[value] = found
        return found

    def always(self, relation: Relation | bool) -> bool:
        """Does it hold at every point of the loops?"""
        if isinstance(relation, bool):
            return relation
        difference = relation.difference
        if relation.kind != "le":
            return False
        largest = self._largest(difference)
        tops = (difference,) if largest is None else (difference, largest)
        return any(self._bounds.is_nonnegative(-top) for top in tops)

    def inside(self, index: Int, size: Int) -> bool:
        """Does 0 <= index < size hold at every point of the loops?"""
        return self.always(rel_le(0, index)) and self.always(rel_lt(index, size))

    def _below_symbolic_sizes(self, value: Int) -> Int:
        """`i // s` is 0 and `i % s` is `i` where the largest `i` is below `s`."""
        if not isinstance(value, Expr):
            return value
        for atom in _atoms(value):
            if not isinstance(atom, Quotient) or not isinstance(atom.divisor, Expr):
                continue
            largest = self._largest(atom.dividend)
            if largest is None or not self._bounds.is_nonnegative(atom.dividend):
                continue
            if self._bounds.is_nonnegative(atom.divisor - 1 - largest):
                simpler: Int = 0
                for monomial, coefficient in value.terms:
                    part: Int = coefficient
                    for factor in monomial:
                        replaced: Int = 0 if isinstance(atom, FloorDiv) else atom.dividend
                        part = part * (replaced if factor is atom else factor)
                    simpler = simpler + part
                return self._below_symbolic_sizes(simpler)
        return value

    def _largest(self, value: Int) -> Int | None:
        """The value with each loop symbol at its last index; None where it falls along one."""
        if not isinstance(value, Expr):
            return value
        for monomial, coefficient in value.terms:
            if coefficient < 0 and any(factor in self.sizes for factor in monomial):
                return None
        if any(not isinstance(atom, Symbol) for atom in _atoms(value)):
            return None
        return value.substitute({loop: size - 1 for loop, size in self.sizes.items()})


def _divides(value: Expr) -> bool:
    return any(not isinstance(atom, Symbol) for atom in _atoms(value))


def _atoms(value: Expr) -> list[Expr]:
    return [atom for monomial, _ in value.terms for atom in monomial]
