"""Random graphs of views, arithmetic, reductions and draws, and a backend that takes some of their nodes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Alias, Graph, Output, Write
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.offload.part import GraphPart
from kiln.graph.prims.table import Kind
from kiln.runtime.offloaded import PartRun
from kiln.tensor.spec import CPU, TensorSpec

F32 = torch.float32
ROWS, COLUMNS = 4, 6


def random_graph(seed: int, count: int = 24) -> Graph:
    """All values are of 4 x 6 or 6 x 4 numbers."""
    draw, b = random.Random(seed), Builder(GuardFreeOracle())
    values = [b.input(f"x{number}", TensorSpec(F32, (ROWS, COLUMNS), (COLUMNS, 1))) for number in range(3)]
    for _ in range(count):
        values.append(random_node(draw, b, values))
    results = draw.sample(values[3:], 4)
    outputs = [Output(value) for value in results]
    if any(value is base for value in results[1:] for base in [results[0]]):
        raise AssertionError("sample draws each value once")
    outputs.append(Output(b.inputs[0], Alias("input", 0)))
    writes = [Write(b.inputs[1], value) for value in values[3:] if value.tensor.sizes == (ROWS, COLUMNS)][-1:]
    return b.finish(outputs, writes)


def random_node(draw: random.Random, b: Builder, values: Sequence[Node]) -> Node:
    x = draw.choice(values)
    same = [value for value in values if value.tensor.sizes == x.tensor.sizes]
    match draw.randrange(9):
        case 0:
            return b.node("permute", x, dims=(1, 0))
        case 1:
            return b.node("mul", x, b.constant(draw.choice((0.5, -1.0, 2.0)), F32, CPU))
        case 2:
            kept = b.node("sum", x, axes=(1,))
            return b.node("expand", b.node("unsqueeze", kept, axis=1), sizes=x.tensor.sizes)
        case 3:
            return b.node("cumsum", x, axis=draw.randrange(2))
        case 4:
            sizes = x.tensor.sizes
            first = b.node("slice", x, axis=0, start=0, stop=2, step=1)
            second = b.node("slice", x, axis=0, start=2, stop=sizes[0], step=1)
            return b.node("cat", second, first, axis=0)
        case 5:
            attrs = {"distribution": "uniform", "params": (0.0, 1.0), "sizes": x.tensor.sizes}
            noise = b.node("random", b.node("random_seed", device=CPU), dtype=F32, device=CPU, **attrs)
            return b.node("add", x, noise)
        case 6:
            return b.node("tanh", x)
    return b.node(draw.choice(("add", "mul", "maximum")), x, draw.choice(same))


@final
class Interpreting:
    """Takes each node by chance, and runs parts through the reference interpreter."""

    name = "interpreting"

    def __init__(self, seed: int, share: float) -> None:
        self.draw, self.share = random.Random(seed), share
        self.parts: list[GraphPart] = []

    def refusal(self, node: Node) -> str:
        return "by chance" if self.draw.random() >= self.share else ""

    def compile(self, part: GraphPart) -> PartRun:
        self.parts.append(part)
        symbols = part.symbols

        def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
            found = interpret(part.graph, list(tensors), dict(zip(symbols, sizes, strict=True)), part.constants)
            return [value.clone() for value in found.outputs if isinstance(value, torch.Tensor)]

        return run


def computes(node: Node) -> bool:
    return node.op.kind is not Kind.VIEW and bool(node.inputs)
