"""Shape rules of data movement: copies, concatenation, indexing, scatters.

cat(f32[4, 8], f32[2, 8], axis=0)                   =  f32[6, 8]
index(f32[4, 8], i64[3], i64[2, 1], axes=(0, 1))    =  f32[2, 3]
slice_scatter(x, y, ...)                            =  the spec of x
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.graph.prims.errors import ShapeMismatch
from kiln.graph.prims.meta.column import META
from kiln.graph.prims.meta.layout import (
    Layout,
    Sizes,
    broadcast,
    format_strides,
    iterator_strides,
    matches,
    preserved_strides,
    suggested_format,
)
from kiln.graph.prims.meta.views import check_numel, expand_meta, view_strides
from kiln.symbolic import Int, product
from kiln.tensor.spec import SizeOracle, TensorSpec, contiguous_strides


@META("clone")
def clone_meta(oracle: SizeOracle, x: TensorSpec, *, strides: Sizes | None) -> TensorSpec:
    return TensorSpec(x.dtype, x.sizes, contiguous_strides(x.sizes) if strides is None else strides, 0, x.device)


@META("reshape")
def reshape_meta(oracle: SizeOracle, x: TensorSpec, *, sizes: Sizes) -> TensorSpec:
    check_numel(oracle, "reshape", x.numel(), product(sizes))
    return x.with_sizes(sizes)


@META("cat")
def cat_meta(oracle: SizeOracle, *specs: TensorSpec, axis: int) -> TensorSpec:
    first = specs[0]
    total: Int = 0
    for spec in specs:
        if spec.rank != first.rank:
            raise ShapeMismatch(op="cat", problem=f"ranks {first.rank} and {spec.rank}")
        total = total + spec.sizes[axis]
        for other in range(first.rank):
            if other != axis and not matches(oracle, spec.sizes[other], first.sizes[other]):
                raise ShapeMismatch(op="cat", problem=f"sizes {first.sizes[other]} and {spec.sizes[other]}")
    sizes = (*first.sizes[:axis], total, *first.sizes[axis + 1 :])
    layout = suggested_format(oracle, first.sizes, first.strides)
    for spec in specs[1:]:
        if layout == "contiguous":
            break
        if suggested_format(oracle, spec.sizes, spec.strides) != layout:
            layout = "contiguous"
    return TensorSpec(first.dtype, sizes, format_strides(sizes, layout), 0, first.device)


@META("flip", "index_put")
def preserved_meta(oracle: SizeOracle, x: TensorSpec, *others: TensorSpec, **attrs: object) -> TensorSpec:
    return preserved(oracle, x)


def preserved(oracle: SizeOracle, x: TensorSpec) -> TensorSpec:
    """A fresh tensor like `x`, as from `torch.empty_like`."""
    return TensorSpec(x.dtype, x.sizes, preserved_strides(oracle, x.sizes, x.strides), 0, x.device)


@META("pad")
def pad_meta(oracle: SizeOracle, x: TensorSpec, value: TensorSpec, *, low: Sizes, high: Sizes) -> TensorSpec:
    if value.rank:
        raise ValueError("the padding value is a tensor of rank 0")
    sizes = tuple([size + a + b for size, a, b in zip(x.sizes, low, high, strict=True)])
    if all(isinstance(amount, int) and amount <= 0 for amount in (*low, *high)):
        # Eager crops by views, then clones.
        return TensorSpec(x.dtype, sizes, preserved_strides(oracle, sizes, x.strides), 0, x.device)
    layout = suggested_format(oracle, x.sizes, x.strides)
    return TensorSpec(x.dtype, sizes, format_strides(sizes, layout), 0, x.device)


@META("gather")
def gather_meta(oracle: SizeOracle, x: TensorSpec, index: TensorSpec, *, axis: int) -> TensorSpec:
    return x.with_sizes(index.sizes)


@META("index")
def index_meta(oracle: SizeOracle, x: TensorSpec, *indices: TensorSpec, axes: tuple[int, ...]) -> TensorSpec:
    picked = broadcast(oracle, [index.sizes for index in indices], "index")
    rest = [axis for axis in range(x.rank) if axis not in axes]
    start = axes[0] if axes == tuple(range(axes[0], axes[-1] + 1)) else 0
    before, after = rest[:start], rest[start:]
    sizes = (*[x.sizes[axis] for axis in before], *picked, *[x.sizes[axis] for axis in after])
    strides = (*[x.strides[axis] for axis in before], *(0,) * len(picked), *[x.strides[axis] for axis in after])
    operands: list[Layout] = [(sizes, strides)]
    operands += _index_layouts(oracle, indices, picked, len(before), len(after), x.device.type == "cuda")
    return TensorSpec(x.dtype, sizes, iterator_strides(oracle, sizes, operands), 0, x.device)


def _index_layouts(
    oracle: SizeOracle, indices: Sequence[TensorSpec], picked: Sizes, before: int, after: int, cuda: bool
) -> list[Layout]:
    """The indices as TensorIterator operands: broadcast, with size-1 dimensions for the others."""
    shape = (1,) * before + picked + (1,) * after
    layouts: list[Layout] = []
    for index in indices:
        expanded = expand_meta(oracle, index, sizes=picked)
        strides = view_strides(oracle, expanded, shape)
        layouts.append((shape, strides if strides is not None else contiguous_strides(shape)))
    if cuda and any(layout != layouts[0] for layout in layouts):
        return [(shape, contiguous_strides(shape))] * len(layouts)
    return layouts


@META("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter")
def view_scatter_meta(oracle: SizeOracle, x: TensorSpec, y: TensorSpec, **attrs: object) -> TensorSpec:
    """`x` after a write to a view of it, in the layout of `x`; eager makes a tensor with overlap contiguous."""
    return x.with_sizes(x.sizes) if has_repeated_elements(x) else x


def has_repeated_elements(x: TensorSpec) -> bool:
    """Whether a dimension with more than one element has stride 0."""
    return any(stride == 0 and size != 1 for size, stride in zip(x.sizes, x.strides, strict=True))


@META("scatter")
def scatter_meta(oracle: SizeOracle, x: TensorSpec, *others: TensorSpec, **attrs: object) -> TensorSpec:
    return x.with_sizes(x.sizes)
