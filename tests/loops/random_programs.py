"""Random graphs: chains of pointwise ops, views, moves and reductions over small odd shapes.

graph, inputs = random_program(seed)
graph, inputs = random_program(seed, symbolic=True)      some sizes are symbols
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from kiln.graph.ir.node import Node
from kiln.symbolic import Int
from tests.loops.programs import Env, Made

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 17)
UNARY = ("tanh", "sin", "neg", "sigmoid", "abs", "erf")
BINARY = ("add", "sub", "mul", "maximum")


class Maker:
    """Grows one graph from a seed."""

    def __init__(self, seed: int, symbolic: bool = False) -> None:
        self.env, self.random, self.symbolic = Env(), random.Random(seed), symbolic
        self.symbols: dict[int, Int] = {}
        torch.manual_seed(seed)
        self.values: list[Node] = []
        for _ in range(2):
            sizes = [self.size(self.random.choice(SIZES)) for _ in range(self.random.randint(1, 4))]
            self.values.append(self._input(sizes))

    def size(self, number: int) -> Int:
        """`number`, or the symbol that has it as its hint."""
        if not self.symbolic or number < 4:
            return number
        if number not in self.symbols:
            self.symbols[number] = self.env.size(number)
        return self.symbols[number]

    def hint(self, size: Int) -> int:
        return self.env.shapes.hint(size)

    def _input(self, sizes: list[Int]) -> Node:
        if not self.symbolic and len(sizes) > 1 and self.random.random() < 0.3:
            order = self.random.sample(range(len(sizes)), len(sizes))
            stored = torch.randn([sizes[axis] for axis in order])
            return self.env.real(stored.permute([order.index(axis) for axis in range(len(order))]))
        return self.env.tensor(*sizes)

    def pick(self) -> Node:
        return self.random.choice(self.values[-5:])

    def axis(self, x: Node) -> int:
        return self.random.randrange(x.tensor.rank)

    def step(self) -> Node:
        x = self.pick()
        steps: list[Callable[[Node], Node]] = [self.unary, self.binary, self.fresh_operand]
        if x.tensor.rank:
            steps += [self.reduce, self.centre, self.slice, self.cat, self.pad, self.flip, self.gather, self.scan]
            steps += [self.permute, self.reshape, self.expand]
        return self.random.choice(steps)(x)

    def unary(self, x: Node) -> Node:
        return getattr(self.env, self.random.choice(UNARY))(x)

    def binary(self, x: Node) -> Node:
        same = [value for value in self.values if value.tensor.sizes == x.tensor.sizes]
        return getattr(self.env, self.random.choice(BINARY))(x, self.random.choice(same))

    def fresh_operand(self, x: Node) -> Node:
        sizes = [1 if self.random.random() < 0.3 else size for size in x.tensor.sizes]
        return self.env.add(x, self._input(sizes[self.random.randint(0, len(sizes)) :]))

    def reduce(self, x: Node) -> Node:
        axes = tuple(sorted(self.random.sample(range(x.tensor.rank), self.random.randint(1, x.tensor.rank))))
        return self.env.mul(self.env.sum(x, axes=axes), 0.25)

    def centre(self, x: Node) -> Node:
        axis = self.axis(x)
        if not self.hint(x.tensor.sizes[axis]):
            return self.unary(x)
        return self.env.sub(x, self.env.keep(self.env.amax(x, axes=(axis,)), axis))

    def slice(self, x: Node) -> Node:
        axis = self.axis(x)
        size = x.tensor.sizes[axis]
        start = self.random.randint(0, self.hint(size))
        return self.env.slice(x, axis=axis, start=start, stop=size, step=self.random.choice((1, 2)))

    def cat(self, x: Node) -> Node:
        axis = self.axis(x)
        return self.env.cat(x, self.env.tanh(x), x, axis=axis)

    def pad(self, x: Node) -> Node:
        low = tuple(self.random.choice((0, 1, 2, -1 if self.hint(size) > 2 else 0)) for size in x.tensor.sizes)
        high = tuple(self.random.choice((0, 1)) for _ in low)
        return self.env.pad(x, 0.5, low=low, high=high)

    def flip(self, x: Node) -> Node:
        return self.env.flip(x, axes=(self.axis(x),))

    def gather(self, x: Node) -> Node:
        axis = self.axis(x)
        size = self.hint(x.tensor.sizes[axis])
        if not size:
            return self.unary(x)
        numbers = self.env.real(torch.randint(-size, size, (self.random.choice(SIZES),)))
        return self.env.index(x, numbers, axes=(axis,))

    def scan(self, x: Node) -> Node:
        return self.env.cumsum(self.env.tanh(x), axis=self.axis(x))

    def permute(self, x: Node) -> Node:
        return self.env.permute(x, dims=tuple(self.random.sample(range(x.tensor.rank), x.tensor.rank)))

    def reshape(self, x: Node) -> Node:
        if self.symbolic:
            return self.merge(x)
        rest, sizes = int(x.tensor.numel()), []
        for size in (2, 3, 4, 5, 7):
            if rest and rest % size == 0 and self.random.random() < 0.6:
                sizes.append(size)
                rest //= size
        self.random.shuffle(sizes)
        return self.env.reshape(x, sizes=(*sizes, rest))

    def merge(self, x: Node) -> Node:
        """Two neighbouring dimensions become one, or are exchanged in order."""
        if x.tensor.rank < 2:
            return self.unary(x)
        axis = self.random.randrange(x.tensor.rank - 1)
        sizes = x.tensor.sizes
        return self.env.reshape(x, sizes=(*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]))

    def expand(self, x: Node) -> Node:
        if x.tensor.rank > 4:
            return self.unary(x)
        sizes = tuple(3 if size == 1 else size for size in x.tensor.sizes)
        return self.env.tanh(self.env.expand(x, sizes=(2, *sizes)))

    def finish(self) -> Made:
        outputs = {self.values[-1], *self.random.sample(self.values[2:], 2)}
        chosen = [value for value in self.values if value in outputs]
        made = [node if node.op.kind.name != "VIEW" else self.env.clone(node, strides=None) for node in chosen]
        return self.env.done(*made)


def random_program(seed: int, steps: int = 9, symbolic: bool = False) -> Made:
    maker = Maker(seed, symbolic)
    while len(maker.values) < steps + 2:
        made = maker.step()
        if maker.hint(made.tensor.numel()) < 20_000:
            maker.values.append(made)
    return maker.finish()
