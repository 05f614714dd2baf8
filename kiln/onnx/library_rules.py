"""ATen calls that Kiln leaves to a library, as ONNX's operators (opset 18).

    addmm(b, x, w)           Gemm(x, w, b)
    convolution(x, w, b, ..) Conv(x, w, b; strides=.., pads=..)

A call of another form of the same operator (`divisor_override`, attention with dropout) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.graph.prims.table import Cells
from kiln.onnx.call import OnnxCaller, OnnxRule
from kiln.onnx.model import Attribute
from kiln.symbolic import Expr, Int
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


@rule("mm.default", "bmm.default", "mv.default", "dot.default")
def product(o: OnnxCaller, x: str, y: str) -> str:
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
    spec = o.input()
    if spec.rank != count + 2:
        raise o.refused("an image without a batch")
    kernel = static(o, kernel_size, count)
    step, borders, spacing = static(o, stride or kernel, count), static(o, padding, count), static(o, dilation, count)
    pads = pads_of(o, 0, kernel, step, borders, spacing) if ceil_mode else (*borders, *borders)
    if min(pads) < 0:
        raise o.refused("windows that leave out the end")
    attrs: dict[str, Attribute] = {"kernel_shape": kernel, "strides": step, "pads": pads, "dilations": spacing}
    values, places = o.many("MaxPool", x, count=2, attrs=attrs)
    # ONNX counts the elements of all images together, ATen those of one channel.
    plane: Int = 1
    for size in spec.sizes[2:]:
        plane = plane * size
    return values, o("Mod", o("Cast", places, dtype=torch.int64, to=7), o.scalar(plane))


@rule("avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    o: OnnxCaller, x: str, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> str:  # fmt: skip
    count = 2 if "2d" in o.node.attrs["target"] else 3
    if ceil_mode or divisor_override is not None or o.input().rank != count + 2:
        raise o.refused("windows that are cut off, or a divisor of its own")
    kernel = static(o, kernel_size, count)
    step, borders = static(o, stride or kernel, count), static(o, padding, count)
    attrs: dict[str, Attribute] = {"kernel_shape": kernel, "strides": step, "pads": (*borders, *borders)}
    return o("AveragePool", x, attrs={**attrs, "count_include_pad": int(count_include_pad)})


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(o: OnnxCaller, x: str, output_size: Sizes) -> str:
    """Into windows of one size only."""
    count, spec = len(output_size), o.input()
    if all([size == 1 for size in output_size]):
        return o("ReduceMean", x, o.ints(list(range(spec.rank - count, spec.rank))), keepdims=1)
    pixels = spec.sizes[spec.rank - count :]
    kernel = []
    for size, wanted in zip(pixels, output_size, strict=True):
        fits = isinstance(size, int) and isinstance(wanted, int) and wanted and not size % wanted
        if not fits or spec.rank != count + 2:
            raise o.refused("windows of several sizes")
        kernel.append(static(o, (size // wanted,), 1)[0])
    return o("AveragePool", x, kernel_shape=tuple(kernel), strides=tuple(kernel))


def padded(mode: str) -> OnnxRule:
    def run(o: OnnxCaller, x: str, padding: Sizes) -> str:
        missing: list[Int] = [0] * (o.spec.rank - len(padding) // 2)
        low, high = [*missing, *padding[-2::-2]], [*missing, *padding[-1::-2]]
        return o("Pad", x, o.ints([*low, *high]), mode=mode)

    return run


for _dims in (1, 2, 3):
    rule(f"reflection_pad{_dims}d.default")(padded("reflect"))
    rule(f"replication_pad{_dims}d.default")(padded("edge"))


@rule("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest(o: OnnxCaller, x: str, output_size: Sizes, *scales: float | None) -> str:
    if any([scale is not None for scale in scales]):
        raise o.refused("scales beside the sizes")
    sizes = o.ints(o.spec.sizes)
    attrs: dict[str, Attribute] = {
        "mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric",
    }  # fmt: skip
    return o("Resize", x, "", "", sizes, attrs=attrs)


@rule("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def upsample_linear(o: OnnxCaller, x: str, output_size: Sizes, align_corners: bool, *scales: float | None) -> str:
    if any([scale is not None for scale in scales]):
        raise o.refused("scales beside the sizes")
    kind = "align_corners" if align_corners else "half_pixel"
    return o("Resize", x, "", "", o.ints(o.spec.sizes), mode="linear", coordinate_transformation_mode=kind)


# Attention, order.


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def attention(
    o: OnnxCaller, query: str, key: str, value: str, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: str | None = None, scale: float | None = None,
) -> tuple[str, str]:  # fmt: skip
    left, right = o.input().sizes, o.node.inputs[1].tensor.sizes
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
