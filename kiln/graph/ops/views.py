"""ATen view ops as steps of primitive views.

    aten.transpose.int(x: f32[2, 3, 4], -1, 0)   =>   permute(dims=(2, 1, 0))
    aten.split.Tensor(x: f32[5], 2)              =>   [slice(0:2)], [slice(2:4)], [slice(4:5)]

A rule returns the steps from the first argument to its view, or a list of such for several results.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import ViewRule, ViewSteps, view
from kiln.graph.ops.sizes import axes_of, axis_of, clamp_slice, filled, wrap_index
from kiln.graph.prims.errors import ImpossibleView
from kiln.graph.prims.meta import alike, equal, less, matches, view_strides
from kiln.symbolic import Int, ceil_div, rel_eq
from kiln.tensor.spec import TensorSpec


def _permute(dims: Sequence[int]) -> ViewSteps:
    return (("permute", {"dims": tuple(dims)}),)


def _slice(axis: int, start: Int, stop: Int, step: int = 1) -> ViewSteps:
    return (("slice", {"axis": axis, "start": start, "stop": stop, "step": step}),)


@view("view.default")
def view_sizes(e: Emit, x: TensorSpec, size: Sequence[Int]) -> ViewSteps:
    sizes = filled(e, x, size)
    if view_strides(e.oracle, x, sizes) is None:
        raise ImpossibleView(sizes=x.sizes, strides=x.strides, new_sizes=sizes)
    return (("view", {"sizes": sizes}),)


@view("permute.default")
def permute(e: Emit, x: TensorSpec, dims: Sequence[int]) -> ViewSteps:
    return _permute([axis_of(dim, x.rank) for dim in dims])


@view("transpose.int")
def transpose(e: Emit, x: TensorSpec, dim0: int, dim1: int) -> ViewSteps:
    first, second = axis_of(dim0, x.rank), axis_of(dim1, x.rank)
    dims = list(range(x.rank))
    if dims:
        dims[first], dims[second] = second, first
    return _permute(dims)


@view("t.default")
def t(e: Emit, x: TensorSpec) -> ViewSteps:
    if x.rank > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.rank}D")
    return _permute((1, 0)) if x.rank == 2 else ()


@view("expand.default")
def expand(e: Emit, x: TensorSpec, size: Sequence[Int], *, implicit: bool = False) -> ViewSteps:
    missing = len(size) - x.rank
    sizes = list(size)
    for axis in range(max(missing, 0), len(size)):
        if isinstance(sizes[axis], int) and sizes[axis] == -1:
            sizes[axis] = x.sizes[axis - missing]
    for axis in range(missing if x.rank else 0):  # a new dimension of 1 has other strides
        sizes[axis] = 1 if alike(e.oracle, sizes[axis], 1) else sizes[axis]
    return (("expand", {"sizes": tuple(sizes)}),)


def _squeezed(e: Emit, x: TensorSpec, axes: Sequence[int]) -> ViewSteps:
    removed = tuple([axis for axis in axes if equal(e.oracle, x.sizes[axis], 1)])
    return (("squeeze", {"axes": removed}),) if removed else ()


@view("slice.Tensor")
def slice_tensor(
    e: Emit, x: TensorSpec, dim: int = 0, start: Int | None = None, end: Int | None = None, step: int = 1
) -> ViewSteps:
    axis = axis_of(dim, x.rank)
    low, high = clamp_slice(e, x.sizes[axis], start, end)
    return _slice(axis, low, high, step)


@view("narrow.default")
def narrow(e: Emit, x: TensorSpec, dim: int, start: Int, length: Int) -> ViewSteps:
    axis = axis_of(dim, x.rank)
    low = wrap_index(e, start, x.sizes[axis])
    return _slice(axis, low, low + length)


@view("select.int")
def select(e: Emit, x: TensorSpec, dim: int, index: Int) -> ViewSteps:
    if not x.rank:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    axis = axis_of(dim, x.rank)
    return (("select", {"axis": axis, "index": wrap_index(e, index, x.sizes[axis], strict=True)}),)


@view("split.Tensor", "unsafe_split.Tensor")
def split(e: Emit, x: TensorSpec, split_size: Int, dim: int = 0) -> list[ViewSteps]:
    axis = axis_of(dim, x.rank)
    size, length = x.sizes[axis], split_size
    if not less(e.oracle, 0, length):
        size, length = e.static(size), e.static(length)
        if length < 0 or size != 0:
            raise RuntimeError(f"split expects split_size be non-negative, but got split_size={length}")
        return [_slice(axis, 0, 0)]
    last = max(e.static(ceil_div(size, length)), 1) - 1
    return [
        *(_slice(axis, number * length, (number + 1) * length) for number in range(last)),
        _slice(axis, last * length, size),
    ]


@view("split_with_sizes.default", "unsafe_split_with_sizes.default")
def split_with_sizes(e: Emit, x: TensorSpec, split_sizes: Sequence[Int], dim: int = 0) -> list[ViewSteps]:
    axis = axis_of(dim, x.rank)
    if not e.oracle.expect(rel_eq(sum(split_sizes), x.sizes[axis])):
        raise RuntimeError(f"split_with_sizes: {list(split_sizes)} do not add up to the size {x.sizes[axis]}")
    start: Int = 0
    parts: list[ViewSteps] = []
    for size in split_sizes:
        parts.append(_slice(axis, start, start + size))
        start = start + size
    return parts


@view("unbind.int")
def unbind(e: Emit, x: TensorSpec, dim: int = 0) -> list[ViewSteps]:
    axis = axis_of(dim, x.rank)
    size = e.static(x.sizes[axis])
    return [(("select", {"axis": axis, "index": index}),) for index in range(size)]


@view("diagonal.default")
def diagonal(e: Emit, x: TensorSpec, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ViewSteps:
    return (("diagonal", {"offset": offset, "axis1": axis_of(dim1, x.rank), "axis2": axis_of(dim2, x.rank)}),)


@view("unfold.default")
def unfold(e: Emit, x: TensorSpec, dimension: int, size: Int, step: Int) -> ViewSteps:
    return (("unfold", {"axis": axis_of(dimension, x.rank), "size": size, "step": step}),)


@view("as_strided.default")
def as_strided(
    e: Emit, x: TensorSpec, size: Sequence[Int], stride: Sequence[Int], storage_offset: Int | None = None
) -> ViewSteps:
    offset = x.offset if storage_offset is None else storage_offset
    return (("as_strided", {"sizes": tuple(size), "strides": tuple(stride), "offset": offset}),)


@view("view_as_real.default")
def view_as_real(e: Emit, x: TensorSpec) -> ViewSteps:
    if not x.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return (("unsqueeze", {"axis": x.rank}), ("view_dtype", {"dtype": x.dtype.to_real()}))


@view("view_as_complex.default")
def view_as_complex(e: Emit, x: TensorSpec) -> ViewSteps:
    if x.dtype not in (torch.float16, torch.float32, torch.float64):
        raise RuntimeError(f"view_as_complex is only supported for half, float and double tensors, not {x.dtype}")
    if not x.rank or not matches(e.oracle, x.sizes[-1], 2):
        raise RuntimeError("Tensor must have a last dimension of size 2")
    return (("view_dtype", {"dtype": x.dtype.to_complex()}), ("squeeze", {"axes": (x.rank - 1,)}))


# fmt: off
STEPS: dict[str, ViewRule] = {
    "_reshape_alias.default": lambda e, x, size, stride: (("view", {"sizes": tuple(size)}),),
    "unsqueeze.default":      lambda e, x, dim: (("unsqueeze", {"axis": axis_of(dim, x.rank + 1)}),),
    "squeeze.default":        lambda e, x: _squeezed(e, x, range(x.rank)),
    "squeeze.dim":            lambda e, x, dim: _squeezed(e, x, axes_of((dim,), x.rank)),
    "squeeze.dims":           lambda e, x, dims: _squeezed(e, x, axes_of(dims, x.rank)),
    "view.dtype":             lambda e, x, dtype: () if x.dtype is dtype else (("view_dtype", {"dtype": dtype}),),
}
# fmt: on
for _name, _steps in STEPS.items():
    view[_name] = _steps
