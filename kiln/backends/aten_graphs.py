"""Forward and backward as ATen graphs, for compilers that were written for AOTAutograd.

    def show(module: torch.fx.GraphModule, example_inputs):
        module.print_readable()
        return module.forward

    kiln.compile(model, backend=kiln.backends.aot(fw_compiler=show, bw_compiler=show))

Inputs are the values that the graph reads (parameters among them), then the sizes that no input has. Branches, loops,
random numbers and what reads numbers on the host stay in Kiln's plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.offload.part import GraphPart, TorchBackend
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.runtime.offloaded import PartRun
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, evaluate
from kiln.tensor.spec import ScalarSpec, TensorSpec

AtenCompiler = TorchBackend
"""(graph of ATen overloads, example inputs) -> callable of the same inputs, or of a list of them (`_boxed_call`)."""
UNKNOWN_SIZE = 2
"""In example inputs, of a size without a value in the call that is compiled."""


def aot(fw_compiler: AtenCompiler, bw_compiler: AtenCompiler | None = None) -> AotBackend:
    """A backend for `kiln.compile`; backward graphs go to `bw_compiler` (default: to `fw_compiler` too)."""
    return AotBackend(fw_compiler, bw_compiler or fw_compiler)


@final
@dataclass(frozen=True)
class AotBackend:
    """Made by `aot`."""

    fw_compiler: AtenCompiler
    bw_compiler: AtenCompiler
    name: str = "aot"

    def refusal(self, node: Node) -> str:
        return "torch.fx has no form of it" if node.op.kind is Kind.NESTED else ""

    def compile(self, part: GraphPart) -> PartRun:
        hidden = part.hidden_symbols()
        compiler = self.bw_compiler if part.direction == "backward" else self.fw_compiler
        compiled = compiler(fx_view(with_size_inputs(part.graph, hidden), part.constants), example_inputs(part))
        boxed, places = getattr(compiled, "_boxed_call", False), [part.symbols.index(symbol) for symbol in hidden]

        def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
            inputs = [*tensors, *[sizes[place] for place in places]]
            results = compiled(inputs) if boxed else compiled(*inputs)
            return [results] if isinstance(results, torch.Tensor) else results  # type: ignore[return-value]

        return run


def with_size_inputs(graph: Graph, symbols: Sequence[Symbol]) -> Graph:
    """The graph with an integer input for each symbol."""
    first = len(graph.inputs)
    sizes = [
        Node(PRIMS["input"], (), {"index": first + number, "name": symbol.name}, ScalarSpec(int, symbol))
        for number, symbol in enumerate(symbols)
    ]
    return Graph((*graph.inputs, *sizes), graph.nodes, graph.outputs)


def example_inputs(part: GraphPart) -> list[torch.Tensor | int]:
    """Zeros in the layout of the call that is compiled."""
    hints = {symbol: part.hints.get(symbol, UNKNOWN_SIZE) for symbol in part.symbols}
    tensors = [zeros(node.tensor, lambda size: evaluate(size, hints)) for node in part.graph.inputs]
    return [*tensors, *[hints[symbol] for symbol in part.hidden_symbols()]]


def zeros(spec: TensorSpec, number: Callable[[Int], int]) -> torch.Tensor:
    """Of this layout; `number` says what a size is."""
    memory = torch.zeros(number(spec.storage_elements()), dtype=spec.dtype, device=spec.device)
    return memory.as_strided(list(map(number, spec.sizes)), list(map(number, spec.strides)), number(spec.offset))
