"""A program cut into stages of about equal work, for pipelines over ranks.

    graph(%0 "w1", %1 "w2", %2 "x")            stage 0: graph(%0 "w1", %1 "x") ... return %3
        %3 = matmul(%2, %0)             =>
        %4 = matmul(%3, %1)                    stage 1: graph(%0 "w2", %1) ... return %2
        return %4

A cut is where what crosses it are floating-point tensors, as few as anywhere, and no parameter is used on both sides.
What depends on no argument is computed again where it is needed. Work is counted as arithmetic (`analysis.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import cast, final

import torch
from torch import nn

from kiln.graph.ir.build import Builder
from kiln.graph.ir.flops import node_flops
from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import computed_from, nodes_between, with_inputs
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.programs.program import Program
from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


class NoStages(KilnError):
    code = "KILN5018"
    what = "`{program}` cannot be cut into {count} stages"
    why = "{reason}"
    try_ = ("ask for fewer stages", "kiln.export shows the graph that is cut")


@final
class StageModule(nn.Module):
    """One stage. Its parameters are the model's, under the same names; it takes what the stage before returns.

    `inputs` and `outputs` are tensors on the meta device with the layouts of one call, as
    `torch.distributed.pipelining.PipelineStage` takes them (`input_args`, `output_args`).
    """

    def __init__(
        self, graph: Graph, states: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor], is_first: bool
    ) -> None:
        super().__init__()
        self.body = fx_view(graph, constants)
        self.state_names = list(states)
        for name, tensor in states.items():
            place(self, name, tensor)
        self.inputs = tuple([on_meta(node, is_first) for node in graph.inputs[len(states) :]])
        self.outputs = tuple([on_meta(output.value, False) for output in graph.outputs])

    def forward(self, *args: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        states = [found(self, name) for name in self.state_names]
        results: tuple[torch.Tensor, ...] = self.body(*states, *args)
        return results[0] if len(results) == 1 else results


def place(root: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Register a tensor under a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = cast(nn.Module, root._modules[part])
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(last, tensor)
    else:
        root.register_buffer(last, tensor)


def found(root: nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    made: torch.Tensor = getattr(root.get_submodule(path), last)
    return made


def on_meta(node: Node, is_argument: bool) -> torch.Tensor:
    """An activation requires a gradient, an argument of the model does not."""
    spec = node.tensor
    made = torch.empty_strided(spec.sizes, spec.strides, dtype=spec.dtype, device="meta")  # type: ignore[arg-type]
    return made.requires_grad_(spec.dtype.is_floating_point and not is_argument)


def cut_program(program: Program, count: int, parameters: Mapping[str, torch.Tensor]) -> list[StageModule]:
    """The stages. `parameters`: the model's own, by name. Raises NoStages."""
    graph = program.graph
    if graph.writes:
        raise NoStages(program=program.name, count=count, reason="it changes buffers, which a stage does not hand back")
    if any(not isinstance(node.spec, TensorSpec) for node in graph.inputs):
        raise NoStages(program=program.name, count=count, reason="a number is among its arguments")
    names = [state.name for state in program.signature.states]
    states = dict(zip(graph.inputs[: len(names)], names, strict=True))
    cutter = Cutter(graph, states, {name for name in names if isinstance(parameters.get(name), nn.Parameter)})
    places = cutter.balanced(count)
    if places is None:
        reason = f"there are {len(cutter.crossing)} places at which only activations cross"
        raise NoStages(program=program.name, count=count, reason=reason)
    arguments = list(graph.inputs[len(names) :])
    results = [output.value for output in graph.outputs]
    bounds = [arguments, *[cutter.crossing[at] for at in places], results]
    tensors = {name: parameters.get(name, program.state[name]) for name in names}
    return [
        stage_of(graph, before, after, states, tensors, program.constants, before is arguments)
        for before, after in pairwise(bounds)
    ]


@final
@dataclass(eq=False)
class Cutter:
    """`states`: inputs that every stage may have, by name; `parameters`: those of which only one stage may."""

    graph: Graph
    states: Mapping[Node, str]
    parameters: Collection[str]

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        self.work = list(accumulate([int(cast(int, node_flops(node))) for node in nodes], initial=0))
        arguments = [node for node in self.graph.inputs if node not in self.states]
        self.moving = {*arguments, *computed_from(nodes, arguments)}
        last: dict[Node, int] = dict.fromkeys([output.value for output in self.graph.outputs], len(nodes))
        first: dict[Node, int] = {}
        for number, node in enumerate(nodes):
            for value in node.inputs:
                first.setdefault(value, number)
                last[value] = max(last.get(value, number), number)
        self.crossing = self._crossing(first, last)
        """Places at which few values cross, and these: in front of node number `place`."""

    def _crossing(self, first: Mapping[Node, int], last: Mapping[Node, int]) -> dict[int, list[Node]]:
        held = self._held()
        open_values = {node for node in self.moving if node.op.name == "input"}
        found: dict[int, list[Node]] = {}
        for place, node in enumerate(self.graph.nodes):
            open_values = {value for value in open_values if last.get(value, -1) >= place}
            shared = any(start < place <= end for start, end in held)
            if place and open_values and not shared and all(map(is_activation, open_values)):
                found[place] = sorted(open_values, key=lambda value: first.get(value, 0))
            if node in self.moving:
                open_values.add(node)
        least = min(map(len, found.values()), default=0)
        return {place: values for place, values in found.items() if len(values) == least}

    def _held(self) -> list[tuple[int, int]]:
        """For each parameter the first and the last place where a stage needs it, itself or what is computed of it."""
        owners = {node: {node} for node, name in self.states.items() if name in self.parameters}
        places: dict[Node, tuple[int, int]] = {}
        for number, node in enumerate(self.graph.nodes):
            used = set().union(*[owners.get(value, set()) for value in node.inputs])
            if node not in self.moving:
                owners[node] = used
                continue
            for parameter in used:
                places[parameter] = places.get(parameter, (number, number))[0], number
        return list(places.values())

    def balanced(self, count: int) -> list[int] | None:
        """The places that make the largest of `count` stages smallest."""
        low, high = 0, self.work[-1] + 1
        while low < high:
            middle = (low + high) // 2
            if self.filled(count, middle) is None:
                low = middle + 1
            else:
                high = middle
        return self.filled(count, low)

    def filled(self, count: int, limit: int) -> list[int] | None:
        """Places that leave no stage with more work than `limit`: each as late as it may be.

        Of places with the same work in front of them the last, so that every stage has some.
        """
        last = {self.work[place]: place for place in sorted(self.crossing)}
        places = [place for work, place in last.items() if 0 < work < self.work[-1]]
        chosen, start = list[int](), 0
        for left in range(count - 1, 0, -1):
            fitting = [place for place in places[: len(places) - left + 1] if place > start]
            fitting = [place for place in fitting if self.work[place] - self.work[start] <= limit]
            if not fitting:
                return None
            start = fitting[-1]
            chosen.append(start)
        return chosen if self.work[-1] - self.work[start] <= limit else None


def is_activation(value: Node) -> bool:
    return isinstance(value.spec, TensorSpec) and value.spec.dtype.is_floating_point


def stage_of(
    graph: Graph,
    before: Sequence[Node],
    after: Sequence[Node],
    states: Mapping[Node, str],
    tensors: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor],
    is_first: bool,
) -> StageModule:
    """What computes the values `after` from the values `before`."""
    nodes = nodes_between(graph.nodes, {*before, *graph.inputs}, after)
    read = {value for node in nodes for value in node.inputs} | set(after)
    used = [state for state in states if state in read]
    made = Builder(GuardFreeOracle(None))
    new = {node: made.input(f"input_{number}", node.spec) for number, node in enumerate((*used, *before))}
    for node in nodes:
        new[node] = with_inputs(node, tuple([new[value] for value in node.inputs]))
    outputs = tuple([Output(new[value]) for value in after])
    part = Graph(tuple(made.inputs), [new[node] for node in nodes], outputs, (), "stage")
    return StageModule(part, {states[node]: tensors[states[node]] for node in used}, constants, is_first)
