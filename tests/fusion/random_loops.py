"""Random loop programs: chains of pointwise nodes, reductions and scans that read each other through views."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import Index
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis
from kiln.loops.program.nodes import Buffer, LoopOutput, LoopProgram, Pointwise, ReduceOp, Reduction, Scan
from kiln.symbolic import Int, Symbol, product, symbol
from kiln.tensor.spec import TensorSpec, contiguous_strides

F32 = torch.float32
REDUCTIONS = (ReduceOp.SUM, ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN)
S0 = symbol("s0")


SMALL, LARGE = (2, 3, 4, 6, 8, 12, 40), (1, 8, 48, 100, 1000, 4096, 30000)


def random_program(seed: int, *, symbolic: bool = False, nodes: int = 9, pool: tuple[int, ...] = SMALL) -> LoopProgram:
    """A program over three sizes of `pool`; with `symbolic` one of them is the size s0."""
    return _Maker(random.Random(seed), symbolic, nodes, pool).program()


@final
class _Maker:
    def __init__(self, draw: random.Random, symbolic: bool, nodes: int, pool: tuple[int, ...]) -> None:
        self.draw, self.count, self.symbolic = draw, nodes, symbolic
        self.sizes: list[Int] = [S0 if symbolic else draw.choice(pool), *draw.sample(pool, 2)]
        self.buffers: list[Buffer] = []

    def program(self) -> LoopProgram:
        inputs: list[Buffer | Symbol] = [S0] if self.symbolic else []
        for place in range(3):
            inputs.append(self._buffer(f"x{place}", self._shape(), strided=True))
        nodes = [self._node(f"b{place}") for place in range(self.count)]
        written = [node.out.name for node in nodes]
        kept = {written[-1], *self.draw.sample(written, 2)}
        outputs = tuple(LoopOutput(buffer=name) for name in sorted(kept))
        return LoopProgram("random", tuple(inputs), (), tuple(nodes), outputs, ())

    def _shape(self) -> tuple[Int, ...]:
        return tuple(self.draw.sample(self.sizes, self.draw.choice((1, 2, 2, 3))))

    def _buffer(self, name: str, sizes: tuple[Int, ...], *, strided: bool = False) -> Buffer:
        order = list(range(len(sizes)))
        if self.draw.random() < 0.3:
            self.draw.shuffle(order)
        dense = contiguous_strides(tuple(sizes[place] for place in order))
        strides: list[Int] = [0] * len(sizes)
        for place, stride in zip(order, dense, strict=True):
            strides[place] = stride * (2 if strided and self.draw.random() < 0.1 else 1)
        buffer = Buffer(name, TensorSpec(F32, sizes, tuple(strides)))
        self.buffers.append(buffer)
        return buffer

    def _node(self, name: str) -> Pointwise | Reduction | Scan:
        kind = self.draw.random()
        sizes = self._shape()
        axes = tuple(Axis(symbol(f"i{place}"), size) for place, size in enumerate(sizes))
        builder = BodyBuilder()
        value = self._value(builder, axes)
        body = builder.finish(value)
        if kind < 0.5 or (kind < 0.9 and len(axes) == 1 and self.draw.random() < 0.7):
            return Pointwise(self._buffer(name, sizes), axes, body)
        if kind < 0.93:
            gone = set(self.draw.sample(range(len(axes)), self.draw.choice((1, 1, len(axes)))))
            kept = tuple(axis for place, axis in enumerate(axes) if place not in gone)
            reduced = tuple(axis for place, axis in enumerate(axes) if place in gone)
            op = self.draw.choice(REDUCTIONS)
            return Reduction(self._buffer(name, tuple(axis.size for axis in kept)), kept, reduced, op, body)
        return Scan(self._buffer(name, sizes), axes, self.draw.randrange(len(axes)), ReduceOp.SUM, body)

    def _value(self, builder: BodyBuilder, axes: tuple[Axis, ...]) -> int:
        terms = [self._load(builder, axes) for _ in range(self.draw.choice((1, 2, 2, 3)))]
        value = terms[0]
        for term in terms[1:]:
            value = builder.pointwise(PRIMS[self.draw.choice(("add", "sub", "maximum"))], F32, value, term)
        if self.draw.random() < 0.4:
            value = builder.pointwise(PRIMS[self.draw.choice(("tanh", "neg", "sigmoid"))], F32, value)
        return value

    def _load(self, builder: BodyBuilder, axes: tuple[Axis, ...]) -> int:
        """A load of a recent buffer through the axes of equal size, or through a regrouped view."""
        candidates = self.buffers[-5:] if self.draw.random() < 0.8 else self.buffers
        buffer = self.draw.choice(candidates)
        index = self._regrouped(buffer, axes) or self._by_size(buffer, axes)
        return builder.load(buffer.name, index, F32)

    def _by_size(self, buffer: Buffer, axes: tuple[Axis, ...]) -> Index:
        index: list[Int] = []
        used: set[Symbol] = set()
        for size in buffer.spec.sizes:
            fitting = [axis.symbol for axis in axes if axis.size == size and axis.symbol not in used]
            at: Int = self.draw.choice(fitting) if fitting else 0
            used |= {at} if isinstance(at, Symbol) else set()
            index.append(at)
        return tuple(index)

    def _regrouped(self, buffer: Buffer, axes: tuple[Axis, ...]) -> Index | None:
        """The buffer viewed in the sizes of the axes, if the numbers of elements are equal."""
        sizes = buffer.spec.sizes
        if product(sizes) != product(axis.size for axis in axes) or sizes == tuple(axis.size for axis in axes):
            return None
        linear: Int = 0
        for axis in axes:
            linear = linear * axis.size + axis.symbol
        return _unravelled(linear, sizes)


def _unravelled(linear: Int, sizes: Sequence[Int]) -> Index:
    index: list[Int] = []
    for size in reversed(sizes):
        index.append(linear % size)
        linear = linear // size
    return tuple(reversed(index))
