"""Cuts the joint graph into forward and backward at the values to save.

    joint                                        forward                      backward
    graph(%0 "x", %1 "w", %2 "tangent"):         graph(%0 "x", %1 "w"):       graph(%0 "x", %1 "w", %2 "tangent"):
        %3 = mul(%0, %1)                             %2 = mul(%0, %1)             %3 = mul(%2, %1)
        %4 = mul(%2, %1)                             return %2                    %4 = mul(%2, %0)
        %5 = mul(%2, %0)                                                          return %3, %4
        return %3, %4, %5

What `cut.py` chooses becomes inputs of the backward; what lies behind it is computed again there. A saved input
that the forward writes to is saved as a copy. Symbols that no tensor of the backward tells are saved as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from kiln.graph.autograd.errors import UnsavedSymbol
from kiln.graph.autograd.joint import JointGraph
from kiln.graph.autograd.min_cut import Sides, values_to_save, values_without_recomputation
from kiln.graph.ir.graph import Alias, Graph, Output
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import nodes_between, symbols_of, with_inputs, without_dead_code
from kiln.graph.prims.rows import PRIMS
from kiln.plan.plan import SymbolBinding
from kiln.plan.signature import Carried, SavedTensor, Signature, Tangent
from kiln.symbolic import ShapeEnv, Symbol
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

SavedValue = SavedTensor | SymbolBinding


@final
@dataclass(frozen=True, slots=True)
class Partition:
    """`forward.outputs`: the user's, the carried inputs' (`num_user_outputs` together), then what is only saved.

    `backward.inputs`: one per entry of `saved`, then the tangents. `backward.outputs`: gradients; `grads` gives per
    input of the forward the number of its gradient, or None. `carried`, `tangent_of`: see `JointGraph`.
    """

    forward: Graph
    backward: Graph
    saved: tuple[SavedValue, ...]
    num_user_outputs: int
    carried: tuple[int, ...]
    tangent_of: tuple[int, ...]
    tangent_specs: tuple[TensorSpec, ...]
    grads: tuple[int | None, ...]

    @property
    def signature(self) -> Signature:
        """What the runtime needs to know to call the two plans as one differentiable function."""
        first = self.num_user_outputs - len(self.carried)
        owners = {place: index for index, place in enumerate(self.grads) if place is not None}
        return Signature(
            num_inputs=len(self.forward.inputs),
            num_outputs=first,
            carried=tuple([Carried(index, first + number) for number, index in enumerate(self.carried)]),
            saved=self.saved,
            tangents=tuple(
                [Tangent(output, spec) for output, spec in zip(self.tangent_of, self.tangent_specs, strict=True)]
            ),
            gradients=tuple([owners[place] for place in range(len(owners))]),
        )

    def backward_for(self, needed: Sequence[bool]) -> Graph:
        """The backward for some inputs of the forward only: their gradients in order, the inputs of `backward`."""
        return backward_for(self.backward, self.grads, needed)


def backward_for(whole: Graph, grads: Sequence[int | None], needed: Sequence[bool]) -> Graph:
    """The part of a backward graph that makes the gradients of the `needed` inputs; `grads` as in `Partition`."""
    wanted = [place for place, need in zip(grads, needed, strict=True) if need and place is not None]
    if len(wanted) == len(whole.outputs):
        return whole
    outputs = _share_memory([whole.outputs[place] for place in wanted], wanted)
    graph, _ = without_dead_code(Graph(whole.inputs, whole.nodes, outputs, (), whole.name))
    return graph


def _share_memory(outputs: list[Output], wanted: list[int]) -> tuple[Output, ...]:
    """Aliases of earlier outputs, where some of these are not there any more."""
    numbers: dict[int, int] = {}
    kept: list[Output] = []
    for number, (output, place) in enumerate(zip(outputs, wanted, strict=True)):
        alias = output.alias
        if alias is None or alias.of == "input":
            numbers.setdefault(place, number)
            kept.append(output)
        elif alias.index in numbers:
            owner = numbers[alias.index]
            view = None if output.value is kept[owner].value else output.value.tensor
            kept.append(replace(output, alias=Alias("output", owner, view)))
        else:
            numbers[alias.index] = number
            kept.append(replace(output, alias=None))
    return tuple(kept)


def partition(joint: JointGraph, *, recompute: bool = True) -> Partition:
    """Forward and backward of `joint`; without `recompute` all that the backward reads is saved."""
    sides = Sides(joint)
    again = recompute or bool(sides.recomputed)
    chosen = values_to_save(sides, joint.env) if again else values_without_recomputation(sides)
    kept = [node for node in (*joint.graph.inputs, *joint.graph.nodes) if node in chosen]
    forward, places = _forward(joint, sides, kept)
    backward, symbols = _backward(joint, sides, kept)
    saved: tuple[SavedValue, ...] = (*places, *[binding_of(symbol, sides.primals) for symbol in symbols])
    offset = joint.num_forward_outputs
    grads = tuple([None if place is None else place - offset for place in joint.grads])
    return Partition(forward, backward, saved, offset, joint.carried, joint.tangent_of, joint.tangent_specs, grads)


# The forward.


def _forward(joint: JointGraph, sides: Sides, kept: list[Node]) -> tuple[Graph, list[SavedTensor]]:
    """The forward with its extra outputs, and where each kept value is."""
    inputs = {node: index for index, node in enumerate(sides.primals)}
    outputs = list(joint.forward_outputs)
    numbers = {output.value: index for index, output in reversed(list(enumerate(outputs))) if output.alias is None}
    changing = {write.target for write in joint.graph.writes} | {sides.primals[index] for index in joint.carried}
    places: list[SavedTensor] = []
    copies: list[Node] = []
    for node in kept:
        if node in inputs and node not in changing:
            places.append(SavedTensor("input", inputs[node]))
            continue
        if node in changing:
            node = copy_of(node)
            copies.append(node)
        if node not in numbers:
            numbers[node] = len(outputs)
            outputs.append(Output(node))
        places.append(SavedTensor("output", numbers[node]))
    needed = [*sides.forward_roots, *sides.effects, *[output.value for output in outputs]]
    nodes = nodes_between(joint.graph.nodes, inputs, needed)
    graph = Graph(sides.primals, [*copies, *nodes], tuple(outputs), joint.graph.writes, "forward")
    return graph, places


def copy_of(node: Node) -> Node:
    """The contents of an input before the forward writes to it."""
    return Node(PRIMS["clone"], (node,), {"strides": None}, node.tensor.with_sizes(node.tensor.sizes), node.origin)


# The backward.


def _backward(joint: JointGraph, sides: Sides, kept: list[Node]) -> tuple[Graph, list[Symbol]]:
    """The backward on the kept values, and the symbols that it needs as numbers."""
    changing = {write.target for write in joint.graph.writes} | {sides.primals[index] for index in joint.carried}
    nodes = late_recomputation(nodes_between(joint.graph.nodes, {*kept, *sides.tangents}, sides.gradients))
    names = _InputList()
    place: dict[Node, Node] = {}
    for number, node in enumerate(kept):
        spec = node.tensor.with_sizes(node.tensor.sizes) if node in changing else node.spec
        place[node] = names.input(node.attrs["name"] if node.op.name == "input" else f"saved_{number}", spec)
    symbols = _missing_symbols(nodes, [*place.values(), *sides.tangents]) if may_have_symbols(joint.env) else []
    for symbol in symbols:
        names.input(str(symbol), ScalarSpec(int, symbol))
    for tangent in sides.tangents:
        place[tangent] = names.input(tangent.attrs["name"], tangent.spec)
    made = []
    for node in nodes:
        new = place[node] = with_inputs(node, tuple([place[one] for one in node.inputs]))
        made.append(new)
    num_saved = len(kept) + len(symbols)
    outputs, copies = gradient_outputs([place[node] for node in sides.gradients], names.inputs, num_saved)
    graph = Graph(tuple(names.inputs), [*made, *copies], outputs, (), "backward")
    return graph, symbols


def late_recomputation(nodes: Sequence[Node]) -> list[Node]:
    """Values of the forward that are computed again stand right before their first reader.

    They live no longer than they must, and the backward of a layer holds all that belongs to it: equal layers are
    equal stretches of nodes, though the backward goes through them from last to first.
    """
    again = {node for node in nodes if node.origin is not None and not node.origin.backward}
    order: dict[Node, None] = {}
    for node in nodes:
        stack = [] if node in again else [node]
        while stack:
            waiting = [one for one in stack[-1].inputs if one in again and one not in order]
            if waiting:
                stack.append(waiting[0])
            else:
                order[stack.pop()] = None
    order.update(dict.fromkeys(nodes))
    return list(order)


class _InputList:
    """Inputs of a graph in the making."""

    def __init__(self) -> None:
        self.inputs: list[Node] = []

    def input(self, name: str, spec: Spec) -> Node:
        made = Node(PRIMS["input"], (), {"index": len(self.inputs), "name": name}, spec)
        self.inputs.append(made)
        return made


def gradient_outputs(
    gradients: list[Node], inputs: list[Node], num_saved: int
) -> tuple[tuple[Output, ...], list[Node]]:
    """Gradients that share memory with a tangent or an earlier gradient say so; saved values are copied."""
    numbers = {node: index for index, node in enumerate(inputs)}
    owners: dict[Node, int] = {}
    outputs: list[Output] = []
    copies: list[Node] = []
    for value in gradients:
        base = base_of(value)
        alias: Alias | None = None
        index = numbers.get(base)
        if index is not None and index < num_saved:
            value = copy_of(value)
            copies.append(value)
        elif index is not None:
            alias = Alias("input", index, None if value is base else value.tensor)
        elif base in owners:
            first = outputs[owners[base]].value
            alias = Alias("output", owners[base], None if value is first else value.tensor)
        else:
            owners[base] = len(outputs)
        outputs.append(Output(value, alias))
    return tuple(outputs), copies


# Symbols.


def binding_of(symbol: Symbol, inputs: Sequence[Node]) -> SymbolBinding:
    """Where an input of the forward tells a symbol."""
    name = str(symbol)
    for slot, node in enumerate(inputs):
        spec = node.spec
        if isinstance(spec, ScalarSpec) and spec.value is symbol:
            return SymbolBinding(name, "scalar", slot)
        if isinstance(spec, TensorSpec):
            if symbol in spec.sizes:
                return SymbolBinding(name, "size", slot, spec.sizes.index(symbol))
            if symbol in spec.strides:
                return SymbolBinding(name, "stride", slot, spec.strides.index(symbol))
            if spec.offset is symbol:
                return SymbolBinding(name, "offset", slot)
    raise UnsavedSymbol(symbol=symbol)


def may_have_symbols(env: ShapeEnv | None) -> bool:
    return env is None or bool(env.symbols())


def _missing_symbols(nodes: Sequence[Node], inputs: Sequence[Node]) -> list[Symbol]:
    """Symbols in `nodes` that are not themselves a size or a stride of an input."""
    bound = {
        size
        for node in inputs
        if isinstance(spec := node.spec, TensorSpec)
        for size in (*spec.sizes, *spec.strides)
        if isinstance(size, Symbol)
    }
    return sorted(symbols_of([*inputs, *nodes]) - bound, key=lambda symbol: symbol.sort_key)
