"""The graph IR: functional nodes in order, with effects as data.

    graph(%0: f32[4, 8] "x", %1: f32[8] "self.bias"):
        %2: f32[4, 8] = add(%0, %1)
        %3: f32[4, 8] = relu(%2)
        write %0 <- %3
        return %3 is input 0, %2

Effects of the region are data: `writes` (new contents of inputs, applied in order at the end) and `Output.alias`
(outputs that share memory with an input or an earlier output).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, final

from kiln.graph.ir.node import Node
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Alias:
    """An output that is a view of an input or of an earlier output: rebuilt outside the compiled code.

    `view` has sizes, strides and offset over that tensor's storage; None: the output is that tensor itself.
    """

    of: Literal["input", "output"]
    index: int
    view: TensorSpec | None = None


@final
@dataclass(frozen=True, slots=True)
class Output:
    """A result of a graph. Aliases have a `value` too, for the interpreter. `requires_grad` is that of eager, and
    `versions` how often eager has changed memory that is made here."""

    value: Node
    alias: Alias | None = None
    requires_grad: bool = False
    versions: int = 0

    def renumbered(self, inputs: Mapping[int, int]) -> Output:
        """The output for new numbers of the graph's inputs."""
        if self.alias is None or self.alias.of == "output":
            return self
        return replace(self, alias=replace(self.alias, index=inputs[self.alias.index]))


@final
@dataclass(frozen=True, slots=True)
class Write:
    """The contents of input `target` become `value` (same sizes). `versions`: how often eager raises its version, which
    a write through `.data` does not."""

    target: Node
    value: Node
    versions: int = 1


@final
@dataclass(slots=True)
class Graph:
    """A functional graph; `nodes` are in topological order.

    `inputs` are the `input` nodes in the order of the arguments; they are not in `nodes`.
    """

    inputs: tuple[Node, ...]
    nodes: list[Node]
    outputs: tuple[Output, ...]
    writes: tuple[Write, ...] = ()
    name: str = "graph"

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def roots(self) -> Iterator[Node]:
        """The values of outputs and writes."""
        for output in self.outputs:
            yield output.value
        for write in self.writes:
            yield write.value
