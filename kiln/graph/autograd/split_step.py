"""A graph that holds a backward is split where it begins: one lowering sees the forward, another what follows.

    graph(%0 "x", %1 "w"):                     first(%0 "x", %1 "w"):        second(%0 "x", %1 "w", %2 "kept_0"):
        %2 = mm(%0, %1)                            %2 = mm(%0, %1)               %3 = tanh(%2)          recomputed
        %3 = tanh(%2)                              return %2                     %4 = ... (backward)
        %4 = ... (backward), reads %3     =>                                     write %1 <- %5
        write %1 <- %5

Both get all inputs; what the second reads of the first is chosen as for a backward of its own (`min_cut.py`): cheap
values are recomputed, and so are checkpoint regions. Without that, all that a backward reads would stay in memory.
Writes are done by the second. The two plans are joined into one (`kiln/plan/join.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import final

from kiln.graph.autograd.backward_order import late_recomputation
from kiln.graph.autograd.eager_saves import is_derivative
from kiln.graph.autograd.host_copies import saved_input, transferred, with_returns
from kiln.graph.autograd.memory_budget import saved_values
from kiln.graph.autograd.min_cut import Sides
from kiln.graph.autograd.partition import copy_of
from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import (
    computed_from,
    has_effect,
    is_assumption,
    missing_symbols,
    nodes_between,
    symbols_of,
    symbols_read,
    with_inputs,
)
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.support.host_link import HostLink
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv, Symbol
from kiln.tensor.spec import CPU, TensorSpec

HalfOutput = tuple[int, int]
"""The number of a half, and of one of its outputs."""


@final
@dataclass(frozen=True, slots=True)
class SplitStep:
    """`kept`: for each input of `second` beyond those of the graph, the output of `first`. `outputs`: of the graph."""

    first: Graph
    second: Graph
    kept: tuple[int, ...]
    outputs: tuple[HalfOutput, ...]


def split_step(
    graph: Graph,
    env: ShapeEnv | None,
    *,
    recompute: bool = True,
    budget: float = 1.0,
    link: HostLink | None = None,
    offload: bool = False,
) -> SplitStep | None:
    """The halves of a graph; None if it holds no backward, or if both need a number that the forward reads."""
    start = next((number for number, node in enumerate(graph.nodes) if is_derivative(node)), None)
    if not start:
        return None
    later = computed_from(graph.nodes, behind_assumptions(graph.nodes[start:]))
    places = outputs_of_halves(graph, later)
    if places is None:
        return None
    own = [own_outputs(graph, places, half) for half in (0, 1)]
    earlier = [output.value for output in graph.outputs if output.value not in later]
    roots = [output.value for output in graph.outputs if output.value in later]
    roots += [write.value for write in graph.writes]
    sides = Sides(graph.nodes, graph.inputs, later, earlier, roots)
    chosen, moved = saved_values(sides, env, recompute=recompute, budget=budget, link=link, offload=offload)
    kept = [node for node in graph.nodes if node in chosen]
    if not all(type(node.spec) is TensorSpec for node in kept) or chosen & later:
        return None
    first, numbers = first_half(graph, own[0], sides, kept, moved)
    second = second_half(graph, own[1], later, kept, env, moved)
    if not symbols_read(first.nodes).isdisjoint(missing_symbols(second.nodes, second.inputs)):
        return None
    return SplitStep(first, second, numbers, places)


def behind_assumptions(nodes: Sequence[Node]) -> list[Node]:
    """The nodes without checks of what was assumed, which are the last, and what these are computed from, also by a
    number that was read from a tensor.

    Where one fails, the program runs in Python, and meets the error that a kernel of the forward would raise.
    """
    checks = {node for node in nodes if is_assumption(node)}
    numbers: set[Symbol] = set()
    for node in reversed(nodes):
        if node in checks or (node.op.name == "local_scalar" and not numbers.isdisjoint(symbols_of([node]))):
            checks.update((node, *node.inputs))
            numbers |= symbols_of([node])
    return [node for node in nodes if node not in checks]


def outputs_of_halves(graph: Graph, later: set[Node]) -> tuple[HalfOutput, ...] | None:
    """Where each output is; None if one shares memory with one of the other half."""
    counts = [0, 0]
    places: list[HalfOutput] = []
    for output in graph.outputs:
        half = int(output.value in later)
        alias = output.alias
        if alias is not None and alias.of == "output" and places[alias.index][0] != half:
            return None
        places.append((half, counts[half]))
        counts[half] += 1
    return tuple(places)


def own_outputs(graph: Graph, places: Sequence[HalfOutput], half: int) -> list[Output]:
    """The outputs of a half, with aliases in its numbers."""
    found: list[Output] = []
    for output, place in zip(graph.outputs, places, strict=True):
        if place[0] == half:
            alias = output.alias
            if alias is not None and alias.of == "output":
                output = replace(output, alias=replace(alias, index=places[alias.index][1]))
            found.append(output)
    return found


def first_half(
    graph: Graph, outputs: list[Output], sides: Sides, kept: list[Node], moved: Collection[Node]
) -> tuple[Graph, tuple[int, ...]]:
    """The forward, and the numbers of its outputs that are `kept`; what is `moved` is on the host."""
    values = [*sides.effects, *[output.value for output in outputs], *kept]
    numbers = {output.value: number for number, output in enumerate(outputs) if output.alias is None}
    transfers: list[Node] = []
    for node in kept:
        if node in moved:
            transfers += transferred(node, CPU)
        if node not in numbers:
            numbers[node] = len(outputs)
            outputs.append(Output(transfers[-1] if node in moved else node))
    nodes = [*nodes_between(graph.nodes, graph.inputs, values), *transfers]
    return Graph(graph.inputs, nodes, tuple(outputs), (), "forward"), tuple([numbers[node] for node in kept])


def copies_of(value: Node, is_shared: bool) -> list[Node]:
    """A copy of `value`; where other outputs are views of its memory, of all that memory, and the views up to it."""
    base, views = value, list[Node]()
    while is_shared and base is not base_of(value):
        views.append(base)
        base = base.inputs[0]
    made = [copy_of(base, base.tensor.with_view(base.tensor.sizes, base.tensor.strides, 0))]
    for view in reversed(views):
        made.append(with_inputs(view, (made[-1],)))
    return made


def second_half(
    graph: Graph,
    outputs: list[Output],
    later: set[Node],
    kept: list[Node],
    env: ShapeEnv | None,
    moved: Collection[Node],
) -> Graph:
    effects = [node for node in graph.nodes if has_effect(node) and node in later]
    values = [*effects, *[output.value for output in outputs], *[write.value for write in graph.writes]]
    known = {*graph.inputs, *kept}
    nodes = late_recomputation(nodes_between(graph.nodes, known, values))
    made = Builder(GuardFreeOracle(env))
    new = {node: made.input(node.attrs["name"], node.spec) for node in graph.inputs}
    returns: dict[Node, tuple[Node, Node]] = {}
    for number, node in enumerate(kept):
        new[node] = saved_input(made, f"kept_{number}", node, node.spec, moved, returns)
    for node in nodes:
        new[node] = with_inputs(node, tuple([new[value] for value in node.inputs]))
    copies: list[Node] = []
    results: list[Output] = []
    shared = {output.alias.index for output in outputs if output.alias is not None and output.alias.of == "output"}
    for number, output in enumerate(outputs):
        value = new[output.value]
        if output.alias is None and base_of(output.value) in kept:
            made_anew = copies_of(value, number in shared)
            value = made_anew[-1]
            copies += made_anew
        results.append(replace(output, value=value))
    writes = tuple([Write(new[write.target], new[write.value]) for write in graph.writes])
    made_nodes = [*with_returns(nodes, new, returns, values), *copies]
    return Graph(tuple(made.inputs), made_nodes, tuple(results), writes, "step")
