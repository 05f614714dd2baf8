"""The smallest graph that still fails: fewer outputs, then inputs in place of computed values.

    graph(%0, %1):                        graph(%0 "value_3"):
        %2 = mm(%0, %1)                       %1 = sin(%0)
        %3 = exp(%2)              =>          return %1
        %4 = sin(%3)
        %5 = neg(%4)
        return %5, %2

    smallest(graph, inputs, constants, fails)      fails(graph, inputs) -> bool

New inputs have the values that the interpreter computes. Each trial compiles a graph: there are at most `TRIALS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import Interpreter, RuntimeValue
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import with_inputs, without_dead_code
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.pipeline.reproduce import Constants, with_tangents
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

TRIALS = 200  # graphs that are run; then the smallest so far is the answer
Fails = Callable[[Graph, Sequence[object]], bool]
Case = tuple[Graph, list[object]]


def smallest(graph: Graph, inputs: Sequence[object], constants: Constants, fails: Fails) -> Case:
    """A graph that fails, and its inputs; the given ones if they do not fail."""
    return _Reduction(constants, fails).run(graph, with_tangents(graph, inputs))


@final
@dataclass
class _Reduction:
    constants: Constants
    fails: Fails
    trials: int = 0
    values: dict[Node, RuntimeValue] = field(default_factory=dict)

    def run(self, graph: Graph, inputs: list[object]) -> Case:
        case = graph, inputs
        if not self.still_fails(case):
            return case
        case = self.single_output(case)
        while (smaller := self.with_another_input(case)) is not None:
            case = smaller
        return case

    def still_fails(self, case: Case) -> bool:
        self.trials += 1
        try:
            return self.trials <= TRIALS and self.fails(*case)
        except Exception:  # a graph that cannot be compiled is another fault
            return False

    def single_output(self, case: Case) -> Case:
        """The first value that fails as the only output."""
        graph, inputs = case
        for node in graph.nodes:
            if isinstance(node.spec, TensorSpec):
                smaller = trimmed(replace(graph, outputs=(Output(node),), writes=()), inputs)
                if self.still_fails(smaller):
                    return smaller
        return case

    def with_another_input(self, case: Case) -> Case | None:
        """With a computed value as an input, the one nearest to the outputs that can be."""
        graph, inputs = case
        values = computed(graph, inputs, self.constants)
        roots = {output.value for output in graph.outputs}
        for node in reversed(graph.nodes):
            value = values[node]
            if node in roots or not isinstance(node.spec, TensorSpec) or not isinstance(value, torch.Tensor):
                continue
            if not node.inputs and node.op.name == "constant":
                continue
            smaller = trimmed(*with_input(graph, inputs, node, value))
            if len(smaller[0].nodes) < len(graph.nodes) and self.still_fails(smaller):
                return smaller
        return None


def computed(graph: Graph, inputs: Sequence[object], constants: Constants) -> dict[Node, RuntimeValue]:
    """All values of the graph."""
    walk = Interpreter({}, constants, keeps_all=True)
    with torch.no_grad():
        walk.run(graph, [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])  # type: ignore[misc]
    return walk.values


def with_input(graph: Graph, inputs: list[object], node: Node, value: torch.Tensor) -> Case:
    """`node` as an input of the graph."""
    builder = Builder(GuardFreeOracle())
    new = {old: builder.input(old.attrs["name"], old.spec) for old in graph.inputs}
    spec = node.tensor.with_view(node.tensor.sizes, node.tensor.strides, 0)
    new[node] = builder.input(f"value_{graph.nodes.index(node)}", spec)
    for old in graph.nodes:
        if old is not node:
            new[old] = builder.append(with_inputs(old, tuple([new[operand] for operand in old.inputs])))
    outputs = [Output(new[output.value]) for output in graph.outputs]
    fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return builder.finish(outputs), [*inputs, fresh]


def trimmed(graph: Graph, inputs: list[object]) -> Case:
    """Without dead nodes and unused inputs."""
    graph, _ = without_dead_code(graph)
    builder, kept = Builder(GuardFreeOracle()), []
    read = {operand for node in graph.nodes for operand in node.inputs} | {output.value for output in graph.outputs}
    new: dict[Node, Node] = {}
    for old, value in zip(graph.inputs, inputs, strict=True):
        if old in read:
            new[old] = builder.input(old.attrs["name"], old.spec)
            kept.append(value)
    for old in graph.nodes:
        new[old] = builder.append(with_inputs(old, tuple([new[operand] for operand in old.inputs])))
    return builder.finish([Output(new[output.value]) for output in graph.outputs]), kept
