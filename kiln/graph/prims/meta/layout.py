"""How eager chooses strides: contiguity, memory formats, the dimension order of TensorIterator.

    sizes (4, 5), operands strided (1, 4) and (1, 4)     =>   (1, 4)
    sizes (4, 5), operands strided (5, 1) and (1, 4)     =>   (5, 1)

The rules are those of ATen (`TensorIterator.cpp`, `MemoryFormat.h`, `TensorImpl`), found by experiment and
tested against eager on random layouts. A relation between symbolic sizes goes to the oracle only where
comparing the expressions does not decide it.
Needs: sizes of eager tensors; a symbolic size is assumed to be at least 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from kiln.graph.prims.errors import ShapeMismatch
from kiln.symbolic import Expr, Int, Relation, Symbol, rel_eq, rel_le, rel_lt, substituted
from kiln.tensor.spec import SizeOracle, contiguous_strides

MemoryFormat = Literal["contiguous", "channels_last", "channels_last_3d"]
Sizes = tuple[Int, ...]
Layout = tuple[Sizes, Sizes]
"""Sizes and strides of an operand."""

# fmt: off
FORMAT_ORDERS: dict[str, tuple[int, ...]] = {  # dimensions from the innermost
    "channels_last":    (1, 3, 2, 0),
    "channels_last_3d": (1, 4, 3, 2, 0),
}
# fmt: on


def equal(oracle: SizeOracle, left: Int, right: Int) -> bool:
    """Whether left == right; asks the oracle only where the expressions do not decide it."""
    if left == right:
        return True
    return has_symbols(left, right) and oracle.decide(rel_eq(left, right))


def matches(oracle: SizeOracle, left: Int, right: Int) -> bool:
    """`equal`, where False is an error: where data decide, it is taken to hold, and the compiled code checks it."""
    if left == right:
        return True
    return has_symbols(left, right) and oracle.expect(rel_eq(left, right))


def at_most(oracle: SizeOracle, left: Int, right: Int) -> bool:
    """Whether left <= right, where False is an error or unlikely: where data decide, as in `matches`."""
    if isinstance(left, Expr) or isinstance(right, Expr):
        return left == right or oracle.expect(rel_le(left, right))
    return left <= right


def alike(oracle: SizeOracle, left: Int, right: Int) -> bool:
    """`equal`, where a wrong False costs a copy or gives other strides, and no other values."""
    if left == right:
        return True
    return has_symbols(left, right) and oracle.decide_layout(rel_eq(left, right))


def has_symbols(left: Int, right: Int) -> bool:
    return isinstance(left, Expr) or isinstance(right, Expr)


def less(oracle: SizeOracle, left: Int, right: Int) -> bool:
    """Whether left < right."""
    if isinstance(left, Expr) or isinstance(right, Expr):
        return left != right and oracle.decide(rel_lt(left, right))
    return left < right


# Broadcasting.


def broadcast(oracle: SizeOracle, shapes: Sequence[Sizes], op: str = "broadcast") -> Sizes:
    """The broadcast of `shapes`, as in NumPy."""
    result = shapes[0]
    for shape in shapes[1:]:
        if shape != result:
            result = _broadcast_pair(oracle, result, shape, op)
    return result


def _broadcast_pair(oracle: SizeOracle, left: Sizes, right: Sizes, op: str) -> Sizes:
    if len(left) < len(right):
        left, right = right, left
    missing = len(left) - len(right)
    return left[:missing] + tuple(_broadcast_size(oracle, a, b, op) for a, b in zip(left[missing:], right, strict=True))


def _broadcast_size(oracle: SizeOracle, left: Int, right: Int, op: str) -> Int:
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    if oracle.expect(rel_eq(left, right)):  # where data decide: else it is 1, or raises an error as in eager
        return left if isinstance(left, int) else right
    if equal(oracle, right, 1):
        return left
    if equal(oracle, left, 1):
        return right
    raise ShapeMismatch(op=op, problem=f"sizes {left} and {right} do not broadcast")


# Predicates on layouts.


@lru_cache(maxsize=8192)
def is_canonical(sizes: Sizes, strides: Sizes) -> bool:
    """Exactly the strides of a fresh contiguous tensor, and no size 0."""
    return 0 not in sizes and strides == contiguous_strides(sizes)


def same_strides(left: Sequence[Int], right: Sequence[Int], sizes: Sequence[Int]) -> bool:
    """Equal but for dimensions of size 1."""
    return left == right or all(a == b or size == 1 for a, b, size in zip(left, right, sizes, strict=True))


def is_contiguous(oracle: SizeOracle, sizes: Sizes, strides: Sizes) -> bool:
    """Eager's `is_contiguous()`, which ignores strides of size-1 dimensions."""
    return is_canonical(sizes, strides) or 0 in sizes or _steps_fit(oracle, sizes, strides, range(len(sizes))[::-1])


def is_in_format(oracle: SizeOracle, sizes: Sizes, strides: Sizes, layout: MemoryFormat) -> bool:
    """Eager's `is_contiguous(memory_format=...)`."""
    if layout == "contiguous":
        return is_contiguous(oracle, sizes, strides)
    order = FORMAT_ORDERS[layout]
    return len(order) == len(sizes) and _steps_fit(oracle, sizes, strides, order)


def _steps_fit(oracle: SizeOracle, sizes: Sizes, strides: Sizes, order: Sequence[int]) -> bool:
    """Whether each stride is the product of the sizes before it in `order`."""
    step: Int = 1
    for axis in order:
        size, stride = sizes[axis], strides[axis]
        if stride != step and not alike(oracle, size, 1) and not alike(oracle, stride, step):
            return False
        if size != 1:
            step = step * size
    return True


def is_dense(oracle: SizeOracle, sizes: Sizes, strides: Sizes) -> bool:
    """Eager's `is_non_overlapping_and_dense`: contiguous under some order of dimensions."""
    if is_canonical(sizes, strides) or 0 in sizes:  # eager considers an empty tensor contiguous
        return True
    rest = [axis for axis, size in enumerate(sizes) if size != 1]
    step: Int = 1
    while rest:
        found = next((axis for axis in rest if strides[axis] == step), None)
        if found is None:
            rest = [axis for axis in rest if not alike(oracle, sizes[axis], 1)]
            found = next((axis for axis in rest if alike(oracle, strides[axis], step)), None)
            if found is None:
                return not rest
        rest.remove(found)
        step = step * sizes[found]
    return True


def suggested_format(oracle: SizeOracle, sizes: Sizes, strides: Sizes) -> MemoryFormat:
    """Eager's `suggest_memory_format()`."""
    for layout, order in FORMAT_ORDERS.items():
        if len(order) == len(sizes) and _looks_channels_last(oracle, sizes, strides, order):
            return "channels_last" if layout == "channels_last" else "channels_last_3d"
    return "contiguous"


def _looks_channels_last(oracle: SizeOracle, sizes: Sizes, strides: Sizes, order: tuple[int, ...]) -> bool:
    if is_canonical(sizes, strides) and sizes[1] != 1 and 1 not in sizes[2:]:
        # Row-major strides are ambiguous only with size-1 dimensions.
        return False
    if strides[1] == 0 or 0 in sizes:
        return False
    step: Int = 0
    for axis in order:
        size, stride = sizes[axis], strides[axis]
        if not oracle.decide_layout(rel_le(step, stride)) or (axis == 0 and alike(oracle, step, strides[1])):
            return False
        if axis != 0:
            # The batch comes last and its step is never compared, so its size needs no decision.
            step = stride if alike(oracle, size, 1) else stride * size
    return True


# Strides of results.


def format_strides(sizes: Sizes, layout: MemoryFormat) -> Sizes:
    """Strides of a fresh tensor of this memory format. Beside a size of 0, eager has zeros in channels_last only."""
    return contiguous_strides(sizes) if layout == "contiguous" else _packed(sizes, FORMAT_ORDERS[layout], of_empty=0)


def _packed(sizes: Sizes, order: Sequence[int], of_empty: int = 1) -> Sizes:
    """Strides without gaps, of dimensions in `order` from the innermost. `of_empty`: what a size of 0 counts."""
    strides: list[Int] = [0] * len(sizes)
    step: Int = 1
    for axis in order:
        strides[axis] = step
        step = step * (of_empty if sizes[axis] == 0 else sizes[axis])
    return tuple(strides)


def preserved_strides(oracle: SizeOracle, sizes: Sizes, strides: Sizes) -> Sizes:
    """Strides of a copy that preserves the format: unchanged where dense, else packed in the same order."""
    if is_dense(oracle, sizes, strides):
        return strides
    packed = _packed(sizes, sorted_axes(oracle, sizes, (strides,)))
    if packed == strides or not (empty := empty_sizes(oracle, sizes)):
        return packed
    ones: dict[Symbol, Int] = {size: 1 for size in empty if isinstance(size, Symbol)}
    return tuple([substituted(stride, ones) for stride in strides])  # of no elements, eager takes any to be dense


def empty_sizes(oracle: SizeOracle, sizes: Sizes) -> list[Expr]:
    """The symbolic sizes that are 0. Those that data decide are taken to be positive."""
    zeros = [(size, rel_eq(size, 0)) for size in sizes if isinstance(size, Expr)]
    return [size for size, zero in zeros if not oracle.is_assumed(zero) and oracle.decide_layout(zero)]


def iterator_strides(oracle: SizeOracle, sizes: Sizes, operands: Sequence[Layout]) -> Sizes:
    """Strides of TensorIterator's output of `sizes`, the broadcast of `operands`."""
    if len(sizes) < 2:
        return contiguous_strides(sizes)
    same_sizes = all(shape == sizes for shape, _ in operands)
    if all(is_canonical(*operand) for operand in operands) and (same_sizes or 0 not in sizes):
        return contiguous_strides(sizes)
    if same_sizes or all([_all_equal(oracle, shape, sizes) for shape, _ in operands]):
        fast = _fast_strides(oracle, sizes, [strides for _, strides in operands])
        if fast is not None:
            return fast
    order = sorted_axes(oracle, sizes, [_broadcast_strides(oracle, sizes, *operand) for operand in operands])
    if order == tuple(range(len(sizes)))[::-1]:
        return contiguous_strides(sizes)
    result: list[Int] = [0] * len(sizes)
    step: Int = 1
    for axis in order:
        result[axis] = step
        step = step * sizes[axis]
    return tuple(result)


def _fast_strides(oracle: SizeOracle, sizes: Sizes, strides: Sequence[Sizes]) -> Sizes | None:
    """TensorIterator's fast path, when all operands have equal sizes; None where it does not apply."""
    if all(is_contiguous(oracle, sizes, operand) for operand in strides):
        return contiguous_strides(sizes)
    if len(sizes) == 4 and all(is_in_format(oracle, sizes, operand, "channels_last") for operand in strides):
        return format_strides(sizes, "channels_last")
    first = strides[0]
    same = all(operand == first or _all_equal(oracle, operand, first) for operand in strides)
    if same and is_dense(oracle, sizes, first):
        return first
    return None


def _all_equal(oracle: SizeOracle, left: Sizes, right: Sizes) -> bool:
    return len(left) == len(right) and all([alike(oracle, a, b) for a, b in zip(left, right, strict=True)])


def _broadcast_strides(oracle: SizeOracle, sizes: Sizes, shape: Sizes, strides: Sizes) -> Sizes:
    """Strides of an operand over the broadcast sizes: 0 where it is repeated."""
    missing = len(sizes) - len(shape)
    return (0,) * missing + tuple(
        0 if size != own and alike(oracle, own, 1) and not alike(oracle, size, 1) else stride
        for size, own, stride in zip(sizes[missing:], shape, strides, strict=True)
    )


def sorted_axes(oracle: SizeOracle, sizes: Sizes, operands: Sequence[Sizes]) -> tuple[int, ...]:
    """Axes, innermost first, by TensorIterator's insertion sort, which tolerates ambiguous comparisons."""
    order = list(range(len(sizes)))[::-1]
    for start in range(1, len(order)):
        current = start
        for before in range(start - 1, -1, -1):
            answer = _compare_axes(oracle, sizes, operands, order[before], order[current])
            if answer > 0:
                order[before], order[current] = order[current], order[before]
                current = before
            elif answer < 0:
                break
    return tuple(order)


def _compare_axes(oracle: SizeOracle, sizes: Sizes, operands: Sequence[Sizes], inner: int, outer: int) -> int:
    """1: swap, -1: keep the order, 0: no operand decides."""
    for strides in operands:
        left, right = strides[inner], strides[outer]
        if left == 0 or right == 0:
            continue
        if alike(oracle, left, right):
            if oracle.decide_layout(rel_lt(sizes[outer], sizes[inner])):
                return 1
            continue
        return 1 if oracle.decide_layout(rel_lt(right, left)) else -1
    return 0


def iterator_layout(oracle: SizeOracle, operands: Sequence[Layout]) -> Layout:
    """Broadcast sizes of a pointwise op and the strides of its result."""
    sizes = broadcast(oracle, [shape for shape, _ in operands], "pointwise op")
    return sizes, iterator_strides(oracle, sizes, operands)


class _Undecided(Exception):
    """A relation depends on the values of symbols."""


class _SymbolFreeOracle:
    """Decides nothing about symbols, so that results hold in every environment and may be memoised."""

    def decide(self, relation: Relation | bool) -> bool:
        if isinstance(relation, bool):
            return relation
        raise _Undecided

    expect = decide_layout = decide

    def is_assumed(self, relation: Relation | bool) -> bool:
        return False


@lru_cache(maxsize=8192)
def layout_without_symbols(operands: tuple[Layout, ...]) -> Layout | None:
    """`iterator_layout` where it does not depend on values of symbols, else None."""
    try:
        return iterator_layout(_SymbolFreeOracle(), operands)
    except _Undecided:
        return None
