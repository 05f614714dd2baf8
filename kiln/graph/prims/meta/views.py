"""Shape rules of views, with the strides and offset of eager's view.

permute(f32[4, 8], dims=(1, 0))                     =  f32[8, 4 | 1, 8]
slice(f32[4, 8], axis=1, start=2, stop=8, step=3)   =  f32[4, 2 | 8, 3 at 2]
view(f32[s0, 8], sizes=(s0*8,))                     =  f32[8*s0]
"""

from __future__ import annotations

import torch

from kiln.graph.prims.errors import ImpossibleView, ShapeMismatch
from kiln.graph.prims.meta.column import META
from kiln.graph.prims.meta.layout import Sizes, alike, equal, is_canonical
from kiln.symbolic import Int, ceil_div, product, rel_eq, rel_le, sym_max, sym_min
from kiln.tensor.spec import SizeOracle, TensorSpec, contiguous_strides


@META("expand")
def expand_meta(oracle: SizeOracle, x: TensorSpec, *, sizes: Sizes) -> TensorSpec:
    missing = len(sizes) - x.rank
    if missing < 0:
        raise ShapeMismatch(op="expand", problem=f"a tensor of rank {x.rank} cannot be expanded to rank {len(sizes)}")
    if not x.rank:
        return x.with_view(sizes, (0,) * missing, x.offset)
    strides: list[Int] = list(x.strides)
    for axis, (own, size) in enumerate(zip(x.sizes, sizes[missing:], strict=True)):
        if own == size or (alike(oracle, own, size) if own == 1 else oracle.expect(rel_eq(own, size))):
            continue  # where data decide: else it is 1, or eager raises an error
        if own != 1 and not equal(oracle, own, 1):
            raise ShapeMismatch(op="expand", problem=f"size {own} cannot be expanded to {size}")
        strides[axis] = 0
    for axis in range(missing - 1, -1, -1):
        step = sizes[axis + 1] * strides[0]
        strides.insert(0, step if sizes[axis] == 1 else 0)
    return x.with_view(sizes, tuple(strides), x.offset)


@META("permute")
def permute_meta(oracle: SizeOracle, x: TensorSpec, *, dims: tuple[int, ...]) -> TensorSpec:
    sizes, strides = x.sizes, x.strides
    return x.with_view(tuple([sizes[dim] for dim in dims]), tuple([strides[dim] for dim in dims]), x.offset)


@META("view")
def view_meta(oracle: SizeOracle, x: TensorSpec, *, sizes: Sizes) -> TensorSpec:
    strides = view_strides(oracle, x, sizes)
    if strides is None:
        raise ImpossibleView(sizes=x.sizes, strides=x.strides, new_sizes=sizes)
    return x.with_view(sizes, strides, x.offset)


def view_strides(oracle: SizeOracle, x: TensorSpec, sizes: Sizes) -> Sizes | None:
    """Strides of `x.view(sizes)` (without -1), or None where it takes a copy."""
    check_numel(oracle, "view", x.numel(), product(sizes))
    if 0 in x.sizes or 0 in sizes:
        return x.strides if sizes == x.sizes else contiguous_strides(sizes)
    if is_canonical(x.sizes, x.strides):
        return contiguous_strides(sizes)
    strides = _chunked_strides(oracle, x, sizes)
    if strides is None and any([alike(oracle, size, 0) for size in x.sizes]):  # any layout of no elements will do
        return contiguous_strides(sizes)
    return strides


def check_numel(oracle: SizeOracle, op: str, left: Int, right: Int) -> None:
    if left != right and not oracle.expect(rel_eq(left, right)):
        raise ShapeMismatch(op=op, problem=f"{left} elements cannot become {right}")


def _chunked_strides(oracle: SizeOracle, x: TensorSpec, sizes: Sizes) -> Sizes | None:
    """Splits each contiguous run of dimensions; a new dimension may not cross runs."""
    result: list[Int] = [1] * len(sizes)
    rest = len(sizes) - 1
    chunk: Int = 1
    base: Int = x.strides[-1] if x.strides else 1
    for axis in range(x.rank - 1, -1, -1):
        chunk = chunk * x.sizes[axis]
        if axis and (x.sizes[axis - 1] == 1 or x.strides[axis - 1] == chunk * base):
            continue
        if (
            axis
            and not _splits(sizes[: rest + 1], chunk)
            and (alike(oracle, x.strides[axis - 1], chunk * base) or alike(oracle, x.sizes[axis - 1], 1))
        ):
            continue
        done: Int = 1
        while rest >= 0 and (
            done * sizes[rest] == chunk  # it ends the run, or is 1: nothing has to be known of its size
            or not oracle.decide_layout(rel_le(chunk, done))
            or alike(oracle, sizes[rest], 1)
        ):
            result[rest] = done * base
            done = done * sizes[rest]
            rest -= 1
        if not alike(oracle, done, chunk):
            return None
        if axis:
            chunk, base = 1, x.strides[axis - 1]
    return tuple(result) if rest < 0 else None


def _splits(sizes: Sizes, chunk: Int) -> bool:
    """Whether the last of these sizes are `chunk` elements: no question which dimensions make one run."""
    done: Int = 1
    for size in reversed(sizes):
        if done == chunk:
            return True
        done = done * size
    return False


@META("unsqueeze")
def unsqueeze_meta(oracle: SizeOracle, x: TensorSpec, *, axis: int) -> TensorSpec:
    step = x.sizes[axis] * x.strides[axis] if axis < x.rank else 1
    sizes = (*x.sizes[:axis], 1, *x.sizes[axis:])
    return x.with_view(sizes, (*x.strides[:axis], step, *x.strides[axis:]), x.offset)


@META("squeeze")
def squeeze_meta(oracle: SizeOracle, x: TensorSpec, *, axes: tuple[int, ...]) -> TensorSpec:
    kept = [axis for axis in range(x.rank) if axis not in axes]
    sizes = tuple([x.sizes[axis] for axis in kept])
    return x.with_view(sizes, tuple([x.strides[axis] for axis in kept]), x.offset)


@META("slice")
def slice_meta(oracle: SizeOracle, x: TensorSpec, *, axis: int, start: Int, stop: Int, step: Int) -> TensorSpec:
    size = stop - start if step == 1 else ceil_div(stop - start, step)
    sizes = (*x.sizes[:axis], size, *x.sizes[axis + 1 :])
    strides = (*x.strides[:axis], x.strides[axis] * step, *x.strides[axis + 1 :])
    return x.with_view(sizes, strides, x.offset + start * x.strides[axis])


@META("select")
def select_meta(oracle: SizeOracle, x: TensorSpec, *, axis: int, index: Int) -> TensorSpec:
    sizes = x.sizes[:axis] + x.sizes[axis + 1 :]
    return x.with_view(sizes, x.strides[:axis] + x.strides[axis + 1 :], x.offset + index * x.strides[axis])


@META("diagonal")
def diagonal_meta(oracle: SizeOracle, x: TensorSpec, *, offset: int, axis1: int, axis2: int) -> TensorSpec:
    rows, columns = x.sizes[axis1], x.sizes[axis2]
    length = sym_min(rows, columns - offset) if offset >= 0 else sym_min(rows + offset, columns)
    length = sym_max(length, 0)
    start = offset * x.strides[axis2] if offset >= 0 else -offset * x.strides[axis1]
    kept = [axis for axis in range(x.rank) if axis not in (axis1, axis2)]
    sizes = (*[x.sizes[axis] for axis in kept], length)
    strides = (*[x.strides[axis] for axis in kept], x.strides[axis1] + x.strides[axis2])
    return x.with_view(sizes, strides, x.offset + start * sym_min(length, 1))


@META("unfold")
def unfold_meta(oracle: SizeOracle, x: TensorSpec, *, axis: int, size: Int, step: Int) -> TensorSpec:
    if not x.rank:
        return x.with_view((size,), (1,), x.offset)
    windows = (x.sizes[axis] - size) // step + 1
    sizes = (*x.sizes[:axis], windows, *x.sizes[axis + 1 :], size)
    stride = x.strides[axis]
    return x.with_view(sizes, (*x.strides[:axis], stride * step, *x.strides[axis + 1 :], stride), x.offset)


@META("as_strided")
def as_strided_meta(oracle: SizeOracle, x: TensorSpec, *, sizes: Sizes, strides: Sizes, offset: Int) -> TensorSpec:
    return x.with_view(sizes, strides, offset)


@META("view_dtype")
def view_dtype_meta(oracle: SizeOracle, x: TensorSpec, *, dtype: torch.dtype) -> TensorSpec:
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return x.with_dtype(dtype)
    if not x.rank or not equal(oracle, x.strides[-1], 1):
        raise ImpossibleView(sizes=x.sizes, strides=x.strides, new_sizes=f"for {dtype}")
    if old > new:
        ratio = old // new
        scaled = [stride * ratio for stride in (*x.strides[:-1], x.offset)]
        sizes = (*x.sizes[:-1], x.sizes[-1] * ratio)
    else:
        ratio = new // old
        for value in (x.sizes[-1], *x.strides[:-1], x.offset):
            if not equal(oracle, value % ratio, 0):
                raise ImpossibleView(sizes=x.sizes, strides=x.strides, new_sizes=f"for {dtype}")
        scaled = [stride // ratio for stride in (*x.strides[:-1], x.offset)]
        sizes = (*x.sizes[:-1], x.sizes[-1] // ratio)
    return TensorSpec(dtype, sizes, (*scaled[:-1], 1), scaled[-1], x.device)
