"""The column `checks`: what the kernel of an op relies on beyond what its shape rule requires.

    CHECKS["gather"](oracle, f32[2, 3], i64[40, 2], axis=1)     raises: index is larger than the input along 0

A check is `check(oracle, *input_specs, **attrs) -> None`, with the arguments of the op's shape rule, and raises where
eager does. It runs before each node is recorded, and in the verifier; a pass that rebuilds nodes runs the shape rule
alone. Ops whose shape rule checks everything have the cell None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from kiln.graph.prims.errors import ShapeMismatch
from kiln.graph.prims.meta.column import META
from kiln.graph.prims.meta.layout import Sizes, at_most, broadcast, equal
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column, Kind
from kiln.symbolic import Int, product, rel_eq, rel_le, sym_min
from kiln.tensor.spec import SizeOracle, TensorSpec

ShapeCheck = Callable[..., None]

CHECKS: Column[ShapeCheck | None] = PRIMS.column(
    "checks",
    required=frozenset(Kind) - {Kind.STRUCTURE, Kind.LIBRARY, Kind.EFFECT, Kind.NESTED},
)

INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


def fail(op: str, problem: str) -> None:
    raise ShapeMismatch(op=op, problem=problem)


def require_axes(op: str, rank: int, axes: Sequence[int]) -> None:
    if len(set(axes)) == len(axes):
        for axis in axes:
            if not 0 <= axis < (rank or 1):
                break
        else:
            return
    fail(op, f"dimensions {tuple(axes)} of a tensor of rank {rank}")


def require_axis(op: str, rank: int, axis: int) -> None:
    if not 0 <= axis < (rank or 1):
        fail(op, f"dimension {axis} of a tensor of rank {rank}")


def require_sizes(oracle: SizeOracle, op: str, have: Sizes, expected: Sizes) -> None:
    if len(have) != len(expected) or not all(equal(oracle, a, b) for a, b in zip(have, expected, strict=True)):
        fail(op, f"sizes {list(have)} where {list(expected)} are needed")


def require_at_most(oracle: SizeOracle, op: str, axis: int, small: TensorSpec, large: TensorSpec, name: str) -> None:
    if not at_most(oracle, small.sizes[axis], large.sizes[axis]):
        sizes = f"{small.sizes[axis]} is larger than {large.sizes[axis]}"
        fail(op, f"the size of the index along dimension {axis}, {sizes}, that of {name}")


def require_not_negative(oracle: SizeOracle, op: str, sizes: Sequence[Int]) -> None:
    if not all(size >= 0 if isinstance(size, int) else oracle.expect(rel_le(0, size)) for size in sizes):
        fail(op, f"negative sizes {list(sizes)}")


def require_inside(oracle: SizeOracle, op: str, index: Int, size: Int) -> None:
    if not at_most(oracle, 0, index) or not at_most(oracle, index + 1, size):
        raise IndexError(f"{op}: index {index} is out of bounds for dimension of size {size}")


def require_index(op: str, index: TensorSpec) -> None:
    if index.dtype not in INDEX_DTYPES:
        raise IndexError(f"{op}: expected an index of integers, but got {index.dtype}")


def require_elements(oracle: SizeOracle, op: str, size: Int, picked: Sequence[Int]) -> None:
    """Indexing an empty dimension is only valid with an empty index."""
    if oracle.is_assumed(rel_eq(size, 0)):
        oracle.expect(rel_le(sym_min(product(picked), 1), size))  # kernels rely on it
        return
    if size != 0 and not equal(oracle, size, 0):
        return
    if not any(equal(oracle, length, 0) for length in picked):
        raise IndexError(f"{op}: index is out of bounds for dimension with size 0")


for _row in PRIMS:
    if _row.kind is Kind.POINTWISE:
        CHECKS[_row.name] = None
for _name in ("expand", "view", "view_dtype", "clone", "reshape", "cat", "constant", "scalar_tensor", "random_seed"):
    CHECKS[_name] = None


# Reductions, scans.


@CHECKS("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")
def check_reduction(oracle: SizeOracle, x: TensorSpec, *, axes: tuple[int, ...]) -> None:
    require_axes("reduction", x.rank, axes)


@CHECKS("cumsum", "cumprod", "cummax", "cummin")
def check_scan(oracle: SizeOracle, x: TensorSpec, *, axis: int) -> None:
    require_axis("scan", x.rank, axis)


# Views.


@lru_cache(maxsize=1024)
def is_permutation(dims: tuple[int, ...], rank: int) -> bool:
    return sorted(dims) == list(range(rank))


@CHECKS("permute")
def check_permute(oracle: SizeOracle, x: TensorSpec, *, dims: tuple[int, ...]) -> None:
    if not is_permutation(dims, x.rank):
        fail("permute", f"dimensions {dims} of a tensor of rank {x.rank}")


@CHECKS("unsqueeze")
def check_unsqueeze(oracle: SizeOracle, x: TensorSpec, *, axis: int) -> None:
    require_axis("unsqueeze", x.rank + 1, axis)


@CHECKS("squeeze")
def check_squeeze(oracle: SizeOracle, x: TensorSpec, *, axes: tuple[int, ...]) -> None:
    require_axes("squeeze", x.rank, axes)
    if not all([x.sizes[axis] == 1 or equal(oracle, x.sizes[axis], 1) for axis in axes]):
        fail("squeeze", f"dimensions {axes} of sizes {list(x.sizes)} are not all of size 1")


@CHECKS("slice")
def check_slice(oracle: SizeOracle, x: TensorSpec, *, axis: int, start: Int, stop: Int, step: Int) -> None:
    require_axis("slice", x.rank, axis)
    size = x.sizes[axis]
    if not at_most(oracle, 1, step):
        fail("slice", f"step {step}")
    if not (at_most(oracle, 0, start) and at_most(oracle, start, stop) and at_most(oracle, stop, size)):
        fail("slice", f"{start}:{stop} of a dimension of size {size}")


@CHECKS("select")
def check_select(oracle: SizeOracle, x: TensorSpec, *, axis: int, index: Int) -> None:
    require_axis("select", x.rank, axis)
    require_inside(oracle, "select", index, x.sizes[axis])


@CHECKS("diagonal")
def check_diagonal(oracle: SizeOracle, x: TensorSpec, *, offset: int, axis1: int, axis2: int) -> None:
    require_axes("diagonal", x.rank, (axis1, axis2))


@CHECKS("unfold")
def check_unfold(oracle: SizeOracle, x: TensorSpec, *, axis: int, size: Int, step: Int) -> None:
    require_axis("unfold", x.rank, axis)
    if not at_most(oracle, 1, step) or not at_most(oracle, 0, size):
        fail("unfold", f"size {size} and step {step}")
    whole = x.sizes[axis] if x.rank else 1
    if not at_most(oracle, size, whole):
        fail("unfold", f"maximum size for a tensor of size {whole} along dimension {axis}, but size is {size}")


@CHECKS("as_strided")
def check_as_strided(oracle: SizeOracle, x: TensorSpec, *, sizes: Sizes, strides: Sizes, offset: Int) -> None:
    if len(sizes) != len(strides):
        fail("as_strided", f"{len(sizes)} sizes and {len(strides)} strides")
    require_not_negative(oracle, "as_strided", (*sizes, *strides, offset))


# Data movement.


@CHECKS("flip")
def check_flip(oracle: SizeOracle, x: TensorSpec, *, axes: tuple[int, ...]) -> None:
    require_axes("flip", x.rank, axes)


@CHECKS("pad")
def check_pad(oracle: SizeOracle, x: TensorSpec, value: TensorSpec, *, low: Sizes, high: Sizes) -> None:
    for size, before, after in zip(x.sizes, low, high, strict=True):
        require_not_negative(oracle, "pad", (size + before + after,))
        for crop in (before, after):
            if not isinstance(crop, int) or crop < 0:
                require_not_negative(oracle, "pad", (size + crop,))


@CHECKS("gather")
def check_gather(oracle: SizeOracle, x: TensorSpec, index: TensorSpec, *, axis: int) -> None:
    require_index("gather", index)
    _check_along(oracle, "gather", x, index, axis)


def _check_along(oracle: SizeOracle, op: str, x: TensorSpec, index: TensorSpec, axis: int) -> None:
    """The index has the rank of `x`, and its sizes, except along `axis`, are at most those of `x`."""
    if x.rank != index.rank:
        fail(op, f"an index of rank {index.rank} for a tensor of rank {x.rank}")
    require_axis(op, x.rank, axis)
    if not x.rank:
        return
    for other in range(x.rank):
        if other != axis:
            require_at_most(oracle, op, other, index, x, "the input")
    require_elements(oracle, op, x.sizes[axis], index.sizes)


@CHECKS("index")
def check_index(oracle: SizeOracle, x: TensorSpec, *indices: TensorSpec, axes: tuple[int, ...]) -> None:
    indexed_sizes(oracle, "index", x, indices, axes)


def indexed_sizes(
    oracle: SizeOracle, op: str, x: TensorSpec, indices: Sequence[TensorSpec], axes: tuple[int, ...]
) -> Sizes:
    """Sizes of `x` indexed at `axes`; raises for invalid indices."""
    if not x.rank or len(indices) != len(axes) or any(not 0 <= axis < x.rank for axis in axes):
        raise IndexError(f"{op}: too many indices for a tensor of dimension {x.rank}")
    for index in indices:
        require_index(op, index)
    picked = broadcast(oracle, [index.sizes for index in indices], op)
    for axis in axes:
        require_elements(oracle, op, x.sizes[axis], picked)
    rest = [axis for axis in range(x.rank) if axis not in axes]
    start = axes[0] if axes == tuple(range(axes[0], axes[-1] + 1)) else 0
    return (*[x.sizes[axis] for axis in rest[:start]], *picked, *[x.sizes[axis] for axis in rest[start:]])


# Writes.


def _check_written_view(view: str) -> ShapeCheck:
    def check(oracle: SizeOracle, x: TensorSpec, y: TensorSpec, **attrs: object) -> None:
        if (check_view := CHECKS[view]) is not None:
            check_view(oracle, x, **attrs)
        part = META[view](oracle, x, **attrs)
        assert isinstance(part, TensorSpec)
        require_sizes(oracle, f"{view}_scatter", y.sizes, part.sizes)

    return check


for _name in ("select", "slice", "diagonal", "as_strided"):
    CHECKS[f"{_name}_scatter"] = _check_written_view(_name)


@CHECKS("scatter")
def check_scatter(
    oracle: SizeOracle, x: TensorSpec, index: TensorSpec, src: TensorSpec, *, axis: int, reduce: str | None
) -> None:
    require_index("scatter", index)
    _check_along(oracle, "scatter", x, index, axis)
    if src.rank != index.rank:
        fail("scatter", f"values of rank {src.rank} for an index of rank {index.rank}")
    for other in range(index.rank):
        require_at_most(oracle, "scatter", other, index, src, "the values")


@CHECKS("index_put")
def check_index_put(
    oracle: SizeOracle, x: TensorSpec, *others: TensorSpec, axes: tuple[int, ...], accumulate: bool
) -> None:
    *indices, values = others
    sizes = indexed_sizes(oracle, "index_put", x, indices, axes)
    require_sizes(oracle, "index_put", broadcast(oracle, [sizes, values.sizes], "index_put"), sizes)


# Creation.


@CHECKS("full", "empty")
def check_sizes(oracle: SizeOracle, *specs: TensorSpec, sizes: Sizes, **attrs: object) -> None:
    require_not_negative(oracle, "full", sizes)


@CHECKS("random")
def check_random(oracle: SizeOracle, *specs: TensorSpec, sizes: Sizes, **attrs: object) -> None:
    require_not_negative(oracle, "random", sizes)


@CHECKS("iota")
def check_iota(oracle: SizeOracle, *, length: Int, **attrs: object) -> None:
    require_not_negative(oracle, "iota", (length,))
