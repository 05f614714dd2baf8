"""Random numbers: counter-based, each draw by a seed of its own, those of a device computed from one pair per run.

    s = random_seed()                        b0: i64[2] = extern kiln.random_seed(cpu, 2)
    t = random_seed()                   =>   b1: i64[2] = pointwise (i0: 2): b0[0] + (b0[1] + i0) * 0x9E3779B97F4A7C15
    x = random(t, uniform, (4, 8))           b2, b3 = the elements of b1
                                             random_uniform(load b3[], 8*i0 + i1)

`kiln.random_seed` draws (seed, offset) from torch's generator and advances its offset, so two runs differ and a seed
repeats them. A kernel gets the memory of its seed, not a number: equal layers that draw share their kernels. A single
seed is computed where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.loops.body.body import Index
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import ELEMENT
from kiln.loops.lowering.errors import NoLowering
from kiln.loops.lowering.in_place import Buffers
from kiln.loops.lowering.indexing import linear, loop_axes
from kiln.loops.program.nodes import Buffer, Extern, Pointwise
from kiln.symbolic import Expr, Int
from kiln.tensor.spec import TensorSpec

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 / golden ratio as int64: neighbouring offsets give seeds that are far apart."""
_WIDE = torch.int64
Number = Int | float


@final
class Seeds:
    """The seeds of one lowering. `pairs`: what is drawn from torch's generator, by device."""

    def __init__(self, lowering: Buffers) -> None:
        self.lowering = lowering
        self.pairs: dict[torch.device, Buffer] = {}

    def draw(self, nodes: Iterable[Node]) -> None:
        """Before everything else runs."""
        found: dict[torch.device, list[Node]] = {}
        for node in nodes:
            if node.op.kind is Kind.RANDOM:
                found.setdefault(node.tensor.device, []).append(node)
        for device, seeds in found.items():
            pair = self.pairs[device] = self.lowering.new_buffer(TensorSpec(_WIDE, (2,), (1,), 0, device))
            self.lowering.emit(Extern((pair,), "kiln.random_seed", (device, len(seeds))))
            if len(seeds) > 1:
                self._spread(seeds, device)

    def _spread(self, seeds: list[Node], device: torch.device) -> None:
        """A seed for each of the nodes, in one buffer."""
        lowering = self.lowering
        spec = TensorSpec(_WIDE, (len(seeds),), (1,), 0, device)
        axes = loop_axes(spec.sizes)
        body = lowering.body(axes)
        whole = lowering.new_buffer(spec)
        lowering.emit(Pointwise(whole, axes, body.finish(seed_at(body, device, axes[0].symbol))))
        for number, node in enumerate(seeds):
            made = lowering.buffers[node] = lowering.new_buffer(node.tensor.with_view((), (), number), whole.name)
            lowering.emit(Extern((made,), "kiln.view", ()))


def seed_at(body: Body, device: torch.device, number: Int) -> int:
    """Place of seed + (offset + number) * GOLDEN."""
    builder, pair = body.builder, body.elements.seed_pair(device)
    first, offset = (builder.load(pair, (position,), _WIDE, None) for position in (0, 1))
    if number != 0:
        offset = builder.pointwise(PRIMS["add"], _WIDE, offset, builder.index(number, _WIDE))
    scattered = builder.pointwise(PRIMS["mul"], _WIDE, offset, builder.constant(GOLDEN, _WIDE))
    return builder.pointwise(PRIMS["add"], _WIDE, first, scattered)


@ELEMENT("random_seed")
def random_seed(body: Body, node: Node, index: Index, mask: int | None) -> int:
    return seed_at(body, node.tensor.device, 0)


@ELEMENT("random")
def random(body: Body, node: Node, index: Index, mask: int | None) -> int:
    spec, params, (seed, *chances) = node.tensor, node.attrs["params"], node.inputs
    dtype = torch.float64 if spec.dtype == torch.float64 else torch.float32
    draw = Draw(body, body.element(seed, ()), linear(index, spec.sizes), dtype)
    if chances:
        limit = body.broadcast_element(chances[0], index, spec.sizes, mask)
        value = draw.below(body.builder.convert(limit, dtype))
    else:
        rule = DISTRIBUTIONS.get(node.attrs["distribution"])
        if rule is None:
            raise NoLowering(op="random", problem=f"there is no distribution {node.attrs['distribution']}")
        value = rule(draw, *params)
    return body.builder.pointwise(PRIMS["convert"], spec.dtype, value)


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
