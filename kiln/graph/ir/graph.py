"""The graph IR: nodes in order, functional, with the effects on the outside as data.

    graph(%0: f32[4, 8] "x", %1: f32[8] "self.bias"):
        %2: f32[4, 8] = add(%0, %1)
        %3: f32[4, 8] = relu(%2)
        write %0 <- %3
        return %3 is input 0, %2

What the region does besides computing is in `writes` (new contents of inputs, applied in order at
the end) and in `Output.alias` (outputs that share memory with an input or an earlier output).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

from kiln.graph.ir.node import Node
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Alias:
    """An output is a view of an input or of an earlier output: rebuilt outside the compiled code.

    `view` gives sizes, strides and offset over that tensor's storage; None: the very same object.
    """

    of: Literal["input", "output"]
    index: int
    view: TensorSpec | None = None


@final
@dataclass(frozen=True, slots=True)
class Output:
    """One result of a graph. `value` is kept for aliases too (an interpreter needs it).

    `requires_grad` is eager's answer for this output.
    """

    value: Node
    alias: Alias | None = None
    requires_grad: bool = False

    def renumbered(self, inputs: Mapping[int, int]) -> Output:
        """The same result of a graph whose inputs have these new numbers."""
        if self.alias is None or self.alias.of == "output":
            return self
        return replace(self, alias=replace(self.alias, index=inputs[self.alias.index]))


@final
@dataclass(frozen=True, slots=True)
class Write:
    """The contents of input `target` become `value` (same sizes)."""

    target: Node
    value: Node


@final
@dataclass(slots=True)
class Graph:
    """A functional graph; `nodes` are in an order in which each input stands before its use.

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
        """The nodes that must be kept: outputs and written values."""
        for output in self.outputs:
            yield output.value
        for write in self.writes:
            yield write.value
