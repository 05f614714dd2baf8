"""Dimension and size arguments, normalised from eager's many forms.

axis_of(-1, 3)  =  2        axes_of(None, 3)  =  (0, 1, 2)
filled(f32[4, s0], (2, -1))  =  (2, 2*s0)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kiln.graph.ops.emit import Emit
from kiln.graph.prims.meta import at_most, equal, less, matches
from kiln.symbolic import Expr, Int, product, rel_le, rel_lt
from kiln.tensor.spec import TensorSpec

FAR = 2**62
"""Slices that end at or beyond this end at the size."""


def axis_of(dim: int, rank: int) -> int:
    """A dimension as a non-negative axis; rank 0 accepts 0 and -1."""
    limit = rank or 1
    if not -limit <= dim < limit:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got {dim})")
    return dim % limit


def axes_of(dims: Sequence[int] | int | None, rank: int, *, empty_is_all: bool = False) -> tuple[int, ...]:
    """Sorted axes; None means all, as does `()` with `empty_is_all`. Rank 0 has none."""
    if dims is None or (empty_is_all and not isinstance(dims, int) and not len(dims)):
        return tuple(range(rank))
    axes = [axis_of(dim, rank) for dim in ((dims,) if isinstance(dims, int) else dims)]
    if len(set(axes)) != len(axes):
        raise RuntimeError("dim appears multiple times in the list of dims")
    return tuple(sorted(axes)) if rank else ()


def same_sizes(e: Emit, left: Sequence[Int], right: Sequence[Int]) -> bool:
    """Whether sizes are equal."""
    return len(left) == len(right) and all(map(partial(equal, e.oracle), left, right))


def matching_sizes(e: Emit, left: Sequence[Int], right: Sequence[Int]) -> bool:
    """`same_sizes`, where False is an error: see `matches`."""
    return len(left) == len(right) and all(map(partial(matches, e.oracle), left, right))


def is_empty(*specs: TensorSpec) -> bool:
    """Whether a tensor has no elements, whatever its other sizes: eager then leaves out many checks."""
    return any(isinstance(size, int) and size == 0 for spec in specs for size in spec.sizes)


def has_no_elements(e: Emit, *specs: TensorSpec) -> bool:
    """The same of symbolic sizes, with a guard."""
    return any(equal(e.oracle, size, 0) for spec in specs for size in spec.sizes)


def filled(e: Emit, x: TensorSpec, sizes: Sequence[Int]) -> tuple[Int, ...]:
    """`sizes` with a -1 replaced by the size that it stands for."""
    for axis, size in enumerate(sizes):
        if isinstance(size, int) and size == -1:
            rest = product([*sizes[:axis], *sizes[axis + 1 :]])
            if rest == 0 or (isinstance(rest, Expr) and not e.oracle.expect(rel_lt(0, rest))):
                raise RuntimeError(
                    f"cannot reshape tensor of 0 elements into shape {list(sizes)} because the unspecified dimension"
                    " size -1 can be any value and is ambiguous"
                )
            return (*sizes[:axis], x.numel() // rest, *sizes[axis + 1 :])
    return tuple(sizes)


def wrap_index(e: Emit, index: Int, size: Int, *, strict: bool = False) -> Int:
    """A non-negative index; with `strict`, out-of-range indices raise, as in `select`."""
    if isinstance(index, Expr) and size != 0 and e.oracle.is_assumed(rel_lt(index, 0)):
        # Of an export: both signs in one graph.
        e.oracle.expect(rel_le(-size, index))
        e.oracle.expect(rel_lt(index, size))
        return index % size
    inside = index
    if less(e.oracle, index, 0):
        inside = index + size
    if strict and (less(e.oracle, inside, 0) or not e.oracle.expect(rel_lt(inside, size))):
        raise IndexError(f"index {index} is out of bounds for dimension of size {size}")
    return inside


def clamp_slice(e: Emit, size: Int, start: Int | None, stop: Int | None) -> tuple[Int, Int]:
    """Start and stop of a slice with 0 <= start <= stop <= size."""
    low = 0 if start is None else _clamped(e, start, size)
    high = size if stop is None else _clamped(e, stop, size)
    return low, high if at_most(e.oracle, low, high) else low


def _clamped(e: Emit, index: Int, size: Int) -> Int:
    if isinstance(index, int):
        if index == 0:
            return 0
        if index >= FAR:
            return size
        if isinstance(size, int):
            return min(max(index + size if index < 0 else index, 0), size)
    elif index == size:
        return size
    inside = index if at_most(e.oracle, 0, index) else index + size
    if not at_most(e.oracle, 0, inside):
        return 0
    return inside if at_most(e.oracle, inside, size) else size
