"""The ATen operators that a static library has kernels of its own for, in `kernels/*.h`.

    %6 = aten.mm.default(%4, %5)    =>    products(1, batch, 128, 64, {a, ..}, {panels}, c, ..);

A rule gets the call and returns statements. `Refused` says why there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import final

import torch

from kiln.graph.prims.table import Cells
from kiln.plan.overloads import find_overload
from kiln.plan.plan import Ref, Slot
from kiln.plan.steps import AtenStep
from kiln.programs.static.memory import ALIGNMENT
from kiln.programs.static.places import Places
from kiln.support.records import dataclass
from kiln.symbolic import Int, ceil_div, product, sym_max, sym_min
from kiln.tensor.spec import TensorSpec

QUERY_ROWS = 24
"""Rows of scores that attention computes at a time, as in kernels/attention.h."""
PIXELS = 96
"""That a convolution computes at a time."""


LEFT_ROWS, LEFT_DEPTH = 288, 512  # ROW_BLOCK (where it is larger) and DEPTH_BLOCK of kernels/product.h
LEAST_PACKED = 256
"""Columns for which a left operand is packed."""

LSTM_MODE = 2
"""As torch numbers kinds of recurrent layers."""


class Refused(Exception):
    """The library has no kernel for this call."""


@final
@dataclass(frozen=True, slots=True)
class OwnKernelCall:
    """A call of an ATen operator, its arguments by name with the defaults.

    Kernels are for float32: bfloat16 arguments are widened in front of them, results narrowed behind.
    """

    step: AtenStep
    at: Places
    given: Mapping[str, object]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    used: list[Int] = field(default_factory=list)
    """Bytes of the parts of the scratch memory."""

    def scratch(self, size: Int) -> str:
        start: Int = sum(self.used, 0)
        self.used.append(ceil_div(size, ALIGNMENT) * ALIGNMENT)
        return f"{self.at.scratch(start + self.used[-1])} + {self.at.printer.operand(start)}"

    def slot(self, name: str) -> Slot:
        """Of a tensor. Raises Refused for a number, and for tensors of other dtypes than float32 and bfloat16."""
        value = self.given[name]
        if not isinstance(value, Ref):
            raise Refused(f"`{name}` is not a tensor")
        dtype = self.at.spec(value.slot).dtype
        if dtype not in (torch.float32, torch.bfloat16):
            raise Refused(f"`{name}` is {dtype}, not torch.float32")
        return value.slot

    def spec(self, name: str) -> TensorSpec:
        return self.at.spec(self.slot(name))

    def pointer(self, name: str) -> str:
        return self.converted(self.slot(name), self.before, "widen({narrow}, {count}, {wide});")

    def converted(self, slot: Slot, statements: list[str], conversion: str) -> str:
        """Where the kernel has a tensor: in its place, or as float32 in the scratch memory."""
        address, spec = self.at.address(slot), self.at.spec(slot)
        if spec.dtype == torch.float32:
            return f"(f32*)({address})"
        count = spec.with_view(spec.sizes, spec.strides, 0).storage_elements()
        wide = f"(f32*)({self.scratch(count * 4)})"
        statements.append(conversion.format(narrow=f"(u16*)({address})", count=self.at.number(count), wide=wide))
        return wide

    def tensor(self, name: str) -> tuple[str, TensorSpec]:
        return self.pointer(name), self.spec(name)

    def result(self, number: int = 0) -> tuple[str, TensorSpec]:
        slot = self.step.outs[number]
        assert slot is not None
        return self.converted(slot, self.after, "narrow({wide}, {count}, {narrow});"), self.at.spec(slot)

    def scalar(self, name: str) -> float:
        value = self.given[name]
        if not isinstance(value, int | float):
            raise Refused(f"`{name}` is no fixed number")
        return float(value)

    def pair(self, name: str, otherwise: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Two numbers for the two dimensions of an image; of the one of a sequence, the second."""
        value = self.given[name]
        values = value if isinstance(value, list | tuple) else [value]
        numbers = [number for number in values if isinstance(number, int)]
        if len(numbers) != len(values) or len(numbers) > 2:
            raise Refused(f"`{name}` is not one or two fixed numbers")
        return (numbers[0], numbers[-1]) if numbers else otherwise

    def texts(self, numbers: Sequence[Int]) -> str:
        return ", ".join([self.at.number(number) for number in numbers])


Rule = Callable[[OwnKernelCall], list[str]]
rule = RULES = Cells[Rule]("static calls")


def statements(step: AtenStep, at: Places) -> list[str]:
    """What the library does for this step. Raises Refused."""
    made = RULES.get(step.target)
    if made is None:
        raise Refused("no kernel")
    schema = find_overload(step.target)._schema
    given = {argument.name: argument.default_value for argument in schema.arguments}
    given |= dict(zip(given, step.args, strict=False)) | dict(step.kwargs)
    call = OwnKernelCall(step, at, given)
    lines = made(call)
    return [*call.before, *lines, *call.after]


def stack_strides(spec: TensorSpec, sizes: Sequence[Int]) -> tuple[Int, ...]:
    """Distances of batch, row and column where the tensor is broadcast to the sizes."""
    missing = len(sizes) - spec.rank
    strides: list[Int] = [0] * missing
    for size, stride in zip(spec.sizes, spec.strides, strict=True):
        strides.append(0 if size == 1 else stride)
    return tuple([0] * (3 - len(strides)) + strides)


@rule("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default")
def product_of_matrices(call: OwnKernelCall) -> list[str]:
    """[batch,] rows x depth times [batch,] depth x columns, plus beta times a tensor that is broadcast."""
    adds = "beta" in call.given
    names = ("batch1", "batch2") if "batch1" in call.given else ("mat1", "mat2") if adds else ("self", "mat2")
    (left, a), b, (to, c) = call.tensor(names[0]), call.spec(names[1]), call.result()
    batch, rows, columns = (1, *c.sizes)[-3:]
    depth = a.sizes[-1]
    start, alpha, beta = "{}", 1.0, 0.0
    if adds:
        added, spec = call.tensor("self")
        alpha, beta = call.scalar("alpha"), call.scalar("beta")
        start = f"{{{added}, {call.texts(stack_strides(spec, c.sizes))}}}" if beta else start
    stacks = [call.texts(stack_strides(spec, spec.sizes)) for spec in (a, b, c)]
    packed = call.at.packed(call.slot(names[1])) if b.rank == 2 else None
    right, scratch = f"(f32*)({packed})", "nullptr"
    if packed is None:
        right = call.pointer(names[1])
        scratch = f"(f32*)({call.scratch(panel_bytes(depth, columns, call.at.panel))})"
    pays = sym_max(rows, 16) != 16 and sym_max(columns, LEAST_PACKED - 1) != LEAST_PACKED - 1
    block = f"(f32*)({call.scratch(left_bytes(rows, depth))})" if pays else "nullptr"
    return [
        f"products({call.texts((batch, rows, columns, depth))}, {{{left}, {stacks[0]}}}, {{{right}, {stacks[1]}}},",
        f"         {to}, {stacks[2]}, {alpha!r}f, {beta!r}f, {start}, {scratch}, {block});",
    ]


def left_bytes(rows: Int, depth: Int) -> Int:
    """Of the largest block of a left operand that is packed, as in kernels/product.h."""
    return sym_min(rows, LEFT_ROWS) * sym_min(depth, LEFT_DEPTH) * 4


def panel_bytes(depth: Int, columns: Int, panel: int) -> Int:
    return ceil_div(columns, panel) * panel * depth * 4


@rule("aten.convolution.default")
def convolution(call: OwnKernelCall) -> list[str]:
    (image, x), w, (to, y) = call.tensor("input"), call.spec("weight"), call.result()
    if x.rank not in (3, 4):
        raise Refused(f"it has {x.rank - 2} dimensions, not 1 or 2")
    channels_last = not call.given["transposed"] and 1 < x.sizes[1] != 1 == x.strides[1] == y.strides[1]  # type: ignore[operator]
    if channels_last and fixed(call, "groups") in (1, w.sizes[0]) and w.sizes[1] in (1, x.sizes[1]):
        return convolution_of_channels(call, (image, x), (to, y))
    kernel = call.at.contiguous(call.slot("weight"))
    if kernel is None:
        raise Refused("its weights are computed")
    bias = "nullptr" if call.given["bias"] is None else call.pointer("bias")
    window = windows(call, w.sizes[2:], call.pair("stride"), call.pair("padding"), call.pair("dilation"), x.rank)
    in_image, out_image = image_text(call, x), image_text(call, y, collapsed=True)
    depth = product(w.sizes[1:])
    if call.given["transposed"]:
        panel = call.at.panel
        scratch = call.scratch(panel_bytes(x.sizes[1], 1, panel) + panel_bytes(depth, 1, panel))
        return [
            f"convolve_transposed({in_image}, {image}, {window}, (f32*)({kernel}), {bias},",
            f"         {call.texts([fixed(call, 'groups')])}, {out_image}, {to}, (f32*)({scratch}));",
        ]
    scratch = call.scratch(panel_bytes(depth, 1, call.at.panel))
    return [
        f"convolve({in_image}, {image}, {window}, (f32*)({kernel}), {bias}, {call.texts([fixed(call, 'groups')])},",
        f"         {out_image}, {to}, (f32*)({scratch}));",
    ]


def convolution_of_channels(
    call: OwnKernelCall, given: tuple[str, TensorSpec], made: tuple[str, TensorSpec]
) -> list[str]:
    """Where the channels of a pixel lie side by side: with all of them, or (depthwise) one by one."""
    (image, x), (to, y), w = given, made, call.spec("weight")
    depthwise = w.sizes[1] == 1
    kernel = call.at.channels_last(call.slot("weight"), packed=not depthwise)
    if kernel is None:
        raise Refused("its weights are computed")
    bias = "nullptr" if call.given["bias"] is None else call.pointer("bias")
    window = windows(call, w.sizes[2:], call.pair("stride"), call.pair("padding"), call.pair("dilation"), x.rank)
    text = f"{image_text(call, x)}, {image}, {window}, (f32*)({kernel}), {bias}, {image_text(call, y, collapsed=True)}"
    if depthwise:
        return [f"convolve_depthwise({text}, {to});"]
    scratch = call.scratch(PIXELS * 4 * product(w.sizes[1:]))
    return [f"convolve_channels({text}, {to}, (f32*)({scratch}), {PIXELS});"]


def fixed(call: OwnKernelCall, name: str) -> int:
    return int(call.scalar(name))


def windows(
    call: OwnKernelCall,
    sizes: Sequence[Int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    rank: int,
) -> str:
    """A `Windows`; a sequence is an image of one row."""
    if rank == 3:
        stride, padding, dilation = (1, stride[1]), (0, padding[1]), (1, dilation[1])
    height, width = (1, *sizes)[-2:]
    return f"Windows{{{call.texts((height, width, *stride, *padding, *dilation))}}}"


def image_text(call: OwnKernelCall, spec: TensorSpec, *, collapsed: bool = False) -> str:
    """An `Image`; a sequence is one of one row. `collapsed`: rows must follow each other."""
    sizes, strides = [*spec.sizes], [*spec.strides]
    if spec.rank == 3:
        strides.insert(2, sizes[2] * strides[2])
        sizes.insert(2, 1)
    if collapsed and sizes[2] != 1 and strides[2] != sizes[3] * strides[3]:
        raise Refused("rows of its result do not follow each other")
    return f"Image{{{call.texts((*sizes, *strides))}}}"


@rule("aten.max_pool2d_with_indices.default")
def max_pool(call: OwnKernelCall) -> list[str]:
    (image, x), (to, y) = call.tensor("self"), call.result()
    if x.rank != 4:
        raise Refused("its input has no batch")
    size = call.pair("kernel_size")
    window = windows(call, size, call.pair("stride", size), call.pair("padding"), call.pair("dilation"), x.rank)
    places, second = "nullptr", call.step.outs[1]
    if second is not None and call.at.is_read(second):
        places = f"(i64*)({call.at.address(second)})"
    return [f"max_pool({image_text(call, x)}, {image}, {window}, {image_text(call, y)}, {to}, {places});"]


@rule("aten.mkldnn_rnn_layer.default")
def lstm_layer(call: OwnKernelCall) -> list[str]:
    """A layer in one direction: all steps of a sequence."""
    if fixed(call, "mode") != LSTM_MODE:
        raise Refused("it is no layer of an LSTM")
    (first, x), (to, y) = call.tensor("input"), call.result()
    panels = [call.at.packed(call.slot(name), transposed=True) for name in ("weight0", "weight1")]
    if None in panels:
        raise Refused("its weights are computed")
    (hidden, cells), specs = zip(*[call.tensor(name) for name in ("hx_", "cx_")], strict=True)
    if not (specs[0].is_contiguous() and specs[1].is_contiguous()):
        raise Refused("its first state has gaps")
    steps, rows, width = x.sizes
    count = y.sizes[2]
    kept = [call.result(number) if (out := call.step.outs[number]) is not None and call.at.is_read(out) else None
            for number in (1, 2)]  # fmt: skip
    last, last_cells = [each[0] if each is not None else "nullptr" for each in kept]
    scratch = call.scratch(rows * count * 5 * 4)
    return [
        f"lstm({call.texts((steps, rows, width, count, fixed(call, 'reverse')))},",
        f"     {{{first}, {call.texts(x.strides)}}}, {{{to}, {call.texts(y.strides)}}},",
        f"     (f32*)({panels[0]}), (f32*)({panels[1]}), {call.pointer('weight2')}, {call.pointer('weight3')},",
        f"     {hidden}, {cells}, {last}, {last_cells}, (f32*)({scratch}));",
    ]


@rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def attention(call: OwnKernelCall) -> list[str]:
    heads = [call.tensor(name) for name in ("query", "key", "value")]
    (_, q), (_, k), (_, v) = heads
    if call.scalar("dropout_p"):
        raise Refused("it has dropout")
    logsumexp = call.step.outs[1]
    if logsumexp is not None and call.at.is_read(logsumexp):
        raise Refused("its second result is used")
    batch, count, queries, width = q.sizes
    keys, out_width = k.sizes[2], v.sizes[3]
    texts = [f"{{{at}, {call.texts(spec.strides)}}}" for at, spec in (*heads, call.result())]
    mask = "{}"
    if call.given["attn_mask"] is not None:
        at, spec = call.tensor("attn_mask")
        strides = [0 if size == 1 else stride for size, stride in zip(spec.sizes, spec.strides, strict=True)]
        mask = f"{{{at}, {call.texts([0] * (4 - spec.rank) + strides)}}}"
    scale = call.given["scale"]
    if scale is None and isinstance(width, int):
        scale = width**-0.5
    if not isinstance(scale, float):
        raise Refused("its scale is no fixed number")
    panel = call.at.panel
    size = panel_bytes(width, keys, panel) + panel_bytes(keys, out_width, panel) + keys * QUERY_ROWS * 4
    shared = count // k.sizes[1]
    sizes = call.texts((batch, count, shared, queries, keys, width, out_width))
    causal = "true" if call.given["is_causal"] else "false"
    return [
        f"attend({sizes}, {', '.join(texts[:3])},",
        f"       {mask}, {texts[3]}, {scale!r}f, {causal}, (f32*)({call.scratch(size)}));",
    ]
