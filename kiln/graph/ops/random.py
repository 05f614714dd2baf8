"""Randomness: a seed and a `random` node for each draw. The numbers are a function of the seed.

    aten.bernoulli_.float(x, 0.9)     =>     s = random_seed();  m = random(s, distribution="bernoulli", params=(0.9,))
                                             convert(m), written to x
    aten.native_dropout(x, 0.1, True) =>     s = random_seed();  m = random(s, ...);  (x * m / 0.9, m)

Flags are drawn as bools: where they are kept for a backward, they take a byte each, or their seed is kept.
A generator object breaks the graph, unless the draw can be made in front of the region (`host_draws.py` of capture).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.creation import device_like, eager_device, relaid, strides_for
from kiln.graph.ops.emit import Emit, refuse_complex
from kiln.graph.ops.pointwise import copy, require_chances
from kiln.graph.ops.registry import DECOMPOSITIONS, INPLACE, Decomposition, decompose
from kiln.symbolic import Int
from kiln.symbolic.values import Real
from kiln.tensor.spec import TensorSpec, contiguous_strides

Sizes = Sequence[Int]


def draw(
    e: Emit, distribution: str, params: tuple[Attr, ...], sizes: tuple[Int, ...], dtype: torch.dtype,
    device: torch.device, *inputs: Node,
) -> Node:  # fmt: skip
    refuse_parameters(distribution, params)
    if device.type == "meta":  # such tensors have no elements to draw
        return e.node("empty", sizes=sizes, strides=contiguous_strides(sizes), dtype=dtype, device=device)
    seed = e.node("random_seed", device=device)
    made = torch.bool if distribution == "bernoulli" else dtype
    attrs: dict[str, Attr] = {"distribution": distribution, "params": params, "sizes": sizes}
    return e.convert(e.node("random", seed, *inputs, **attrs, dtype=made, device=device), dtype)


VALID: dict[str, Callable[..., bool]] = {
    "uniform": lambda low, high: low <= high,
    "normal": lambda mean, deviation: deviation >= 0,
    "exponential": lambda rate: rate > 0,
    "bernoulli": lambda p: 0 <= p <= 1,
    "randint": lambda low, high: low < high,
}


def refuse_parameters(distribution: str, params: Sequence[object]) -> None:
    """As eager; symbolic parameters are not checked."""
    numbers = [param for param in params if isinstance(param, int | float)]
    if numbers and len(numbers) == len(params) and not VALID[distribution](*numbers):
        raise RuntimeError(f"{distribution} does not take the parameters {tuple(params)}")


def refuse_generator(op: str, generator: object) -> None:
    if generator is not None:
        raise UnsupportedOp(op=op, reason="it draws from a generator object")


def draw_like(e: Emit, x: TensorSpec, distribution: str, *params: Attr, dtype: torch.dtype | None = None) -> Node:
    dtype = dtype or x.dtype
    if any([isinstance(param, Real) for param in params]):
        numbers = [e.number(cast(Number | Real, param), dtype, x.device) for param in params]
        return draw_by_numbers(e, distribution, numbers, x.sizes, dtype, x.device)
    return draw(e, distribution, params, x.sizes, dtype, x.device)


def draw_by_numbers(
    e: Emit, distribution: str, params: Sequence[Node], sizes: tuple[Int, ...], dtype: torch.dtype, device: torch.device
) -> Node:
    """A draw whose parameters differ from call to call, from one with fixed parameters."""
    if distribution == "bernoulli":
        chance = e.node("expand", e.convert(params[0], torch.float32), sizes=sizes)
        return e.convert(draw(e, distribution, (), sizes, torch.float32, device, chance), dtype)
    if distribution == "normal":
        standard = draw(e, distribution, (0.0, 1.0), sizes, dtype, device)
        return e.pointwise("add", e.pointwise("mul", standard, params[1]), params[0])
    if distribution == "exponential":
        return e.pointwise("div", draw(e, distribution, (1.0,), sizes, dtype, device), params[0])
    raise UnsupportedOp(op=distribution, reason="its parameters differ from call to call")


# In place: the old contents do not matter.


def _filling(distribution: str, *defaults: Attr) -> Decomposition:
    def rule(e: Emit, x: Node, *params: Attr, generator: object = None) -> Node:
        refuse_generator(distribution, generator)
        if distribution == "bernoulli":
            refuse_complex(distribution, x)
        return draw_like(e, x.tensor, distribution, *params, *defaults[len(params) :])

    return rule


for _name, _distribution, _defaults in (
    ("uniform", "uniform", (0.0, 1.0)),
    ("normal_functional", "normal", (0.0, 1.0)),
    ("exponential", "exponential", (1.0,)),
    ("bernoulli.p", "bernoulli", (0.5,)),
    ("random.from", "randint", ()),
):
    DECOMPOSITIONS[_name if "." in _name else f"{_name}.default"] = _filling(_distribution, *_defaults)


@decompose("random.default")
def random_any(e: Emit, x: Node, *, generator: object = None) -> Node:
    """All non-negative integers that the dtype represents exactly."""
    refuse_generator("random_", generator)
    dtype = x.tensor.dtype
    if dtype is torch.bool:
        return draw_like(e, x.tensor, "randint", 0, 2)
    if dtype.is_floating_point:
        digits = round(-math.log2(torch.finfo(dtype).eps)) + 1
        return draw_like(e, x.tensor, "randint", 0, 2**digits + 1)
    high = torch.iinfo(dtype).max
    return draw_like(e, x.tensor, "randint", 0, high if dtype is torch.int64 else high + 1)


INPLACE["normal_.default"] = "aten.normal_functional.default"
INPLACE["bernoulli_.float"] = "aten.bernoulli.p"


@decompose("random.to")
def random_to(e: Emit, x: Node, to: Int, *, generator: object = None) -> Node:
    refuse_generator("random_", generator)
    return draw_like(e, x.tensor, "randint", 0, to)


@decompose("bernoulli.default")
def bernoulli(e: Emit, x: Node, *, generator: object = None) -> Node:
    refuse_generator("bernoulli", generator)
    require_chances(e, x, "bernoulli: every probability should be between 0 and 1")
    spec = x.tensor
    return draw(e, "bernoulli", (), spec.sizes, spec.dtype, spec.device, x)


@decompose("bernoulli.Tensor")
def bernoulli_of(e: Emit, x: Node, p: Node, *, generator: object = None) -> Node:
    refuse_generator("bernoulli_", generator)
    chances = e.node("expand", p, sizes=x.tensor.sizes) if p.tensor.sizes != x.tensor.sizes else p
    return relaid(e, e.convert(bernoulli(e, chances), x.tensor.dtype), e.preserved_strides(x.tensor))


# Fresh tensors.


def _fresh(distribution: str, *params: Attr) -> Decomposition:
    def rule(
        e: Emit, size: Sizes, *, generator: object = None, dtype: torch.dtype | None = None, layout: object = None,
        device: torch.device | None = None, pin_memory: object = None,
    ) -> Node:  # fmt: skip
        refuse_generator(distribution, generator)
        return draw(e, distribution, params, tuple(size), dtype or torch.get_default_dtype(), eager_device(device))

    return rule


def _fresh_like(distribution: str, *params: Attr) -> Decomposition:
    def rule(
        e: Emit, x: Node, *bounds: Int, dtype: torch.dtype | None = None, layout: object = None,
        device: torch.device | None = None, pin_memory: object = None, memory_format: torch.memory_format | None = None,
    ) -> Node:  # fmt: skip
        spec = x.tensor
        where = device_like(device, spec)
        values = params or (bounds if len(bounds) == 2 else (0, *bounds))
        made = draw(e, distribution, values, spec.sizes, dtype or spec.dtype, where)
        return relaid(e, made, strides_for(e, spec, memory_format))

    return rule


for _name, _distribution in (("rand", "uniform"), ("randn", "normal")):
    for _overload in ("default", "generator"):
        DECOMPOSITIONS[f"{_name}.{_overload}"] = _fresh(_distribution, 0.0, 1.0)
    DECOMPOSITIONS[f"{_name}_like.default"] = _fresh_like(_distribution, 0.0, 1.0)
DECOMPOSITIONS["randint_like.default"] = _fresh_like("randint")
DECOMPOSITIONS["randint_like.low_dtype"] = _fresh_like("randint")


@decompose("randint.default", "randint.low", "randint.generator", "randint.low_generator")
def randint(
    e: Emit, *bounds: Int | Sizes, generator: object = None, dtype: torch.dtype | None = None, layout: object = None,
    device: torch.device | None = None, pin_memory: object = None,
) -> Node:  # fmt: skip
    """Arguments are (high, size) or (low, high, size)."""
    refuse_generator("randint", generator)
    *limits, size = bounds
    low, high = cast(Sequence[Int], limits if len(limits) == 2 else (0, *limits))
    return draw(e, "randint", (low, high), tuple(cast(Sizes, size)), dtype or torch.int64, eager_device(device))


@decompose("normal.float_float")
def normal(
    e: Emit, mean: float, std: float, size: Sizes, *, generator: object = None, dtype: torch.dtype | None = None,
    layout: object = None, device: torch.device | None = None, pin_memory: object = None,
) -> Node:  # fmt: skip
    refuse_generator("normal", generator)
    return draw(e, "normal", (mean, std), tuple(size), dtype or torch.get_default_dtype(), eager_device(device))


# Dropout as a single op, on CUDA; on the CPU it is recorded in parts.


@decompose("native_dropout.default")
def native_dropout(e: Emit, x: Node, p: float, train: bool | None) -> tuple[Node, Node]:
    spec = x.tensor
    if train is False or p == 0:
        return copy(e, x), e.full(True, spec.sizes, torch.bool, spec.device)
    mask = draw_like(e, spec, "bernoulli", 1 - p, dtype=torch.bool)
    mask = relaid(e, mask, e.preserved_strides(spec))
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return native_dropout_backward(e, x, mask, scale), mask


@decompose("native_dropout_backward.default")
def native_dropout_backward(e: Emit, grad: Node, mask: Node, scale: float) -> Node:
    if not grad.tensor.dtype.is_floating_point:
        grad = e.convert(grad, torch.get_default_dtype())  # as a product with a float
    return e.pointwise("mul", e.pointwise("mul", grad, e.convert(mask, grad.tensor.dtype)), scale)
