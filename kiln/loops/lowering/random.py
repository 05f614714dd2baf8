"""Random numbers: counter-based, with one (seed, offset) per device and run of the region.

    random(uniform, sizes=(4, 8))   =>   b0: i64[2] = extern kiln.random_seed(cpu, 32)
                                         random_uniform(key, 8*i0 + i1) with key = b0[0] + b0[1] * 0x9E3779B97F4A7C15

`kiln.random_seed` draws (seed, offset) from torch's generator and advances its offset, so two runs differ and a seed
repeats them. Every random node of a region has its own counters; a random value that is inlined twice is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import Index
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import ELEMENT
from kiln.loops.lowering.errors import NoLowering
from kiln.loops.lowering.indexing import linear
from kiln.loops.program.nodes import Buffer, Extern
from kiln.symbolic import Expr, Int
from kiln.tensor.spec import TensorSpec

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 / golden ratio as int64: neighbouring offsets give keys that are far apart."""
_WIDE = torch.int64
Number = Int | float


@final
class RandomStreams:
    """The seeds of one lowering by device, and the counters of its random nodes."""

    def __init__(self, new_buffer: Callable[[TensorSpec], Buffer]) -> None:
        self.new_buffer = new_buffer
        self._seeds: dict[torch.device, Buffer] = {}
        self._counters: dict[Node, Int] = {}
        self._drawn: Int = 0

    def of(self, node: Node) -> tuple[str, Int]:
        """The buffer of (seed, offset) and the first counter of a random node."""
        spec = node.tensor
        if spec.device not in self._seeds:
            self._seeds[spec.device] = self.new_buffer(TensorSpec(torch.int64, (2,), (1,), 0, spec.device))
        if node not in self._counters:
            self._counters[node] = self._drawn
            self._drawn = self._drawn + spec.numel()
        return self._seeds[spec.device].name, self._counters[node]

    def draws(self) -> list[Extern]:
        """Calls that draw the seeds, before everything else runs."""
        return [Extern((buffer,), "kiln.random_seed", (device, self._drawn)) for device, buffer in self._seeds.items()]


@ELEMENT("random")
def random(body: Body, node: Node, index: Index, mask: int | None) -> int:
    spec, params = node.tensor, node.attrs["params"]
    seed, start = body.elements.random_stream(node)
    dtype = torch.float64 if spec.dtype == torch.float64 else torch.float32
    draw = Draw(body, key(body, seed), start + linear(index, spec.sizes), dtype)
    if node.inputs:
        limit = body.broadcast_element(node.inputs[0], index, spec.sizes, mask)
        value = draw.below(body.builder.convert(limit, dtype))
    else:
        rule = DISTRIBUTIONS.get(node.attrs["distribution"])
        if rule is None:
            raise NoLowering(op="random", problem=f"there is no distribution {node.attrs['distribution']}")
        value = rule(draw, *params)
    return body.builder.pointwise(PRIMS["convert"], spec.dtype, value)


def key(body: Body, seed: str) -> int:
    """Place of seed + offset * GOLDEN."""
    builder = body.builder
    first, offset = (builder.load(seed, (position,), _WIDE, None) for position in (0, 1))
    scattered = builder.pointwise(PRIMS["mul"], _WIDE, offset, builder.constant(GOLDEN, _WIDE))
    return builder.pointwise(PRIMS["add"], _WIDE, first, scattered)


class Draw:
    """One random number at one counter, and arithmetic on it."""

    def __init__(self, body: Body, key: int, counter: Int, dtype: torch.dtype) -> None:
        self.body, self.key, self.counter, self.dtype = body, key, counter, dtype

    def number(self, distribution: str) -> int:
        return self.body.builder.random(distribution, self.key, self.counter, self.dtype)

    def constant(self, value: Number) -> int:
        if isinstance(value, Expr):
            return self.body.builder.index(value, self.dtype)
        return self.body.builder.constant(float(value), self.dtype)

    def apply(self, op: str, *operands: int, dtype: torch.dtype | None = None) -> int:
        return self.body.builder.pointwise(PRIMS[op], dtype or self.dtype, *operands)

    def scaled(self, number: int, factor: Number, start: Number) -> int:
        return self.apply("add", self.apply("mul", number, self.constant(factor)), self.constant(start))

    def below(self, limit: int) -> int:
        """A uniform number is less than `limit`: true with that probability."""
        return self.apply("lt", self.number("uniform"), limit, dtype=torch.bool)


def _randint(draw: Draw, low: Int, high: Int) -> int:
    """In double precision: exact for ranges below 2^53, and for them as even as 53 random bits are."""
    wide = Draw(draw.body, draw.key, draw.counter, torch.float64)
    number = wide.apply("floor", wide.scaled(wide.number("uniform"), high - low, low))
    return draw.body.builder.pointwise(PRIMS["convert"], _WIDE, number)


DISTRIBUTIONS: Mapping[str, Callable[..., int]] = {
    "uniform": lambda draw, low, high: draw.scaled(draw.number("uniform"), high - low, low),
    "normal": lambda draw, mean, std: draw.scaled(draw.number("normal"), std, mean),
    "bernoulli": lambda draw, p: draw.below(draw.constant(p)),
    "exponential": lambda draw, rate: draw.scaled(
        draw.apply("log1p", draw.apply("neg", draw.number("uniform"))), -1.0 / rate, 0.0
    ),
    "randint": _randint,
}
