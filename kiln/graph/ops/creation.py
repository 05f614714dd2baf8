"""Creation of tensors, from attributes or like other tensors.

aten.arange.start(2, 10, dtype=i64)     =>     iota(length=8, start=2, step=1, dtype=i64)
aten.zeros_like(x)                      =>     %1 = constant(0);  %2 = full(%1, sizes of x), strides of x
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.promotion import number_dtype
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition, decompose
from kiln.graph.prims.meta import format_strides
from kiln.symbolic import Expr, Int, ceil_div, rel_le, rel_lt
from kiln.tensor.spec import TensorSpec, contiguous_strides

Device = torch.device | None
Dtype = torch.dtype | None
Format = torch.memory_format | None
Sizes = Sequence[Int]

FORMATS = {
    torch.contiguous_format: "contiguous",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}


RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}


def strides_for(e: Emit, x: TensorSpec, memory_format: Format) -> tuple[Int, ...]:
    """Strides of a copy of `x` in a memory format; None and preserve_format keep that of `x`."""
    if memory_format is None or memory_format is torch.preserve_format:
        return e.preserved_strides(x)
    if x.rank != RANKS.get(memory_format, x.rank):
        raise RuntimeError(f"required rank {RANKS[memory_format]} tensor to use {memory_format}")
    return format_strides(x.sizes, FORMATS[memory_format])  # type: ignore[arg-type]


def relaid(e: Emit, x: Node, strides: tuple[Int, ...]) -> Node:
    """`x` with exactly these strides, also in dimensions of size 1."""
    return x if x.tensor.strides == strides else e.node("clone", x, strides=strides)


def packed(e: Emit, x: Node) -> Node:
    """`x` with contiguous strides."""
    return relaid(e, x, contiguous_strides(x.tensor.sizes))


def eager_device(device: Device) -> torch.device:
    """The device of a tensor made with this argument `device`; as on a tensor, always with an index."""
    where = torch.get_default_device() if device is None else torch.device(device)
    if where.type not in ("cpu", "meta") and where.index is None:
        return torch.device(where.type, torch.accelerator.current_device_index())
    return where


def device_like(device: Device, x: TensorSpec) -> torch.device:
    """`eager_device`, by default the device of `x`."""
    return x.device if device is None else eager_device(device)


def _float(dtype: Dtype) -> torch.dtype:
    return dtype or torch.get_default_dtype()


# A single value.


@decompose("full.default")
def full(
    e: Emit, size: Sizes, fill_value: Number | Node, *, dtype: Dtype = None, layout: object = None,
    device: Device = None, pin_memory: object = None,
) -> Node:  # fmt: skip
    wanted = dtype or (fill_value.tensor.dtype if isinstance(fill_value, Node) else number_dtype(fill_value))
    return e.full(fill_value, tuple(size), wanted, eager_device(device))


def _filled(value: Number) -> Decomposition:
    def rule(
        e: Emit, size: Sizes, *, dtype: Dtype = None, layout: object = None, device: Device = None,
        pin_memory: object = None, memory_format: Format = None,
    ) -> Node:  # fmt: skip
        return full(e, size, value, dtype=_float(dtype), layout=layout, device=device)

    return rule


DECOMPOSITIONS["zeros.default"] = _filled(0)
DECOMPOSITIONS["ones.default"] = _filled(1)


def uninitialised(
    e: Emit, sizes: tuple[Int, ...], strides: tuple[Int, ...], dtype: torch.dtype, device: torch.device
) -> Node:
    """Memory that the program does not initialise; torch fills it where algorithms are to be deterministic."""
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    if not (fills and torch.are_deterministic_algorithms_enabled()):
        return e.node("empty", sizes=sizes, strides=strides, dtype=dtype, device=device)
    whole = not dtype.is_floating_point and not dtype.is_complex
    value = torch.iinfo(dtype).max if whole and dtype != torch.bool else whole or math.nan
    return relaid(e, e.full(value, sizes, dtype, device), strides)


@decompose("empty.memory_format")
def empty(
    e: Emit, size: Sizes, *, dtype: Dtype = None, layout: object = None, device: Device = None,
    pin_memory: object = None, memory_format: Format = None,
) -> Node:  # fmt: skip
    sizes = tuple(size)
    strides = format_strides(sizes, FORMATS[memory_format or torch.contiguous_format])  # type: ignore[arg-type]
    return uninitialised(e, sizes, strides, _float(dtype), eager_device(device))


@decompose("empty_strided.default")
def empty_strided(
    e: Emit, size: Sizes, stride: Sizes, *, dtype: Dtype = None, layout: object = None, device: Device = None,
    pin_memory: object = None,
) -> Node:  # fmt: skip
    return uninitialised(e, tuple(size), tuple(stride), _float(dtype), eager_device(device))


@decompose("scalar_tensor.default")
def scalar_tensor(
    e: Emit, s: Number | Node, *, dtype: Dtype = None, layout: object = None, device: Device = None,
    pin_memory: object = None,
) -> Node:  # fmt: skip
    if isinstance(s, Node):
        return e.node("scalar_tensor", s, dtype=_float(dtype), device=eager_device(device))
    if _float(dtype) not in (torch.float16, torch.bfloat16):  # in which a number too large is infinite
        e.require_fits(s, _float(dtype))
    return e.moved(e.number(s, _float(dtype), eager_device(device)), eager_device(device))


# Like another tensor: same dtype and device by default.


def _like(value: Number | None) -> Decomposition:
    def rule(
        e: Emit, x: Node, *fill: Number, dtype: Dtype = None, layout: object = None, device: Device = None,
        pin_memory: object = None, memory_format: Format = None,
    ) -> Node:  # fmt: skip
        spec = x.tensor
        kind, where = dtype or spec.dtype, device_like(device, spec)
        strides = strides_for(e, spec, memory_format)
        if value is None and not fill:
            return uninitialised(e, spec.sizes, strides, kind, where)
        return relaid(e, e.full(fill[0] if fill else value, spec.sizes, kind, where), strides)  # type: ignore[arg-type]

    return rule


def _new(value: Number | None) -> Decomposition:
    def rule(
        e: Emit, x: Node, size: Sizes, *fill: Number, dtype: Dtype = None, layout: object = None, device: Device = None,
        pin_memory: object = None,
    ) -> Node:  # fmt: skip
        sizes, kind, where = tuple(size), dtype or x.tensor.dtype, device_like(device, x.tensor)
        if value is None and not fill:
            return uninitialised(e, sizes, contiguous_strides(sizes), kind, where)
        return e.full(fill[0] if fill else value, sizes, kind, where)  # type: ignore[arg-type]

    return rule


for _name, _value in (("zeros", 0), ("ones", 1), ("empty", None), ("full", None)):
    DECOMPOSITIONS[f"{_name}_like.default"] = _like(_value)
    DECOMPOSITIONS[f"new_{_name}.default"] = _new(_value)


@decompose("new_empty_strided.default")
def new_empty_strided(
    e: Emit, x: Node, size: Sizes, stride: Sizes, *, dtype: Dtype = None, layout: object = None, device: Device = None,
    pin_memory: object = None,
) -> Node:  # fmt: skip
    kind, where = dtype or x.tensor.dtype, device_like(device, x.tensor)
    return uninitialised(e, tuple(size), tuple(stride), kind, where)


@decompose("fill.Scalar", "fill.Tensor")
def fill(e: Emit, x: Node, value: Number | Node) -> Node:
    made = e.full(value, x.tensor.sizes, x.tensor.dtype, x.tensor.device)
    return relaid(e, made, e.preserved_strides(x.tensor))


# Sequences.


def iota(
    e: Emit, length: Int, dtype: torch.dtype, device: torch.device, start: Int | float = 0, step: Int | float = 1
) -> Node:
    return e.node("iota", length=length, start=start, step=step, dtype=dtype, device=device)


@decompose("arange.start_step", "arange.start", "arange.default")
def arange(
    e: Emit, *bounds: Int | float, dtype: Dtype = None, layout: object = None, device: Device = None,
    pin_memory: object = None, **named: Int | float,
) -> Node:  # fmt: skip
    """Bounds are (end), (start, end) or (start, end, step)."""
    if dtype is not None and (dtype is torch.bool or dtype.is_complex):
        raise NotImplementedError(f'"arange" not implemented for {dtype}')
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    given = (start, end, named.get("step", step))
    if any(isinstance(bound, float) for bound in given):
        return _float_arange(e, given, dtype or torch.get_default_dtype(), eager_device(device))
    start, end, step = [bound for bound in given if not isinstance(bound, float)]
    require_direction(start, end, step)
    distance, stride = (end - start, step) if e.oracle.expect(rel_lt(0, step)) else (start - end, -step)
    if not e.oracle.expect(rel_lt(0, stride)):
        raise RuntimeError("step must be nonzero")
    if not e.oracle.expect(rel_le(0, distance)):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    return iota(e, ceil_div(distance, stride), dtype or torch.int64, eager_device(device), start, step)


LONGEST = 2**62


def require_direction(start: Int | float, end: Int | float, step: Int | float) -> None:
    if isinstance(start, Expr) or isinstance(end, Expr) or isinstance(step, Expr):
        return
    if step == 0 or not all(map(math.isfinite, (start, end))):
        raise RuntimeError("arange: step must be nonzero and the bounds finite")
    if abs(end - start) >= LONGEST:
        raise UnsupportedOp(op="aten.arange", reason="the length of its range overflows in eager")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")


def _float_arange(e: Emit, bounds: Sequence[Int | float], dtype: torch.dtype, device: torch.device) -> Node:
    numbers = [bound for bound in bounds if not isinstance(bound, Expr)]
    if len(numbers) < len(bounds):
        raise UnsupportedOp(op="aten.arange", reason="it mixes symbolic and floating-point bounds")
    require_direction(*numbers)
    start, end, step = map(int, numbers) if dtype is torch.int64 else numbers
    length = math.ceil((end - start) / step)
    if not dtype.is_floating_point:
        # Eager truncates the bounds before computing the length for int64, afterwards for other integers.
        start, step = int(start), int(step)
    return iota(e, length, dtype, device, start, step)


@decompose("eye.default", "eye.m")
def eye(
    e: Emit, n: Int, m: Int | None = None, *, dtype: Dtype = None, layout: object = None, device: Device = None,
    pin_memory: object = None,
) -> Node:  # fmt: skip
    where = eager_device(device)
    rows = e.node("unsqueeze", iota(e, n, torch.int64, where), axis=1)
    columns = iota(e, n if m is None else m, torch.int64, where)
    return e.convert(e.pointwise("eq", rows, columns), _float(dtype))
