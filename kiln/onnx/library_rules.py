"""ATen calls that Kiln leaves to a library, as ONNX's operators (opset 18).

    addmm(b, x, w)           Gemm(x, w, b)
    convolution(x, w, b, ..) Conv(x, w, b; strides=.., pads=..)

A call of another form of the same operator (`divisor_override`, attention with dropout) is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kiln.graph.prims.table import Cells
from kiln.onnx.call import OnnxCaller, OnnxRule
from kiln.onnx.model import Attribute
from kiln.onnx.rules import places, windows
from kiln.symbolic import Expr, Int, product
from kiln.tensor.spec import TensorSpec

rule = LIBRARY_RULES = Cells[OnnxRule]("library rules")
"""By the name of the overload, without `aten.`."""
Sizes = Sequence[Int]


def static(o: OnnxCaller, sizes: Sizes, count: int) -> tuple[int, ...]:
    """A number per dimension; attributes are numbers."""
    if any([isinstance(size, Expr) for size in sizes]):
        raise o.refused("a window of unknown size")
    whole = [size for size in sizes if isinstance(size, int)]
    return tuple(whole) * count if len(whole) == 1 else tuple(whole)


# Products.


@rule("mm.default", "bmm.default", "mv.default", "dot.default", "vdot.default")
def matrix_product(o: OnnxCaller, x: str, y: str) -> str:
    return o("MatMul", x, y)


@rule("addmm.default")
def addmm(o: OnnxCaller, bias: str, x: str, y: str, *, beta: float = 1, alpha: float = 1) -> str:
    if not o.spec.dtype.is_floating_point:
        return added(o, bias, x, y, beta=beta, alpha=alpha)
    return o("Gemm", x, y, bias, alpha=float(alpha), beta=float(beta))


@rule("baddbmm.default", "addmv.default")
def added(o: OnnxCaller, bias: str, x: str, y: str, *, beta: float = 1, alpha: float = 1) -> str:
    made = o("MatMul", x, y)
    made = made if alpha == 1 else o("Mul", made, o.number(alpha))
    if beta == 0:
        return o("Expand", made, o.ints(o.spec.sizes))
    return o("Add", made, bias if beta == 1 else o("Mul", bias, o.number(beta)))


@rule("convolution.default")
def convolution(
    o: OnnxCaller, x: str, weight: str, bias: str | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int,
) -> str:  # fmt: skip
    count = o.spec.rank - 2
    borders = static(o, padding, count)
    given = (x, weight) if bias is None else (x, weight, bias)
    attrs: dict[str, Attribute] = {
        "strides": static(o, stride, count), "pads": (*borders, *borders), "dilations": static(o, dilation, count),
        "group": groups,
    }  # fmt: skip
    if transposed:
        attrs["output_padding"] = static(o, output_padding, count)
    return o("ConvTranspose" if transposed else "Conv", *given, attrs=attrs)


# Windows.


def pads_of(o: OnnxCaller, x: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
            dilation: Sequence[int]) -> tuple[int, ...]:  # fmt: skip
    """Padding in front and behind, with which windows end as in eager where the last is cut off (`ceil_mode`)."""
    spec, count = o.input(x), len(kernel)
    behind = []
    for place in range(count):
        size, wanted = spec.sizes[spec.rank - count + place], o.spec.sizes[o.spec.rank - count + place]
        if isinstance(size, Expr) or isinstance(wanted, Expr):
            raise o.refused("windows that are cut off, of an image of unknown size")
        reach = (wanted - 1) * stride[place] + dilation[place] * (kernel[place] - 1) + 1
        behind.append(reach - size - padding[place])
    return (*padding, *behind)


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(
    o: OnnxCaller, x: str, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,),
    ceil_mode: bool = False,
) -> tuple[str, str]:  # fmt: skip
    count = 2 if "2d" in o.node.attrs["target"] else 3
    spec, is_alone = o.input(), o.spec.rank == count + 1
    kernel = static(o, kernel_size, count)
    step, borders, spacing = static(o, stride or kernel, count), static(o, padding, count), static(o, dilation, count)
    pads = pads_of(o, 0, kernel, step, borders, spacing) if ceil_mode else (*borders, *borders)
    if min(pads) < 0:
        raise o.refused("windows that leave out the end")
    attrs: dict[str, Attribute] = {"kernel_shape": kernel, "strides": step, "pads": pads, "dilations": spacing}
    image = o("Unsqueeze", x, o.ints((0,))) if is_alone else x
    found = o.many("MaxPool", image, count=2, attrs=attrs)
    values, indices = [o("Squeeze", part, o.ints((0,))) if is_alone else part for part in found]
    # ONNX counts the elements of all images together, ATen those of one channel.
    plane = product(spec.sizes[spec.rank - count :])
    return values, o("Mod", o("Cast", indices, dtype=torch.int64, to=7), o.scalar(plane))


@rule("avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    o: OnnxCaller, x: str, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> str:  # fmt: skip
    count = 2 if "2d" in o.node.attrs["target"] else 3
    kernel = static(o, kernel_size, count)
    step, borders = static(o, stride or kernel, count), static(o, padding, count)
    pads = pads_of(o, 0, kernel, step, borders, (1,) * count) if ceil_mode else (*borders, *borders)
    attrs: dict[str, Attribute] = {"kernel_shape": kernel, "strides": step, "count_include_pad": 1}

    def pooled(image: str, pads: tuple[int, ...]) -> str:
        """Sums of windows, divided by the size of a window."""
        spread = [*[0] * (o.spec.rank - count), *pads[:count], *[0] * (o.spec.rank - count), *pads[count:]]
        image = o("Pad", image, o.ints(spread)) if any(pads) else image
        image = o("Unsqueeze", image, o.ints((0,))) if is_alone else image
        made = o("AveragePool", image, attrs=attrs)
        return o("Squeeze", made, o.ints((0,))) if is_alone else made

    is_alone = o.spec.rank == count + 1
    if divisor_override is not None:
        return o("Mul", pooled(x, pads), o.number(math.prod(kernel) / divisor_override))
    if count_include_pad and not ceil_mode:
        return pooled(x, pads)
    # What is counted: elements of the image, and of its borders if those count, but nothing behind them.
    sizes: Sizes = o.input().sizes[o.spec.rank - count :]
    counted = (0,) * (2 * count)
    if count_include_pad:
        sizes, counted = [size + 2 * border for size, border in zip(sizes, borders, strict=True)], (*borders, *borders)
    ones = o("Expand", o.number(1), o.ints([*[1] * (o.spec.rank - count), *sizes]))
    behind = tuple([pad - part for pad, part in zip(pads, counted, strict=True)])
    return o("Div", pooled(x, pads), pooled(ones, behind))


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(o: OnnxCaller, x: str, output_size: Sizes) -> str:
    return str(adapted(o, x, output_size, "ReduceMean"))


@rule("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(o: OnnxCaller, x: str, output_size: Sizes) -> tuple[str, str]:
    return str(adapted(o, x, output_size, "ReduceMax")), ""


def adapted(o: OnnxCaller, x: str, output_size: Sizes, op: str) -> str:
    """Axis by axis: windows begin at i*size // count, and end at the ceiling of (i+1)*size / count."""
    rank = o.input().rank
    for axis, count in enumerate(static(o, output_size, len(output_size)), rank - len(output_size)):
        size, parts = o.input().sizes[axis], []
        for place in range(count):
            ends = place * size // count, -(-(place + 1) * size // count)
            window = o("Slice", x, *[o.ints((value,)) for value in (*ends, axis)]) if count > 1 else x
            parts.append(o(op, window, o.ints((axis,)), keepdims=1))
        x = o("Concat", *parts, axis=axis) if count > 1 else parts[0]
    return x


def padded(mode: str) -> OnnxRule:
    def run(o: OnnxCaller, x: str, padding: Sizes) -> str:
        missing: list[Int] = [0] * (o.spec.rank - len(padding) // 2)
        low, high = [*missing, *padding[-2::-2]], [*missing, *padding[-1::-2]]
        return o("Pad", x, o.ints([*low, *high]), mode=mode)

    return run


for _dims in (1, 2, 3):
    rule(f"reflection_pad{_dims}d.default")(padded("reflect"))
    rule(f"replication_pad{_dims}d.default")(padded("edge"))


def resized(o: OnnxCaller, x: str, scales: Sequence[float | None], attrs: dict[str, Attribute]) -> str:
    """Where scales are given, they decide which pixels are read."""
    given = [scale for scale in scales if scale is not None]
    if not given or attrs["coordinate_transformation_mode"] == "align_corners":
        return o("Resize", x, "", "", o.ints(o.spec.sizes), attrs=attrs)
    if len(given) < o.spec.rank - 2:
        raise o.refused("a scale for some of the sizes")
    return o("Resize", x, "", o.number([1.0, 1.0, *given], torch.float32), attrs=attrs)


@rule("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest(o: OnnxCaller, x: str, output_size: Sizes, *scales: float | None) -> str:
    attrs: dict[str, Attribute] = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return resized(o, x, scales, {**attrs, "mode": "nearest"})


@rule("_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default")
def upsample_nearest_exact(o: OnnxCaller, x: str, output_size: Sizes, *scales: float | None) -> str:
    """The nearest middle; of two, the later."""
    attrs: dict[str, Attribute] = {"nearest_mode": "round_prefer_ceil", "mode": "nearest"}
    return resized(o, x, scales, {**attrs, "coordinate_transformation_mode": "half_pixel"})


@rule("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default",
      "upsample_bicubic2d.default", "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")  # fmt: skip
def upsample(o: OnnxCaller, x: str, output_size: Sizes, align_corners: bool, *scales: float | None) -> str:
    target = o.node.attrs["target"]
    attrs: dict[str, Attribute] = {"mode": "cubic" if "bicubic" in target else "linear"}
    attrs |= {"cubic_coeff_a": -0.5 if "_aa" in target else -0.75} if "bicubic" in target else {}
    attrs |= {"antialias": 1, "exclude_outside": 1} if "_aa" in target else {}
    kind = "align_corners" if align_corners else "half_pixel"
    return resized(o, x, scales, {**attrs, "coordinate_transformation_mode": kind})


@rule("grid_sampler_2d.default")
def grid_sampler(o: OnnxCaller, x: str, grid: str, mode: int, padding: int, align_corners: bool) -> str:
    attrs: dict[str, Attribute] = {
        "mode": ("bilinear", "nearest", "bicubic")[mode], "padding_mode": ("zeros", "border", "reflection")[padding],
    }  # fmt: skip
    return o("GridSample", x, grid, attrs={**attrs, "align_corners": int(align_corners)})


@rule("im2col.default")
def im2col(o: OnnxCaller, x: str, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> str:
    sides, gaps, border, steps = [static(o, part, 2) for part in (kernel, dilation, padding, stride)]
    rank = o.input().rank
    pads = [*[0] * (rank - 2), *border]
    x = o("Pad", x, o.ints([*pads, *pads]))
    for axis in (rank - 1, rank - 2):
        place = axis - rank + 2
        size = o.input().sizes[axis] + 2 * border[place]
        count = (size - gaps[place] * (sides[place] - 1) - 1) // steps[place] + 1
        x = windows(o, x, axis, count, steps[place], sides[place], gaps[place])
    order = (*range(rank - 2), rank - 1, rank + 1, rank - 2, rank)
    return o("Reshape", o("Transpose", x, perm=order), o.ints(o.spec.sizes), allowzero=1)


# Attention, order.


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def attention(
    o: OnnxCaller, query: str, key: str, value: str, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: str | None = None, scale: float | None = None,
) -> tuple[str, str]:  # fmt: skip
    left, right = o.input().sizes, o.input(1).sizes
    if dropout_p or left[1] != right[1] or isinstance(left[3], Expr):
        raise o.refused("attention with dropout, or with other heads for the keys")
    factor = left[3] ** -0.5 if scale is None else scale
    scores = o("MatMul", o("Mul", query, o.number(factor)), o("Transpose", key, perm=(0, 1, 3, 2)))
    if attn_mask is not None:
        scores = o("Add", scores, attn_mask)
    if is_causal:
        rows, columns = [o("Range", o.scalar(0), o.scalar(sizes[2]), o.scalar(1)) for sizes in (left, right)]
        seen = o("GreaterOrEqual", o("Unsqueeze", rows, o.ints((1,))), columns)
        scores = o("Where", seen, scores, o.number(float("-inf")))
    sums = o("ReduceLogSumExp", scores, o.ints((3,)), keepdims=0)
    result = o("MatMul", o("Softmax", scores, axis=-1), value)
    wide = o.node.spec[1] if isinstance(o.node.spec, tuple) else None
    return result, o.cast(sums, wide.dtype if isinstance(wide, TensorSpec) else o.spec.dtype)


@rule("topk.default")
def topk(o: OnnxCaller, x: str, k: Int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[str, ...]:
    if o.input().rank == 0:
        raise o.refused("a tensor of rank 0")
    values = o.many("TopK", x, o.ints((k,)), count=2, axis=dim, largest=int(largest), sorted=int(sorted))
    return values[0], o("Cast", values[1], dtype=torch.int64, to=7)


@rule("sort.default", "sort.stable")
def sort(
    o: OnnxCaller, x: str, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[str, ...]:
    if o.input().rank == 0:
        raise o.refused("a tensor of rank 0")
    return topk(o, x, o.input().sizes[dim], dim, descending)


@rule("median.default", "nanmedian.default")
def median(o: OnnxCaller, x: str) -> str:
    flat, front = o("Reshape", x, o.ints((-1,))), o.ints((0,))
    size, nothing = o.scalar(product(o.input().sizes)), o.scalar(0)

    def ranked(values: str) -> str:
        return o.many("TopK", values, o("Unsqueeze", size, front), count=2, axis=0, largest=0, sorted=1)[0]

    if not o.input().dtype.is_floating_point:
        return o("Gather", ranked(flat), middle(o, size))
    is_nan = o("IsNaN", flat)
    unknown = o("ReduceSum", o.cast(is_nan, torch.int64), front, keepdims=0)
    numbers = ranked(o("Where", is_nan, o.number(float("inf")), flat))
    known = o("Sub", size, unknown)
    found = o("Gather", numbers, o("Max", middle(o, known), nothing))
    is_all = "nanmedian" in o.node.attrs["target"]
    is_lost = o("Equal", known, nothing) if is_all else o("Greater", unknown, nothing)
    return o("Where", is_lost, o.number(float("nan")), found)


def middle(o: OnnxCaller, count: str) -> str:
    return o("Div", o("Sub", count, o.scalar(1)), o.scalar(2))


@rule("median.dim", "kthvalue.default")
def nth(o: OnnxCaller, x: str, *args: int, keepdim: bool = False) -> tuple[str, ...]:
    is_median, rank = "median" in o.node.attrs["target"], o.input().rank
    dim, *keep = (args if is_median else args[1:]) or (-1,)
    place = (o.input().sizes[dim] - 1) // 2 if is_median else args[0] - 1
    index = o.scalar(place) if not ((keep and keep[0]) or keepdim) else o.ints((place,))
    if rank == 0:
        raise o.refused("a tensor of rank 0")
    return tuple([o("Gather", part, index, axis=dim) for part in topk(o, x, o.input().sizes[dim], dim, False)])


@rule("bincount.default")
def bincount(o: OnnxCaller, x: str, weights: str | None = None, minlength: int = 0) -> str:
    wide, front = o.cast(x, torch.int64), o.ints((0,))
    # With -1 in front there is a largest one, and no tensor is empty.
    largest = o("ReduceMax", o("Concat", o.ints((-1,)), wide, axis=0), front, keepdims=1)
    length = o("Max", o("Add", largest, o.ints((1,))), o.ints((minlength,)))
    if weights is not None and not o.input(1).dtype.is_floating_point:
        weights = o.cast(weights, torch.float64)
    ones = weights if weights is not None else o("Expand", o.number(1, torch.int64), o.ints(o.input().sizes))
    zeros = o("Expand", o.number(0, o.spec.dtype), length)
    return o("ScatterElements", zeros, wide, ones, axis=0, reduction="add")


@rule("scatter_reduce.two")
def scatter_reduce(
    o: OnnxCaller, x: str, dim: int, index: str, src: str, reduce: str, *, include_self: bool = True
) -> str:
    """Means, and values that begin without the element that is there."""
    dtype, sizes = o.spec.dtype, o.input(1).sizes
    if sizes != o.input(2).sizes:
        src = o("Slice", src, o.ints([0] * len(sizes)), o.ints(sizes))
    if not dtype.is_floating_point:
        raise o.refused("whole numbers")
    first = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": float("-inf"), "amin": float("inf")}[reduce]
    hits = o("ScatterElements", o("Mul", x, o.number(0)), index, o("Expand", o.number(1), o.ints(sizes)), axis=dim,
             reduction="add")  # fmt: skip
    is_hit = o("Greater", hits, o.number(0))
    begin = x if include_self else o("Where", is_hit, o.number(first), x)
    kind = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce]
    made = o("ScatterElements", begin, index, src, axis=dim, reduction=kind)
    if reduce != "mean":
        return made
    count = o("Add", hits, o.number(1)) if include_self else o("Max", hits, o.number(1))
    return o("Div", made, count)


@rule("searchsorted.Tensor", "bucketize.Tensor")
def searchsorted(o: OnnxCaller, x: str, y: str, *, out_int32: bool = False, right: bool = False, **more: object) -> str:
    """How many boundaries lie in front of each value."""
    values, bounds, place = (x, y, 1) if "bucketize" in o.node.attrs["target"] else (y, x, 0)
    if o.input(place).rank != 1 or any(more.values()):
        raise o.refused("several rows of boundaries, or another side or order")
    values = o("Unsqueeze", values, o.ints((-1,)))
    behind = o("Not", o("Greater" if right else "GreaterOrEqual", bounds, values))
    return o("ReduceSum", o.cast(behind, o.spec.dtype), o.ints((-1,)), keepdims=0)


@rule("histc.default")
def histc(o: OnnxCaller, x: str, bins: int = 100, min: float = 0, max: float = 0) -> str:
    if min >= max:
        raise o.refused("bins between the extremes of the data")
    flat = o("Reshape", x, o.ints((-1, 1)))
    place = o("Floor", o("Mul", o("Sub", flat, o.number(min)), o.number(bins / (max - min))))
    place = o("Where", o("Equal", flat, o.number(max)), o.number(bins - 1), place)
    hits = o("Equal", place, o.cast(places(o, bins), o.spec.dtype))
    return o("ReduceSum", o.cast(hits, o.spec.dtype), o.ints((0,)), keepdims=0)


@rule("nonzero.default")
def nonzero(o: OnnxCaller, x: str) -> str:
    return o("Transpose", o("NonZero", x, dtype=torch.int64), perm=(1, 0))


@rule("masked_scatter.default")
def masked_scatter(o: OnnxCaller, x: str, mask: str, source: str) -> str:
    shape, flat = o.ints(o.spec.sizes), o.ints((-1,))
    wide = o("Reshape", o("Expand", mask, shape), flat)
    number = o("CumSum", o.cast(wide, torch.int64), o.scalar(0))
    first = o("Max", o("Sub", number, o.scalar(1)), o.scalar(0))
    # A row more, for a mask without a true element.
    found = o("Gather", o("Concat", o("Reshape", source, flat), o.number([0]), axis=0), first)
    return o("Where", o("Expand", mask, shape), o("Reshape", found, shape, allowzero=1), x)


@rule("linalg_cross.default")
def cross(o: OnnxCaller, x: str, y: str, *, dim: int = -1) -> str:
    turns = [o.number(order, torch.int64) for order in ([1, 2, 0], [2, 0, 1])]
    x1, x2, y1, y2 = [o("Gather", value, turn, axis=dim) for value in (x, y) for turn in turns]
    return o("Sub", o("Mul", x1, y2), o("Mul", x2, y1))


@rule("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_product(
    o: OnnxCaller,
    x: str,
    y: str,
    ends: str | None = None,
    bias: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> str:
    """Rows up to each end by a matrix of their own."""
    left, right = o.input().sizes, o.input(1).sizes
    if len(left) != 2 or len(right) != 3 or isinstance(right[0], Expr) or ends is None or bias or out_dtype:
        raise o.refused("other than rows by a stack of matrices")
    wide, parts, start, axis = o.cast(ends, torch.int64), [], o.ints((0,)), o.ints((0,))
    for place in range(right[0]):
        end = o("Gather", wide, o.ints((place,)))
        parts.append(o("MatMul", o("Slice", x, start, end, axis), o("Gather", y, o.scalar(place))))
        start = end
    return o("Concat", *parts, axis=0)


@rule("mkldnn_rnn_layer.default", "kiln.mkldnn_rnn_layer.default")
def lstm(
    o: OnnxCaller, x: str, w: str, r: str, wb: str, rb: str, hidden: str, cell: str, reverse: bool, lengths: object,
    mode: int, hidden_size: int, layers: int, has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> tuple[str, ...]:  # fmt: skip
    """One layer in one direction, rows of steps first. Gates: ours i, f, g, o; ONNX has i, o, f, g."""
    if mode != 2 or lengths or batch_first:
        raise o.refused("another layer than one of an LSTM")

    def gates(value: str) -> str:
        i, f, g, last = o.many("Split", value, count=4, axis=0, num_outputs=4)
        return o("Concat", i, last, f, g, axis=0)

    front = o.ints((0,))
    weights = [o("Unsqueeze", gates(value), front) for value in (w, r)]
    bias = o("Unsqueeze", o("Concat", gates(wb), gates(rb), axis=0), front) if has_biases else ""
    states = [o("Reshape", value, o.ints((1, -1, hidden_size))) for value in (hidden, cell)]
    kind = "reverse" if reverse else "forward"
    y, h, c = o.many("LSTM", x, *weights, bias, "", *states, count=3, hidden_size=hidden_size, direction=kind)
    results = o.node.spec[1:3] if isinstance(o.node.spec, tuple) else ()
    last = [
        o("Reshape", part, o.ints(spec.sizes)) for part, spec in zip((h, c), results, strict=True)
        if isinstance(spec, TensorSpec)
    ]  # fmt: skip
    return o("Squeeze", y, o.ints((1,))), *last, ""


@rule("_cdist_forward.default")
def distances(o: OnnxCaller, x: str, y: str, p: float, mode: int | None) -> str:
    apart, last = o("Sub", o("Unsqueeze", x, o.ints((-2,))), o("Unsqueeze", y, o.ints((-3,)))), o.ints((-1,))
    if p in (1, 2):
        return o("ReduceL1" if p == 1 else "ReduceL2", apart, last, keepdims=0)
    apart = o("Abs", apart)
    if p == float("inf"):
        return o("ReduceMax", apart, last, keepdims=0)
    if p == 0:
        return o("ReduceSum", o.cast(o("Greater", apart, o.number(0)), o.spec.dtype), last, keepdims=0)
    return o("Pow", o("ReduceSum", o("Pow", apart, o.number(p)), last, keepdims=0), o.number(1 / p))


@rule("renorm.default")
def renorm(o: OnnxCaller, x: str, p: float, dim: int, maxnorm: float) -> str:
    axes = [axis for axis in range(o.spec.rank) if axis != dim % o.spec.rank]
    if p not in (1, 2):
        raise o.refused("a norm of another order")
    norm, most = o("ReduceL1" if p == 1 else "ReduceL2", x, o.ints(axes), keepdims=1), o.number(float(maxnorm))
    factor = o("Div", most, o("Add", norm, o.number(1e-7)))
    return o("Mul", x, o("Where", o("Greater", norm, most), factor, o.number(1)))


@rule("ldexp.Tensor")
def ldexp(o: OnnxCaller, x: str, y: str) -> str:
    return o("Mul", o.cast(x, o.spec.dtype), o("Pow", o.number(2, o.spec.dtype), o.cast(y, o.spec.dtype)))


@rule("_linalg_det.default")
def det(o: OnnxCaller, x: str) -> tuple[str, ...]:
    return o("Det", x), "", ""


@rule("_int_mm.default")
def int_mm(o: OnnxCaller, x: str, y: str) -> str:
    return o("MatMulInteger", x, y, dtype=torch.int32)


@rule("affine_grid_generator.default")
def affine_grid(o: OnnxCaller, theta: str, size: Sizes, align_corners: bool) -> str:
    """Homogeneous positions from -1 to 1, the last axis first, by a matrix for each image."""
    sides, count = size[2:], len(size) - 2
    parts = []
    for axis in reversed(range(count)):
        whole = o.cast(places(o, sides[axis]), o.spec.dtype)
        length = o.cast(o.scalar(sides[axis]), o.spec.dtype)
        if align_corners:
            last = o("Max", o("Sub", length, o.number(1)), o.number(1))
            spot = o("Sub", o("Div", o("Mul", whole, o.number(2)), last), o.number(1))
            spot = o("Where", o("Equal", length, o.number(1)), o.number(0), spot)
        else:
            spot = o("Sub", o("Div", o("Add", o("Mul", whole, o.number(2)), o.number(1)), length), o.number(1))
        shape = [1] * axis + [-1] + [1] * (count - axis - 1)
        parts.append(o("Expand", o("Reshape", spot, o.ints(shape)), o.ints(sides)))
    parts.append(o("Expand", o.number(1), o.ints(sides)))
    rows = o("Concat", *[o("Reshape", part, o.ints((-1, 1))) for part in parts], axis=1)
    made = o("MatMul", rows, o("Transpose", theta, perm=(0, 2, 1)))
    return o("Reshape", made, o.ints(o.spec.sizes), allowzero=1)


@rule("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(o: OnnxCaller, x: str, indices: str, output_size: Sizes, *more: object) -> str:
    """Positions count the elements of a channel."""
    lead, count = o.spec.sizes[: o.spec.rank - len(output_size)], product(output_size)
    flat = [o("Reshape", value, o.ints((*lead, -1))) for value in (x, indices)]
    zeros = o("Expand", o.number(0), o.ints((*lead, count)))
    return o("Reshape", o("ScatterElements", zeros, flat[1], flat[0], axis=-1), o.ints(o.spec.sizes), allowzero=1)


@rule("unfold_backward.default")
def unfold_backward(o: OnnxCaller, x: str, sizes: Sizes, dim: int, size: int, step: int) -> str:
    """Windows added up where they came from; the elements of a window are the last dimension."""
    rank = o.spec.rank
    axis, others = dim % rank, [place for place in range(rank) if place != dim % rank]
    count = o.input().sizes[axis]
    order = (axis, rank, *others)
    first = o("Reshape", places(o, count, step), o.ints((-1, 1, 1)))
    at = o("Add", first, o("Reshape", places(o, size), o.ints((1, -1, 1))))
    front = [o.spec.sizes[place] for place in (axis, *others)]
    zeros = o("Expand", o.number(0), o.ints(front))
    made = o("ScatterND", zeros, at, o("Transpose", x, perm=order), reduction="add")
    return o("Transpose", made, perm=tuple([[axis, *others].index(place) for place in range(rank)]))


@rule("col2im.default")
def col2im(
    o: OnnxCaller, x: str, sizes: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> str:  # fmt: skip
    border = static(o, padding, 2)
    attrs: dict[str, Attribute] = {
        "dilations": static(o, dilation, 2), "strides": static(o, stride, 2), "pads": (*border, *border),
    }  # fmt: skip
    wide = x if o.input().rank == 3 else o("Unsqueeze", x, o.ints((0,)))
    return o(
        "Reshape", o("Col2Im", wide, o.ints(sizes), o.ints(kernel), attrs=attrs), o.ints(o.spec.sizes), allowzero=1
    )


@rule("_embedding_bag_forward_only.default", "_embedding_bag.default")
def embedding_bag(
    o: OnnxCaller, weight: str, indices: str, offsets: str, scaled: bool = False, mode: int = 0, sparse: bool = False,
    shares: str | None = None, has_end: bool = False, padding: int = -1,
) -> tuple[str, ...]:  # fmt: skip
    """Rows of a table, added up (mode 0), averaged (1), or the largest (2), for each bag that begins at an offset."""
    dtype, made = o.spec.dtype, o.ints(o.spec.sizes)
    rows, wide = o("Gather", weight, indices), o.cast(indices, torch.int64)
    begins = o.cast(offsets, torch.int64)
    begins = o("Slice", begins, o.ints((0,)), o.ints((-1,)), o.ints((0,))) if has_end else begins
    at = o("Unsqueeze", places(o, o.input(1).sizes[0]), o.ints((1,)))
    begun = o.cast(o("LessOrEqual", o("Unsqueeze", begins, o.ints((0,))), at), torch.int64)
    bag = o("Sub", o("ReduceSum", begun, o.ints((1,)), keepdims=1), o.number(1, torch.int64))
    counted = o.cast(o("Not", o("Equal", wide, o.number(padding, torch.int64))), dtype)
    if shares is not None:
        rows = o("Mul", rows, o("Unsqueeze", shares, o.ints((1,))))
    nothing = o.number(float("-inf") if mode == 2 else 0, dtype)
    if padding >= 0:
        rows = o("Where", o.cast(o("Unsqueeze", counted, o.ints((1,))), torch.bool), rows, nothing)
    total = o("ScatterND", o("Expand", nothing, made), bag, rows, reduction="max" if mode == 2 else "add")
    if mode == 0:
        return total, "", "", ""
    empty = o("Expand", o.number(0, dtype), o.ints(o.spec.sizes[:1]))
    counts = o("Unsqueeze", o("ScatterND", empty, bag, counted, reduction="add"), o.ints((1,)))
    if mode == 1:
        return o("Div", total, o("Max", counts, o.number(1, dtype))), "", "", ""
    return o("Where", o("Equal", counts, o.number(0, dtype)), o.number(0, dtype), total), "", "", ""
