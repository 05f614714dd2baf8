"""Copies, concatenation, indexing, scatters and padding.

aten.stack([x, y], 0)              =>     cat(unsqueeze(x), unsqueeze(y))
aten.index.Tensor(x, [None, i])    =>     index(x, i, axes=(1,))
aten.slice_backward(g, ...)        =>     pad(g, 0, low=..., high=...)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import DataDependentOp, UnsupportedOp
from kiln.graph.ops.creation import eager_device, iota, packed, relaid, strides_for
from kiln.graph.ops.emit import OVERFLOWING, Emit, check_fits
from kiln.graph.ops.pointwise import copy
from kiln.graph.ops.promotion import result_dtype
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition, decompose, library
from kiln.graph.ops.sizes import FAR, axes_of, axis_of, clamp_slice, filled, is_empty, matching_sizes, wrap_index
from kiln.graph.prims.meta import broadcast, equal, matches, view_strides
from kiln.graph.prims.meta.layout import is_dense
from kiln.runtime.heard_warnings import warn_like
from kiln.symbolic import Int
from kiln.tensor.spec import CPU, TensorSpec

Sizes = Sequence[Int]


# Copies.


@decompose("clone.default")
def clone(e: Emit, x: Node, *, memory_format: torch.memory_format | None = None) -> Node:
    return e.node("clone", x, strides=strides_for(e, x.tensor, memory_format))


@decompose("contiguous.default")
def contiguous(e: Emit, x: Node, *, memory_format: torch.memory_format = torch.contiguous_format) -> Node:
    return clone(e, x, memory_format=memory_format)


@decompose("_unsafe_view.default")
def unsafe_view(e: Emit, x: Node, size: Sizes) -> Node:
    return reshaped(e, x, filled(e, x.tensor, size))


def reshaped(e: Emit, x: Node, sizes: tuple[Int, ...]) -> Node:
    """A view if possible, else a copy."""
    if x.tensor.sizes == sizes:
        return x
    return e.node("reshape" if view_strides(e.oracle, x.tensor, sizes) is None else "view", x, sizes=sizes)


NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Of tensors that stand for Python numbers."""


@decompose("_to_copy.default")
def to_copy(
    e: Emit, x: Node | Number, *, dtype: torch.dtype | None = None, layout: object = None,
    device: torch.device | None = None, pin_memory: bool | None = None, non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Node:  # fmt: skip
    if not isinstance(x, Node):  # a number that a batching rule promotes
        x = e.number(x, dtype or NUMBER_DTYPES[type(x)], CPU)
    spec = x.tensor
    if device is not None and eager_device(device) != spec.device:
        where = eager_device(device)
        kwargs = {"device": where, "dtype": dtype, "non_blocking": non_blocking}
        there = TensorSpec(dtype or spec.dtype, spec.sizes, strides_for(e, spec, memory_format), 0, where)
        return e.library("aten._to_copy.default", (x,), {k: v for k, v in kwargs.items() if v is not None}, there)
    if dtype is not None and spec.dtype.is_complex and not dtype.is_complex and dtype is not torch.bool:
        warn_like(lambda: torch.zeros(1, dtype=torch.complex64, device=CPU).to(torch.float32))
    same = dtype is None or dtype is spec.dtype
    return relaid(e, copy(e, x) if same else e.convert(x, dtype or spec.dtype), strides_for(e, spec, memory_format))


@decompose("copy.default")
def copied(e: Emit, x: Node, source: Node, non_blocking: bool = False) -> Node:
    """The source in dtype, sizes and, if `x` has no gaps, strides of `x`."""
    value, spec = e.convert(source, x.tensor.dtype), x.tensor
    value = value if value.tensor.sizes == spec.sizes else e.node("expand", value, sizes=spec.sizes)
    return relaid(e, value, spec.strides) if is_dense(e.oracle, spec.sizes, spec.strides) else value


# Concatenation and repetition.


@decompose("cat.default")
def cat(e: Emit, tensors: Sequence[Node], dim: int = 0) -> Node:
    """As in eager, tensors of sizes (0,) are ignored."""
    if len({x.tensor.device for x in tensors}) > 1:
        raise RuntimeError("Expected all tensors to be on the same device, in cat")
    rank = max(x.tensor.rank for x in tensors)
    kept = [x for x in tensors if not _is_legacy_empty(e, x, rank)] or list(tensors[:1])
    dtype = result_dtype(list(tensors))
    parts = [e.convert(x, dtype) for x in kept]
    axis = 0 if kept[0] is tensors[0] and parts[0].tensor.sizes == (0,) else axis_of(dim, parts[0].tensor.rank)
    return e.node("cat", *parts, axis=axis)


def _is_legacy_empty(e: Emit, x: Node, rank: int) -> bool:
    return x.tensor.rank == 1 and (x.tensor.sizes == (0,) or (rank > 1 and equal(e.oracle, x.tensor.sizes[0], 0)))


@decompose("stack.default")
def stack(e: Emit, tensors: Sequence[Node], dim: int = 0) -> Node:
    """Concatenated, then split, for eager's memory format."""
    for x in tensors:
        if not matching_sizes(e, x.tensor.sizes, tensors[0].tensor.sizes):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].tensor.sizes)} at entry 0 and "
                f"{list(x.tensor.sizes)}"
            )
    rank = tensors[0].tensor.rank
    axis = axis_of(dim, rank + 1)
    dtype = result_dtype(list(tensors))
    parts = [e.convert(x, dtype) for x in tensors]
    if axis == rank:
        return e.node("cat", *[e.node("unsqueeze", part, axis=axis) for part in parts], axis=axis)
    sizes = tensors[0].tensor.sizes
    joined = e.node("cat", *parts, axis=axis)
    return e.node("view", joined, sizes=(*sizes[:axis], len(parts), *sizes[axis:]))


@decompose("view_copy.default")
def view_copy(e: Emit, x: Node, size: Sizes) -> Node:
    return packed(e, copy(e, reshaped(e, x, filled(e, x.tensor, size))))


@decompose("repeat.default")
def repeat(e: Emit, x: Node, repeats: Sizes) -> Node:
    spec = x.tensor
    missing = len(repeats) - spec.rank
    if missing < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    sizes = (1,) * missing + spec.sizes
    total = tuple([times * size for times, size in zip(repeats, sizes, strict=True)])
    for size in total:
        if isinstance(size, int) and size < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {size}: {list(total)}")
    if any(isinstance(times, int) and times < -FAR for times in repeats):
        raise RuntimeError("repeat: a number of repetitions is less than a symbolic integer can be")
    if is_empty(spec):
        return e.full(0, total, spec.dtype, spec.device)
    spread = x
    for axis in range(missing):
        spread = e.node("unsqueeze", spread, axis=axis)
    pairs: list[Int] = []
    for axis, (times, size) in enumerate(zip(repeats, sizes, strict=True)):
        spread = e.node("unsqueeze", spread, axis=2 * axis)
        pairs += [times, size]
    return e.node("reshape", e.node("expand", spread, sizes=tuple(pairs)), sizes=total)


@decompose("flip.default")
def flip(e: Emit, x: Node, dims: Sequence[int]) -> Node:
    axes = axes_of(tuple(dims), x.tensor.rank)
    return e.node("flip", x, axes=axes) if axes else copy(e, x)


@decompose("roll.default")
def roll(e: Emit, x: Node, shifts: Sizes, dims: Sequence[int] = ()) -> Node:
    if not shifts:
        raise RuntimeError("`shifts` required")
    if len(shifts) != len(dims or (0,)):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    if any(isinstance(shift, int) and abs(shift) > FAR for shift in shifts):
        raise UnsupportedOp(op="aten.roll.default", reason="a shift is beyond what its kernel takes")
    if is_empty(x.tensor):
        return copy(e, x)
    if not dims:
        flat = roll(e, reshaped(e, x, (x.tensor.numel(),)), shifts, (0,))
        return e.node("view", flat, sizes=x.tensor.sizes)
    y = x
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, x.tensor.rank)
        size = x.tensor.sizes[axis]
        if equal(e.oracle, size, 0):
            continue
        start = (size - shift) % size
        back = e.node("slice", y, axis=axis, start=start, stop=size, step=1)
        y = e.node("cat", back, e.node("slice", y, axis=axis, start=0, stop=start, step=1), axis=axis)
    if y is x:
        return copy(e, x)
    # On a GPU a roll is a kernel of its own; on the CPU, two slices are concatenated.
    return y if x.tensor.device.type == "cpu" else packed(e, y)


@decompose("rot90.default")
def rot90(e: Emit, x: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    first, second = (axis_of(dim, x.tensor.rank) for dim in dims)
    if first == second:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {first} and dim1 = {second}")
    turns = k % 4
    order = list(range(x.tensor.rank))
    order[first], order[second] = second, first
    flips = {0: (), 1: (second,), 2: tuple(sorted((first, second))), 3: (first,)}[turns]
    if not flips:
        return packed(e, copy(e, x))
    y = e.node("flip", x, axes=flips)
    if turns % 2 == 0:
        return y
    turned = e.node("permute", y, dims=tuple(order))
    return relaid(e, turned, e.preserved_strides(turned.tensor))


@decompose("diag_embed.default")
def diag_embed(e: Emit, x: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    rank = x.tensor.rank + 1
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    size = x.tensor.sizes[-1] + abs(offset)
    sizes = list(x.tensor.sizes[:-1])
    for axis in sorted((first, second)):
        sizes.insert(axis, size)
    return diagonal_scatter(e, _zeros(e, x, sizes), x, offset, first, second)


@decompose("take.default")
def take(e: Emit, x: Node, index: Node) -> Node:
    require_int64(e, "take", index)
    flat = reshaped(e, x, (x.tensor.numel(),))
    return like_rank(e, e.node("index", flat, with_dims(e, index), axes=(0,)), index.tensor.rank)


def _triangle(comparison: str) -> Decomposition:
    """Keeps elements whose distance to the right of the diagonal compares so with the argument."""

    def rule(e: Emit, x: Node, diagonal: int = 0) -> Node:
        spec = x.tensor
        rows = e.node("unsqueeze", iota(e, spec.sizes[-2], torch.int64, spec.device), axis=1)
        columns = iota(e, spec.sizes[-1], torch.int64, spec.device)
        kept = e.pointwise(comparison, e.pointwise("sub", columns, rows), diagonal)
        return packed(e, e.pointwise("where", kept, x, e.number(0, spec.dtype, spec.device)))

    return rule


DECOMPOSITIONS["tril.default"] = _triangle("le")
DECOMPOSITIONS["triu.default"] = _triangle("ge")


# Padding.


@decompose("constant_pad_nd.default")
def constant_pad(e: Emit, x: Node, pad: Sizes, value: Number = 0) -> Node:
    rank = x.tensor.rank
    if len(pad) % 2:
        raise RuntimeError(f"Length of pad must be even but instead it equals {len(pad)}")
    if len(pad) > 2 * rank:
        raise RuntimeError(f"Length of pad should be no more than twice the number of dimensions of the input: {rank}")
    low: list[Int] = [0] * rank
    high: list[Int] = [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return padded(e, x, tuple(low), tuple(high), value)


def padded(e: Emit, x: Node, low: tuple[Int, ...], high: tuple[Int, ...], value: Number = 0) -> Node:
    return e.node("pad", x, e.element(value, x.tensor.dtype, x.tensor.device), low=low, high=high)


# Gathering.


def with_dims(e: Emit, x: Node) -> Node:
    """`x`, with rank 1 instead of 0, as eager's kernels with a dimension treat it."""
    return x if x.tensor.rank else e.node("unsqueeze", x, axis=0)


def like_rank(e: Emit, x: Node, rank: int) -> Node:
    """`x` of rank 1 without its dimension if `rank` is 0: the inverse of `with_dims`."""
    return x if rank else e.node("squeeze", x, axes=(0,))


def not_negative(e: Emit, index: Node) -> Node:
    """Of an op that does not count from the end: a negative index becomes one outside of every dimension."""
    dtype, device = index.tensor.dtype, index.tensor.device
    return e.pointwise("where", e.pointwise("lt", index, 0), e.number(torch.iinfo(dtype).max, dtype, device), index)


def whole_index(e: Emit, op: str, index: Node) -> Node:
    """The index of gather or scatter."""
    if index.tensor.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"{op}(): Expected dtype int32/int64 for index")
    return not_negative(e, e.convert(index, torch.int64))


def require_int64(e: Emit, op: str, index: Node) -> None:
    if index.tensor.dtype is not torch.int64:
        raise RuntimeError(f"{op}(): Expected a long tensor for index, but got {index.tensor.dtype}")


def index_vector(e: Emit, op: str, index: Node) -> Node:
    """The index of an op that takes a list of numbers, none of which counts from the end."""
    if index.tensor.rank > 1:
        raise IndexError(f"{op}(): Index is supposed to be a vector")
    if index.tensor.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"{op}(): Expected dtype int32/int64 for index")
    return not_negative(e, with_dims(e, index))


@decompose("gather.default")
def gather(e: Emit, x: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    axis = axis_of(dim, x.tensor.rank)
    if 0 in index.tensor.sizes:  # of any rank and dtype
        return e.full(0, index.tensor.sizes, x.tensor.dtype, x.tensor.device)
    source, at = with_dims(e, x), with_dims(e, whole_index(e, "gather", index))
    made = e.node("gather", source, at, axis=axis)
    return like_rank(e, made, index.tensor.rank)


@decompose("index_select.default")
def index_select(e: Emit, x: Node, dim: int, index: Node) -> Node:
    axis, rank = axis_of(dim, x.tensor.rank), x.tensor.rank
    if not rank and not matches(e.oracle, index.tensor.numel(), 1):
        raise IndexError("index_select(): Index to scalar can have only 1 value")
    found = e.node("index", with_dims(e, x), index_vector(e, "index_select", index), axes=(axis,))
    return like_rank(e, packed(e, found), rank)


def indices_at(op: str, indices: Sequence[Node | None]) -> tuple[tuple[int, ...], list[Node]]:
    """The indexed axes, and their indices."""
    axes = tuple([axis for axis, index in enumerate(indices) if index is not None])
    nodes = [index for index in indices if index is not None]
    for index in nodes:
        if index.tensor.dtype in (torch.bool, torch.uint8):
            raise DataDependentOp(op=op)
    return axes, nodes


def of_common_sizes(e: Emit, indices: list[Node]) -> list[Node]:
    """Indices whose sizes are equal by a guard (`s0 - 2` and 2), written alike: later stages do not ask guards."""
    sizes = {index.tensor.sizes for index in indices}
    if len(sizes) < 2 or all(isinstance(size, int) for shape in sizes for size in shape):
        return indices
    common = broadcast(e.oracle, list(sizes), "index")
    return [e.node("expand", index, sizes=aligned(index.tensor.sizes, common)) for index in indices]


def aligned(sizes: tuple[Int, ...], common: tuple[Int, ...]) -> tuple[Int, ...]:
    """`common` without what broadcasting adds to `sizes`."""
    shared = common[len(common) - len(sizes) :]
    return tuple([size if size == 1 else other for size, other in zip(sizes, shared, strict=True)])


def require_few_indices(x: Node, indices: Sequence[Node | None]) -> None:
    """At most as many as there are dimensions, each `None` counted."""
    if len(indices) > x.tensor.rank:
        raise IndexError(f"too many indices for tensor of dimension {x.tensor.rank} (got {len(indices)})")


@decompose("index.Tensor", "_unsafe_index.Tensor")
def index(e: Emit, x: Node, indices: Sequence[Node | None]) -> Node:
    require_few_indices(x, indices)
    axes, nodes = indices_at("aten.index", indices)
    if not axes:
        raise IndexError("at least one index must be provided")
    return e.node("index", x, *of_common_sizes(e, nodes), axes=axes)


@decompose("index_put.default", "_unsafe_index_put.default")
def index_put(
    e: Emit, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False, unsafe: bool = False
) -> Node:
    """A scalar stored under a mask is a `where`, not a scatter."""
    if values.tensor.dtype is not x.tensor.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {x.tensor.dtype} for the destination and"
            f" {values.tensor.dtype} for the source."
        )
    require_few_indices(x, indices)
    value = values
    if all(index is None for index in indices):
        raise RuntimeError("index_put: at least one index must be provided")
    masks = [index for index in indices if index is not None and index.tensor.dtype is torch.bool]
    if len(masks) == 1 and len(indices) == 1 and not value.tensor.rank and not accumulate:
        return masked(e, x, masks[0], value)
    axes, nodes = indices_at("aten.index_put", indices)
    return e.node("index_put", x, *of_common_sizes(e, nodes), value, axes=axes, accumulate=accumulate)


def require_mask(e: Emit, x: TensorSpec, mask: TensorSpec, axis: int = 0) -> None:
    """A mask has the sizes of the dimensions from `axis` that it selects from."""
    if not matching_sizes(e, mask.sizes, x.sizes[axis : axis + mask.rank]):
        raise IndexError(
            f"The shape of the mask {list(mask.sizes)} at index {axis} does not match the shape of the indexed tensor"
            f" {list(x.sizes)}"
        )


def masked(e: Emit, x: Node, mask: Node, value: Node) -> Node:
    """`value` where the mask of the leading dimensions is true."""
    require_mask(e, x.tensor, mask.tensor)
    for _ in range(x.tensor.rank - mask.tensor.rank):
        mask = e.node("unsqueeze", mask, axis=mask.tensor.rank)
    return relaid(e, e.pointwise("where", mask, value, x), e.preserved_strides(x.tensor))


def stored(e: Emit, op: str, value: Number | Node, spec: TensorSpec) -> Node:
    """`value` as an element of a tensor of `spec`. Eager asks for the value, and refuses one that does not fit."""
    if not isinstance(value, Node):
        return e.element(value, spec.dtype, spec.device)
    given, into = value.tensor.dtype, spec.dtype
    if not always_fits(given, into):
        known = into in OVERFLOWING and torch.can_cast(given, into) and not given.is_complex
        if not known or value.tensor.device != CPU:
            raise UnsupportedOp(op=f"aten.{op}", reason=f"a number of {given} may not fit {into}")
        check_fits(e, value, into)
    return e.convert(value, into)


def always_fits(dtype: torch.dtype, into: torch.dtype) -> bool:
    """Whether eager takes any number of a dtype as an element of another."""
    if not torch.can_cast(dtype, into):
        return False
    if torch.bool in (dtype, into):
        return True
    given, taken = limits(dtype), limits(into)
    return taken.min <= given.min and given.max <= taken.max


def limits(dtype: torch.dtype) -> torch.iinfo | torch.finfo:
    return torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)


@decompose("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(e: Emit, x: Node, mask: Node, value: Number | Node) -> Node:
    spec = x.tensor
    if mask.tensor.dtype is not torch.bool:
        raise RuntimeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.tensor.dtype}")
    if isinstance(value, Node) and value.tensor.rank:
        raise RuntimeError("masked_fill_ only supports a 0-dimensional value tensor")
    number = stored(e, "masked_fill", value, spec)
    return packed(e, e.pointwise("where", mask, number, x))


@library("masked_scatter.default")
def masked_scatter(e: Emit, x: Node, mask: Node, source: Node) -> TensorSpec:
    return x.tensor.with_sizes(broadcast(e.oracle, [x.tensor.sizes, mask.tensor.sizes], "masked_scatter"))


# Scattering.


def _scatter(e: Emit, x: Node, dim: int, index: Node, src: Node | Number, reduce: str | None) -> Node:
    axis = axis_of(dim, x.tensor.rank)
    if isinstance(src, Node) and src.tensor.dtype is not x.tensor.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    if 0 in index.tensor.sizes:  # of any rank and dtype
        return e.node("clone", x, strides=None)
    base, at = with_dims(e, x), with_dims(e, whole_index(e, "scatter", index))
    if isinstance(src, Node):
        source = with_dims(e, src)
        if source.tensor.sizes != at.tensor.sizes:
            for other, size in enumerate(at.tensor.sizes):
                source = e.node("slice", source, axis=other, start=0, stop=size, step=1)
    else:
        source = e.full(src, at.tensor.sizes, x.tensor.dtype, x.tensor.device)
    made = e.node("scatter", base, at, source, axis=axis, reduce=reduce)
    return like_rank(e, made, x.tensor.rank)


REDUCE = {"add": "sum", "multiply": "prod", "sum": "sum", "prod": "prod", "amax": "amax", "amin": "amin"}


@decompose("scatter.src", "scatter.value")
def scatter(e: Emit, x: Node, dim: int, index: Node, src: Node | Number) -> Node:
    return _scatter(e, x, dim, index, src, None)


@decompose("scatter.reduce", "scatter.value_reduce")
def scatter_reduce_name(e: Emit, x: Node, dim: int, index: Node, src: Node | Number, *, reduce: str) -> Node:
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    return _scatter(e, x, dim, index, src, REDUCE[reduce])


@decompose("scatter_add.default")
def scatter_add(e: Emit, x: Node, dim: int, index: Node, src: Node) -> Node:
    return _scatter(e, x, dim, index, src, "sum")


@decompose("scatter_reduce.two")
def scatter_reduce(
    e: Emit, x: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Node:
    if reduce == "mean" or not include_self:
        args, kwargs = (x, dim, index, src, reduce), {"include_self": include_self}
        return e.library("aten.scatter_reduce.two", args, kwargs, x.tensor.with_sizes(x.tensor.sizes))
    return _scatter(e, x, dim, index, src, REDUCE[reduce])


def require_parts(e: Emit, op: str, x: Node, dim: int, index: Node, source: Node) -> None:
    """`source` has as many parts along `dim` as there are indices, and its other sizes are those of `x`."""
    mine, theirs = x.tensor, source.tensor
    axis = axis_of(dim, mine.rank)
    count = theirs.sizes[axis] if axis < theirs.rank else 1
    if not matches(e.oracle, index.tensor.numel(), count):
        raise RuntimeError(f"{op}(): Number of indices should be equal to source.size(dim): ({count}), for dim: {dim}")
    others = [(*spec.sizes[:axis], *spec.sizes[axis + 1 :]) for spec in (mine, theirs)]
    if theirs.rank != mine.rank or not matching_sizes(e, *others):
        raise RuntimeError(f"{op}(): the sizes of source must be those of self except at dimension {dim}")


@decompose("index_add.default")
def index_add(e: Emit, x: Node, dim: int, index: Node, source: Node, *, alpha: Number = 1) -> Node:
    if source.tensor.dtype is not x.tensor.dtype:
        raise RuntimeError("index_add_(): self and source must have the same scalar type")
    added = source if alpha == 1 else e.pointwise("mul", source, alpha)
    require_parts(e, "index_add", x, dim, index, source)
    if is_empty(x.tensor):
        raise UnsupportedOp(op="aten.index_add.default", reason="without elements, eager does not read the indices")
    return packed(e, _put_at(e, x, dim, index_vector(e, "index_add", index), added, True))


@decompose("index_copy.default")
def index_copy(e: Emit, x: Node, dim: int, index: Node, source: Node) -> Node:
    require_int64(e, "index_copy_", index)
    rank = x.tensor.rank
    if rank < 2 and source.tensor.rank < 2:
        x, source = with_dims(e, x), with_dims(e, source)
    require_parts(e, "index_copy", x, dim, index, source)
    made = packed(e, _put_at(e, x, dim, index_vector(e, "index_copy", index), source, False))
    return like_rank(e, made, rank)


@decompose("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(e: Emit, x: Node, dim: int, index: Node, value: Number | Node) -> Node:
    spec = x.tensor
    if index.tensor.rank > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    if index.tensor.dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if isinstance(value, Node) and value.tensor.rank:
        raise RuntimeError("index_fill_ only supports a 0-dimensional value tensor")
    number = stored(e, "index_fill", value, spec)
    return relaid(e, _put_at(e, x, dim, index, number, False), e.preserved_strides(spec))


def _put_at(e: Emit, x: Node, dim: int, index: Node, value: Node, accumulate: bool) -> Node:
    """Through `index_put` along the leading dimension, to which `axis` is moved."""
    base = with_dims(e, x)
    rank = base.tensor.rank
    axis = axis_of(dim, rank)
    order = (axis, *[other for other in range(rank) if other != axis])
    front = e.node("permute", base, dims=order) if axis else base
    if value.tensor.rank == rank and axis:
        value = e.node("permute", value, dims=order)
    made = e.node("index_put", front, with_dims(e, index), value, axes=(0,), accumulate=accumulate)
    if axis:
        made = e.node("permute", made, dims=tuple([order.index(axis) for axis in range(rank)]))
    return like_rank(e, made, x.tensor.rank)


# Views as copies, and the gradients of views.


@decompose("select_scatter.default")
def select_scatter(e: Emit, x: Node, src: Node, dim: int, index: Int) -> Node:
    axis, src = axis_of(dim, x.tensor.rank), e.convert(src, x.tensor.dtype)
    return e.node("select_scatter", x, src, axis=axis, index=wrap_index(e, index, x.tensor.sizes[axis]))


@decompose("slice_scatter.default")
def slice_scatter(
    e: Emit, x: Node, src: Node, dim: int = 0, start: Int | None = None, end: Int | None = None, step: int = 1
) -> Node:
    axis, src = axis_of(dim, x.tensor.rank), e.convert(src, x.tensor.dtype)
    low, high = clamp_slice(e, x.tensor.sizes[axis], start, end)
    return e.node("slice_scatter", x, src, axis=axis, start=low, stop=high, step=step)


@decompose("diagonal_scatter.default")
def diagonal_scatter(e: Emit, x: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    rank, src = x.tensor.rank, e.convert(src, x.tensor.dtype)
    return e.node("diagonal_scatter", x, src, offset=offset, axis1=axis_of(dim1, rank), axis2=axis_of(dim2, rank))


@decompose("as_strided_scatter.default")
def as_strided_scatter(
    e: Emit, x: Node, src: Node, size: Sizes, stride: Sizes, storage_offset: Int | None = None
) -> Node:
    offset = x.tensor.offset if storage_offset is None else storage_offset
    src = e.convert(src, x.tensor.dtype)
    return e.node("as_strided_scatter", x, src, sizes=tuple(size), strides=tuple(stride), offset=offset)


def _zeros(e: Emit, grad: Node, sizes: Sizes) -> Node:
    return e.full(0, tuple(sizes), grad.tensor.dtype, grad.tensor.device)


@decompose("select_backward.default")
def select_backward(e: Emit, grad: Node, input_sizes: Sizes, dim: int, index: Int) -> Node:
    axis = axis_of(dim, len(input_sizes))
    at = wrap_index(e, index, input_sizes[axis])
    return _embedded_in_zeros(e, e.node("unsqueeze", grad, axis=axis), input_sizes, axis, at, at + 1)


@decompose("slice_backward.default")
def slice_backward(e: Emit, grad: Node, input_sizes: Sizes, dim: int, start: Int, end: Int, step: int) -> Node:
    axis = axis_of(dim, len(input_sizes))
    low, high = clamp_slice(e, input_sizes[axis], start, end)
    if step != 1:
        zeros = _zeros(e, grad, input_sizes)
        return e.node("slice_scatter", zeros, grad, axis=axis, start=low, stop=high, step=step)
    return _embedded_in_zeros(e, grad, input_sizes, axis, low, high)


def _embedded_in_zeros(e: Emit, part: Node, sizes: Sizes, axis: int, start: Int, stop: Int) -> Node:
    rank = len(sizes)
    low = tuple([start if other == axis else 0 for other in range(rank)])
    high = tuple([sizes[axis] - stop if other == axis else 0 for other in range(rank)])
    return packed(e, padded(e, part, low, high))


@decompose("diagonal_backward.default")
def diagonal_backward(e: Emit, grad: Node, input_sizes: Sizes, offset: int, dim1: int, dim2: int) -> Node:
    return diagonal_scatter(e, _zeros(e, grad, input_sizes), grad, offset, dim1, dim2)


@decompose("value_selecting_reduction_backward.default")
def selecting_backward(e: Emit, grad: Node, dim: int, indices: Node, sizes: Sizes, keepdim: bool) -> Node:
    """The gradient of max, min and median along a dimension goes to the selected element."""
    if not sizes:
        return copy(e, grad)
    axis = axis_of(dim, len(sizes))
    spread, at = grad, indices
    if not keepdim:
        spread, at = e.node("unsqueeze", grad, axis=axis), e.node("unsqueeze", indices, axis=axis)
    return e.node("scatter", _zeros(e, grad, sizes), at, spread, axis=axis, reduce=None)


@decompose("repeat_interleave.self_int")
def repeat_interleave(
    e: Emit, x: Node, repeats: Int, dim: int | None = None, *, output_size: Int | None = None
) -> Node:
    source = reshaped(e, x, (x.tensor.numel(),)) if dim is None else x
    axis = axis_of(dim or 0, source.tensor.rank)
    sizes = source.tensor.sizes
    column = e.node("unsqueeze", source, axis=axis + 1)
    spread = e.node("expand", column, sizes=(*sizes[: axis + 1], repeats, *sizes[axis + 1 :]))
    return e.node("reshape", spread, sizes=(*sizes[:axis], sizes[axis] * repeats, *sizes[axis + 1 :]))
