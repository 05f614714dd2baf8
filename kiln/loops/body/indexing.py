"""Index expressions: axes, the symbols that they use, strides, bounds.

stride_along(spec, index, i1)        1: neighbours along i1 are neighbours in memory
axis_bounds(axes).of(8*i0 + i1)      the interval of an index expression
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from kiln.loops.body.body import Index
from kiln.support.records import dataclass
from kiln.symbolic import BoundAnalysis, Expr, FloorDiv, Int, Range, Symbol, is_static, product, substituted
from kiln.symbolic.simplify_in_ranges import fold_remainders
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Axis:
    """Loop symbol `symbol` runs from 0 to `size` - 1."""

    symbol: Symbol
    size: Int


def symbols_of(*values: Int) -> frozenset[Symbol]:
    return frozenset().union(*(value.free_symbols() for value in values if isinstance(value, Expr)))


def counted(count: Int) -> Iterator[Symbol]:
    """The symbols not negative because `count` is not: of `s0*s1` and `s0 - 1`, not of `u0 + 8` or `s0 + u0`."""
    terms = count.terms if isinstance(count, Expr) else ()
    symbolic = [(monomial, coefficient) for monomial, coefficient in terms if monomial]
    added = sum([coefficient for monomial, coefficient in terms if not monomial])
    if len(symbolic) != 1 or symbolic[0][1] < 0 or added > 0:
        return
    for factor in symbolic[0][0]:
        if isinstance(factor, Symbol):
            yield factor
        elif isinstance(factor, FloorDiv):
            yield from counted(factor.dividend)


def points(axes: Sequence[Axis]) -> Int:
    return product(axis.size for axis in axes)


def linear_index(spec: TensorSpec, index: Index) -> Int:
    """Elements from the start of the tensor, its offset not counted.

    An axis that is taken apart and put together again is itself, before it is written as the sum of its parts.
    """
    total: Int = 0
    for at, stride in zip(index, spec.strides, strict=True):
        total = total + at * stride
    return fold_remainders(total)


def stride_of(value: Int, symbol: Symbol) -> Int | None:
    """By how much `value` grows with `symbol`; None if that is not constant."""
    if not isinstance(value, Expr) or symbol not in value.free_symbols():
        return 0
    step = substituted(value, {symbol: symbol + 1}) - value
    return None if symbol in symbols_of(step) else step


def stride_along(spec: TensorSpec, index: Index, symbol: Symbol) -> Int | None:
    """Elements between neighbours along `symbol`; None if that is not constant."""
    return stride_of(linear_index(spec, index), symbol)


def axis_range(size: Int, bounds: BoundAnalysis) -> Range:
    """That of a symbol that runs from 0 to `size` - 1."""
    top = bounds.of(size).hi
    return Range(0, None if top is None else max(top - 1, 0))


def add_ranges(ranges: dict[Symbol, Range], axes: Iterable[Axis]) -> None:
    """Those of `axes`, where `ranges` has none yet."""
    for axis in axes:
        ranges.setdefault(axis.symbol, axis_range(axis.size, BoundAnalysis(ranges)))


def axis_bounds(axes: Sequence[Axis]) -> BoundAnalysis:
    """Bounds of index expressions: an axis runs below its size, sizes are not negative."""
    ranges = {symbol: Range(0) for axis in axes for symbol in counted(axis.size)}
    of_sizes = BoundAnalysis(ranges)
    for axis in axes:
        ranges[axis.symbol] = axis_range(axis.size, of_sizes)
    return BoundAnalysis(ranges, {axis.symbol: axis.size - 1 for axis in axes if not is_static(axis.size)})
