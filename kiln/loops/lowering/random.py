"""Randomness: counter-based numbers, one stream per run of the region.

random(uniform, sizes=(4, 8))   =>   b0: i64[2] = extern kiln.random_seed(cpu, 32)
                                     random_uniform(key, 8*i0 + i1) with key = b0[0] + b0[1] * 0x9E3779B97F4A7C15

`kiln.random_seed` draws (seed, offset) from torch's generator and moves its offset on, so two runs differ and a seed
repeats them. Every random node of a region has its own counters; a random value that is inlined twice is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import Index
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import ELEMENT
from kiln.loops.lowering.errors import NoLowering
from kiln.loops.lowering.indexing import linear
from kiln.symbolic import Int

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 / golden ratio as int64: neighbouring offsets give keys that are far apart."""
_WIDE = torch.int64


@ELEMENT("random")
def random(body: Body, node: Node, index: Index, mask: int | None) -> int:
    spec, params = node.tensor, node.attrs["params"]
    seed, start = body.elements.random_stream(node)
    draw = Draw(body, key(body, seed), start + linear(index, spec.sizes), _computed_in(spec.dtype))
    if node.inputs:
        p = node.inputs[0]
        below = body.broadcast_element(p, index, spec.sizes, mask)
        value = draw.below(draw.convert(below))
    else:
        rule = DISTRIBUTIONS.get(node.attrs["distribution"])
        if rule is None:
            raise NoLowering(op="random", problem=f"there is no distribution {node.attrs['distribution']}")
        value = rule(draw, *params)
    return body.builder.pointwise(PRIMS["convert"], spec.dtype, value)


def key(body: Body, seed: str) -> int:
    """Place of seed + offset * GOLDEN."""
    builder = body.builder
    first, offset = (builder.load(seed, (place,), _WIDE, None) for place in (0, 1))
    scattered = builder.pointwise(PRIMS["mul"], _WIDE, offset, builder.constant(GOLDEN, _WIDE))
    return builder.pointwise(PRIMS["add"], _WIDE, first, scattered)


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class Draw:
    """One random number at one counter, and arithmetic on it."""

    def __init__(self, body: Body, key: int, counter: Int, dtype: torch.dtype) -> None:
        self.body, self.key, self.counter, self.dtype = body, key, counter, dtype

    def number(self, distribution: str) -> int:
        return self.body.builder.random(distribution, self.key, self.counter, self.dtype)

    def constant(self, value: Any) -> int:
        if isinstance(value, bool | int | float):
            return self.body.builder.constant(float(value), self.dtype)
        return self.body.builder.index(value, self.dtype)

    def apply(self, op: str, *operands: int, dtype: torch.dtype | None = None) -> int:
        return self.body.builder.pointwise(PRIMS[op], dtype or self.dtype, *operands)

    def convert(self, operand: int) -> int:
        return self.apply("convert", operand)

    def scaled(self, number: int, factor: Any, start: Any) -> int:
        return self.apply("add", self.apply("mul", number, self.constant(factor)), self.constant(start))

    def below(self, limit: int) -> int:
        """A uniform number is less than `limit`: true with that probability."""
        return self.apply("lt", self.number("uniform"), limit, dtype=torch.bool)


def _uniform(draw: Draw, low: Any, high: Any) -> int:
    return draw.scaled(draw.number("uniform"), high - low, low)


def _normal(draw: Draw, mean: Any, std: Any) -> int:
    return draw.scaled(draw.number("normal"), std, mean)


def _bernoulli(draw: Draw, p: Any) -> int:
    return draw.below(draw.constant(p))


def _randint(draw: Draw, low: Any, high: Any) -> int:
    """In double precision: exact for ranges below 2^53, and for them as even as 53 random bits are."""
    wide = Draw(draw.body, draw.key, draw.counter, torch.float64)
    number = wide.apply("floor", wide.scaled(wide.number("uniform"), high - low, low))
    return draw.body.builder.pointwise(PRIMS["convert"], _WIDE, number)


def _exponential(draw: Draw, rate: Any) -> int:
    complement = draw.apply("neg", draw.number("uniform"))
    return draw.scaled(draw.apply("log1p", complement), -1.0 / rate, 0.0)


DISTRIBUTIONS: Mapping[str, Callable[..., int]] = {
    "uniform": _uniform,
    "normal": _normal,
    "bernoulli": _bernoulli,
    "randint": _randint,
    "exponential": _exponential,
}
