"""What a backend of graphs is, and what it gets.

class Doubling:
    name = "doubling"

    def refusal(self, node):
        return "" if node.op.name == "add" else "only add"

    def compile(self, part):
        return lambda tensors, sizes: interpret(part.graph, tensors, dict(zip(part.symbols, sizes))).outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, final, runtime_checkable

import torch

from kiln.runtime.offloaded import PartRun
from kiln.support.late import late
from kiln.support.records import dataclass
from kiln.support.target import KernelLanguage
from kiln.symbolic import Symbol

if TYPE_CHECKING:
    from kiln.graph.ir.graph import Graph
    from kiln.graph.ir.node import Node
    from kiln.graph.ir.text import graph_text
else:
    graph_text = late("kiln.graph.ir.text", "graph_text")

Direction = Literal["", "forward", "backward", "step", "check", "redraw"]
"""Of a graph: "" without gradients; "step" is a backward and what follows it in one region, "check" a speculation."""


@final
@dataclass(frozen=True, slots=True)
class GraphPart:
    """A convex part of a graph, as a graph of its own, without writes and aliases.

    `symbols`: those in its nodes. `hints`: their values in the call that is compiled, as far as there are any.
    """

    graph: Graph
    symbols: tuple[Symbol, ...]
    hints: Mapping[Symbol, int]
    constants: Mapping[str, torch.Tensor]
    direction: Direction = ""

    def hidden_symbols(self) -> tuple[Symbol, ...]:
        """Those that no input has as a size."""
        sizes = {size for node in self.graph.inputs for size in node.tensor.sizes}
        return tuple([symbol for symbol in self.symbols if symbol not in sizes])

    def text(self) -> str:
        return graph_text(self.graph, origins=False)


@runtime_checkable
class GraphBackend(Protocol):
    """Compiles parts of Kiln's graphs. `kiln.compile(backend=...)` takes one, by name or as an object."""

    @property
    def name(self) -> str: ...

    def refusal(self, node: Node, /) -> str:
        """Why it does not take the node; "" if it does. Its inputs and results are dense tensors of one device."""
        ...

    def compile(self, part: GraphPart, /) -> PartRun:
        """Compile a part of which it takes every node. Raises KilnError."""
        ...


TorchBackend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., object]]
"""(graph of torch calls, example inputs) -> callable of the same inputs."""
OtherCompiler = TorchBackend | GraphBackend
Backend = OtherCompiler | KernelLanguage
