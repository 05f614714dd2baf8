"""Records the backward of a segment: its nodes are called on fakes, in the engine's order, below autograd.

    MulBackward0(%tangent)      reads the saved tensors %self, %other      mul(%tangent, %other), mul(%tangent, %self)

A node unpacks the tensors that it has saved itself. In the recording each of them stands for an input of the graph.
`run_nodes` is what the engine does: it adds gradients up in the order in which they arrive, and brings each into the
shape and the dtype of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import cast, final

import torch

from kiln.graph.trace import FakeTensor, Recorder, Trace
from kiln.pipeline.eager_backward.segments import NodeInput, Segment, edges_of
from kiln.pipeline.eager_backward.structure import AutogradNode, GradientLayout, Structure, layout_of
from kiln.runtime.guards.source import LocalSource
from kiln.support.dispatch_mode import DispatchMode
from kiln.support.records import dataclass

Gradient = torch.Tensor | None
Function = Callable[..., object]
Caller = Callable[[Function, tuple[object, ...]], object]
"""`call(function, arguments)`."""
SAVED, TANGENT = "saved", "tangent"


class NodeRefused(Exception):
    """A node of a segment cannot be recorded: its number, and why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


@final
@dataclass(frozen=True, slots=True)
class Recorded:
    """`trace.graph` gives a gradient for each target in `present`. `inputs`: of each of its inputs the number of the
    tangent, or `~n` for saved tensor n."""

    trace: Trace
    inputs: tuple[int, ...]
    present: tuple[bool, ...]


def run_nodes(
    nodes: Sequence[AutogradNode],
    segment: Segment,
    tangents: Sequence[Gradient],
    needed: Sequence[bool],
    call: Caller,
    function_of: Callable[[AutogradNode], Function] = lambda node: node,
) -> list[Gradient]:
    """The gradients at the targets. Raises NodeRefused for the node at which `call` failed."""
    edges = edges_of(nodes)
    arrived: dict[NodeInput, torch.Tensor] = {}
    wanted = {target for target, need in zip(segment.targets, needed, strict=True) if need}

    def add(place: NodeInput, gradient: torch.Tensor) -> None:
        metadata = nodes[place[0]]._input_metadata[place[1]]
        if gradient.shape != metadata.shape:
            gradient = cast(torch.Tensor, call(torch.Tensor.sum_to_size, (gradient, metadata.shape)))
        if gradient.dtype is not metadata.dtype:
            gradient = cast(torch.Tensor, call(torch.Tensor.to, (gradient, metadata.dtype)))
        before = arrived.get(place)
        arrived[place] = gradient if before is None else cast(torch.Tensor, call(torch.add, (before, gradient)))

    inside = set(segment.members)
    for slot, tangent in zip(segment.slots, tangents, strict=True):
        if tangent is not None:
            arrived[slot] = tangent
    for number in segment.members:
        node = nodes[number]
        given = [arrived.pop((number, slot), None) for slot in range(len(node._input_metadata))]
        if all(gradient is None for gradient in given):
            continue
        try:
            made = call(function_of(node), tuple(given))
            results = made if isinstance(made, tuple) else (made,)
            for place, gradient in zip(edges[number], results, strict=True):
                if place is not None and isinstance(gradient, torch.Tensor) and (place[0] in inside or place in wanted):
                    add(place, gradient)
        except Exception as problem:
            raise NodeRefused(number, str(problem).partition("\n")[0]) from problem
    return [arrived.get(target) for target in segment.targets]


@final
class KnownInputs(DispatchMode):
    """Puts fakes in the place of the tensors that nodes have saved."""

    def __init__(self, fakes: Mapping[Hashable, torch.Tensor]) -> None:
        super().__init__()
        self.fakes = fakes

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Function, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        named = {name: self.known(value) for name, value in (kwargs or {}).items()}
        return func(*map(self.known, args), **named)

    def known(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return type(value)(map(self.known, value))
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return value
        assert isinstance(value, torch.Tensor)
        return self.fakes.get((value.data_ptr(), layout_of(value)), value)


@final
class NodeCall:
    """A call of a node, as an entry of the log of torch calls."""

    __module__ = ""

    def __init__(self, node: AutogradNode, inputs: KnownInputs) -> None:
        self.node = node
        self.inputs = inputs
        self.__name__ = node.name()

    def __call__(self, *gradients: Gradient) -> object:
        with self.inputs:
            found = self.node(*gradients)
        return self.inputs.known(found)


def record(
    recorder: Recorder, structure: Structure, segment: Segment, given: Sequence[bool], needed: Sequence[bool]
) -> Recorded:
    """The graph of a segment for the tangents that are `given` and the targets that are `needed`.

    Raises NodeRefused.
    """
    nodes = structure.nodes
    with torch.no_grad():
        fakes: dict[Hashable, torch.Tensor] = {}
        for number in sorted({number for member in segment.members for number in structure.saved[member]}):
            real = structure.tensors[number].detach()
            name = f"{SAVED}_{number}"
            fakes[real.data_ptr(), layout_of(real)] = recorder.add_tensor(real, name, LocalSource(name))
        tangents = [
            tangent_like(recorder, nodes[place[0]]._input_metadata[place[1]], number) if there else None
            for number, (place, there) in enumerate(zip(segment.slots, given, strict=True))
        ]
        known = KnownInputs(fakes)

        def call(function: Function, arguments: tuple[object, ...]) -> object:
            return recorder.call(function, arguments, {})

        found = run_nodes(nodes, segment, tangents, needed, call, lambda node: NodeCall(node, known))
        results = [cast(FakeTensor, known.known(gradient)) for gradient in found if gradient is not None]
        trace = recorder.finish(results)
    inputs = []
    for used in trace.used_inputs:
        kind, _, position = used.name.partition("_")
        inputs.append(int(position) if kind == TANGENT else ~int(position))
    return Recorded(trace, tuple(inputs), tuple([gradient is not None for gradient in found]))


def tangent_like(recorder: Recorder, metadata: GradientLayout, number: int) -> torch.Tensor:
    """The fake of a tangent: contiguous; the plan copies one in another layout."""
    name = f"{TANGENT}_{number}"
    real = torch.empty(metadata.shape, dtype=metadata.dtype, device=metadata.device)
    return recorder.add_tensor(real, name, LocalSource(name))
