"""Partitions the joint graph into forward and backward at the values to save.

    joint                                        forward                      backward
    graph(%0 "x", %1 "w", %2 "tangent"):         graph(%0 "x", %1 "w"):       graph(%0 "x", %1 "w", %2 "tangent"):
        %3 = mul(%0, %1)                             %2 = mul(%0, %1)             %3 = mul(%2, %1)
        %4 = mul(%2, %1)                             return %2                    %4 = mul(%2, %0)
        %5 = mul(%2, %0)                                                          return %3, %4
        return %3, %4, %5

What `min_cut.py` chooses becomes inputs of the backward, which recomputes other values from them. An input that the
forward writes to, and an input or result that eager would not save, is saved as a copy: it may have changed by then.
Symbols that no tensor of the backward has are saved as numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, final

from kiln.graph.autograd.backward_order import late_recomputation
from kiln.graph.autograd.dependencies import Dependencies
from kiln.graph.autograd.eager_saves import SavedUse, numbers_of
from kiln.graph.autograd.errors import UnsavedSymbol
from kiln.graph.autograd.gradient_parts import gradient_parts
from kiln.graph.autograd.host_copies import saved_input, transferred, with_returns
from kiln.graph.autograd.joint import JointGraph
from kiln.graph.autograd.memory_budget import saved_values
from kiln.graph.autograd.min_cut import Sides
from kiln.graph.autograd.tangent_paths import Readers, TangentPaths
from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Alias, Graph, Output
from kiln.graph.ir.node import Node, base_of, call_of
from kiln.graph.ir.rewrite import missing_symbols, nodes_between, symbols_read, with_inputs, without_dead_code
from kiln.graph.ir.size_oracle import GuardFreeOracle, UnknownRelation
from kiln.graph.prims.meta import is_contiguous, is_dense
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.plan.plan import SymbolBinding
from kiln.plan.signature import Carried, SavedTensor, Signature, Tangent, Watched
from kiln.support.host_link import HostLink
from kiln.support.records import dataclass
from kiln.symbolic import Symbol
from kiln.tensor.spec import CPU, ScalarSpec, TensorSpec

SavedValue = SavedTensor | SymbolBinding


@final
@dataclass(frozen=True, slots=True)
class Partition:
    """`forward.outputs`: the user's and the carried inputs (`num_user_outputs`), then values that are only saved.

    `backward.inputs`: the values of `saved`, then the tangents. `backward.outputs`: gradients; `grads`: for each input
    of the forward the number of its gradient, or None. `carried`, `tangent_of`, `order`, `depends`: see `JointGraph`.
    `draws`: of the random numbers that a second derivative needs, (number of the torch call, position in `saved`); of
    old contents of an input, (`~number`, position). `redrawn`: the numbers in `draws` of those that are saved as seeds;
    `redraw` computes them from the inputs of the forward, for their sizes, and these seeds.
    """

    forward: Graph
    backward: Graph
    saved: tuple[SavedValue, ...]
    num_user_outputs: int
    carried: tuple[int, ...]
    tangent_of: tuple[int, ...]
    tangent_specs: tuple[TensorSpec, ...]
    tangent_ends: tuple[Readers, ...]
    grads: tuple[int | None, ...]
    order: tuple[int, ...] = ()
    draws: tuple[tuple[int, int], ...] = ()
    redrawn: tuple[int, ...] = ()
    redraw: Graph | None = None
    depends: Dependencies = ()
    watched: tuple[Watched, ...] = ()

    @property
    def signature(self) -> Signature:
        """How the runtime calls the two plans as a differentiable function."""
        first = self.num_user_outputs - len(self.carried)
        owners = {grad: index for index, grad in enumerate(self.grads) if grad is not None}
        reached = [number for number in self.order if self.grads[number] is not None]
        reached += [number for number in owners.values() if number not in reached]
        return Signature(
            num_inputs=len(self.forward.inputs),
            num_outputs=first,
            carried=tuple([Carried(index, first + number) for number, index in enumerate(self.carried)]),
            saved=self.saved,
            tangents=tuple(map(Tangent, self.tangent_of, self.tangent_specs, self.tangent_ends)),
            gradients=tuple([owners[grad] for grad in range(len(owners))]),
            reached=tuple(reached),
            depends=self.depends,
            parts=gradient_parts(self.backward, self.grads, reached),
            watched=self.watched,
        )


def backward_for(backward: Graph, grads: Sequence[int | None], needed: Sequence[bool]) -> Graph:
    """The part of a backward graph for the gradients of the `needed` inputs; `grads` as in `Partition`."""
    wanted = [grad for grad, need in zip(grads, needed, strict=True) if need and grad is not None]
    if len(wanted) == len(backward.outputs):
        return backward
    outputs = _share_memory([backward.outputs[grad] for grad in wanted], wanted)
    graph, _ = without_dead_code(Graph(backward.inputs, backward.nodes, outputs, (), backward.name))
    return graph


def _share_memory(outputs: list[Output], wanted: list[int]) -> tuple[Output, ...]:
    """Aliases of the remaining outputs, where the output that they aliased may be gone."""
    numbers: dict[int, int] = {}
    kept: list[Output] = []
    for number, (output, old_number) in enumerate(zip(outputs, wanted, strict=True)):
        alias = output.alias
        if alias is None or alias.of == "input":
            numbers.setdefault(old_number, number)
            kept.append(output)
        elif alias.index in numbers:
            owner = numbers[alias.index]
            view = None if output.value is kept[owner].value else output.value.tensor
            kept.append(replace(output, alias=Alias("output", owner, view)))
        else:
            numbers[alias.index] = number
            kept.append(replace(output, alias=None))
    return tuple(kept)


def partition(
    joint: JointGraph,
    *,
    recompute: bool = True,
    keep_draws: bool = False,
    keep_inputs: Sequence[int] = (),
    budget: float = 1.0,
    link: HostLink | None = None,
    offload: bool = False,
) -> Partition:
    """Forward and backward of `joint`; without `recompute`, all that the backward reads is saved. `keep_draws`: so are
    all random numbers, or their seeds, for a second derivative, as are old contents of inputs. `budget`, `link` and
    `offload`: see `saved_values`."""
    sides = Sides.of_joint(joint, keep_draws)
    old = {sides.primals[number]: ~number for number in keep_inputs}
    chosen, moved = saved_values(sides, joint.env, recompute=recompute, budget=budget, link=link, offload=offload)
    again = [node for node, origin in sides.drawn.items() if origin and node not in chosen | sides.fixed_draws]
    forced = chosen.union(sides.fixed_draws, old, [node.inputs[0] for node in again])
    kept = [node for node in (*joint.graph.inputs, *joint.graph.nodes) if node in forced]
    forward, tensors = _forward(joint, sides, kept, moved)
    paths = TangentPaths(joint.graph.nodes, joint.tangents, sides.gradients)
    apart = len(joint.tangents) > 1 and joint.wrappers is None  # of wrappers, tangents are counted twice
    readers = with_sizes_from_data(joint, kept, paths.readers(kept) if apart else [None] * len(kept))
    ends: Sequence[Readers] = paths.ends() if apart else [None] * len(joint.tangents)
    backward, symbols = _backward(joint, sides, kept, readers, moved)
    tensors = [replace(tensor, readers=read) for tensor, read in zip(tensors, readers, strict=True)]
    saved: tuple[SavedValue, ...] = (*tensors, *[binding_of(symbol, forward) for symbol in symbols])
    offset = joint.num_forward_outputs
    grads = tuple([None if grad is None else grad - offset for grad in joint.grads])
    places = {node: position for position, node in enumerate(kept)}
    places |= {node: places[node.inputs[0]] for node in again}
    drawn = [node for node, origin in sides.drawn.items() if origin is not None]
    draws = tuple([(origin.number, places[node]) for node in drawn if (origin := node.origin) is not None])
    draws += tuple([(old[node], places[node]) for node in kept if node in old])
    return Partition(
        forward,
        backward,
        saved,
        offset,
        joint.carried,
        joint.tangent_of,
        joint.tangent_specs,
        tuple(ends),
        grads,
        joint.order,
        draws,
        tuple(map(drawn.index, again)),
        redraw_graph(joint, sides.primals, again) if again else None,
        joint.depends,
        tuple(watched_values(joint, sides, tensors)),
    )


def watched_values(joint: JointGraph, sides: Sides, saved: Sequence[SavedTensor]) -> Iterator[Watched]:
    """What eager saves beside what the forward saves."""
    if joint.wrappers is not None:
        return
    known, count = {(entry.of, entry.index) for entry in saved}, len(joint.tangents)
    outputs = joint.num_forward_outputs - len(joint.carried)
    uses: list[tuple[Literal["input", "output"], int, SavedUse]] = [
        *[("input", number, use) for number, use in joint.saves.inputs.items()],
        *[("output", number, use) for number, use in joint.saves.outputs.items() if number < outputs],
    ]
    for of, number, use in uses:
        changes = of == "input" and sides.primals[number] in sides.changing
        if changes or (of, number) in known:
            continue
        if gradients := numbers_of(use.gradients, joint.num_forward_inputs):
            tangents = numbers_of(use.tangents, count)
            yield Watched(of, number, None if len(tangents) in (0, count) else tangents, gradients)


def with_sizes_from_data(joint: JointGraph, kept: Sequence[Node], readers: Sequence[Readers]) -> list[Readers]:
    """A size that data decide is read from a saved tensor: one that has it is there whichever tangents are missing."""
    found = list(readers)
    for symbol in joint.env.unbacked if joint.env is not None else ():
        places = [
            number
            for number, node in enumerate(kept)
            if isinstance(node.spec, TensorSpec) and symbol in (*node.spec.sizes, *node.spec.strides)
        ]
        if places and all(found[number] is not None for number in places):
            found[min(places, key=lambda number: kept[number].tensor.rank)] = None
    return found


# The forward.


def _forward(
    joint: JointGraph, sides: Sides, kept: list[Node], moved: Collection[Node]
) -> tuple[Graph, list[SavedTensor]]:
    """The forward with its extra outputs, and where each saved value is found."""
    inputs = {node: index for index, node in enumerate(sides.primals)}
    outputs = list(joint.forward_outputs)
    numbers = {output.value: index for index, output in reversed(list(enumerate(outputs))) if output.alias is None}
    saved: list[SavedTensor] = []
    old_contents: list[Node] = []
    copies: list[Node] = []
    transfers: list[Node] = []
    for node in kept:
        if node in inputs and node not in sides.copied:
            saved.append(SavedTensor("input", inputs[node]))
            continue
        if node in moved:
            transfers += transferred(node, CPU)
            node = transfers[-1]
        if node in sides.copied:
            made = copy_of(node, copied_spec(joint, node))
            (old_contents if node in sides.changing else copies).append(made)
            node = made
        own = sides.saved_result.get(node, -1)
        if own >= 0 and outputs[own].value is node:
            numbers[node] = own
        elif node not in numbers:
            numbers[node] = len(outputs)
            outputs.append(Output(node))
        saved.append(SavedTensor("output", numbers[node]))
    needed = [*sides.forward_roots, *sides.effects, *[output.value for output in outputs]]
    copied = [copy.inputs[0] for copy in copies] + [node for node in kept if node in moved]
    nodes = nodes_between(joint.graph.nodes, inputs, needed + copied)
    nodes = [*old_contents, *nodes, *copies, *transfers]
    graph = Graph(sides.primals, nodes, tuple(outputs), joint.graph.writes, "forward")
    return graph, saved


def copy_of(node: Node, spec: TensorSpec | None = None) -> Node:
    """The contents of a value before somebody writes to it; contiguous, unless a spec is given."""
    spec = spec or node.tensor.with_sizes(node.tensor.sizes)
    strides = None if spec == spec.with_sizes(spec.sizes) else spec.strides
    return Node(PRIMS["clone"], (node,), {"strides": strides}, spec, node.origin)


def copied_spec(joint: JointGraph, node: Node) -> TensorSpec:
    """That of the copy of a value: in its strides, so that views of it stay what they are, but without gaps."""
    spec = node.tensor
    with suppress(UnknownRelation):
        if is_dense(GuardFreeOracle(joint.env), spec.sizes, spec.strides):
            return spec.with_view(spec.sizes, spec.strides, 0)
    return spec.with_sizes(spec.sizes)


def on_copy(made: Builder, node: Node, inputs: tuple[Node, ...]) -> Node:
    """The node on other inputs; a view of a copy, which may lie otherwise in memory than the value."""
    if node.op.kind is not Kind.VIEW or inputs[0].spec == node.inputs[0].spec:
        return with_inputs(node, inputs)
    made.origin, attrs = node.origin, node.attrs
    if node.op.name == "as_strided":
        attrs = {**attrs, "offset": attrs["offset"] - base_of(node).tensor.offset}  # type: ignore[operator]
    elif node.op.name == "view" and not is_contiguous(made.oracle, inputs[0].tensor.sizes, inputs[0].tensor.strides):
        return made.node("reshape", *inputs, **attrs)
    return made.node(node.op.name, *inputs, **attrs)


# The backward.


def _backward(
    joint: JointGraph, sides: Sides, kept: list[Node], readers: Sequence[Readers], moved: Collection[Node]
) -> tuple[Graph, list[Symbol]]:
    """The backward on the saved values, and the symbols that it needs as numbers."""
    known = {*kept, *joint.tangents}
    nodes = nodes_between(joint.graph.nodes, known, sides.gradients)
    if ending := waits(joint.graph.nodes, set(nodes)):
        nodes = nodes_between(joint.graph.nodes, known, [*sides.gradients, *ending])
    nodes = late_recomputation(nodes)
    made = Builder(GuardFreeOracle(joint.env))
    new: dict[Node, Node] = {}
    returns: dict[Node, tuple[Node, Node]] = {}
    for number, node in enumerate(kept):
        spec = copied_spec(joint, node) if node in sides.copied else node.spec
        name = node.attrs["name"] if node.op.name == "input" else f"saved_{number}"
        new[node] = saved_input(made, name, node, spec, moved, returns)
    symbols: list[Symbol] = []
    if joint.env is None or joint.env.symbols():
        # Of several tangents, some may be missing in a backward, and so may be what only these need.
        present = [new[node] for node, read in zip(kept, readers, strict=True) if read is None]
        present += joint.tangents if len(joint.tangents) == 1 else ()
        needed = dict.fromkeys(missing_symbols([*nodes, *joint.tangents], present))
        symbols = list(needed | dict.fromkeys(missing_symbols((), [*map(new.__getitem__, kept), *joint.tangents])))
    for symbol in symbols:
        made.input(str(symbol), ScalarSpec(int, symbol))
    for tangent in joint.tangents:
        new[tangent] = made.input(tangent.attrs["name"], tangent.spec)
    for node in nodes:
        new[node] = on_copy(made, node, tuple([new[value] for value in node.inputs]))
    num_saved = len(kept) + len(symbols)
    outputs, copies = gradient_outputs([new[node] for node in sides.gradients], made.inputs, num_saved)
    nodes = [*with_returns(nodes, new, returns, sides.gradients), *copies]
    graph = Graph(tuple(made.inputs), nodes, outputs, (), "backward")
    return graph, symbols


def waits(nodes: Iterable[Node], started: Collection[Node]) -> list[Node]:
    """Those of `nodes` that wait for results of collectives in `started`; torch keeps a work until it is waited for."""
    return [node for node in nodes if node.op.name == "wait" and call_of(node.inputs[0]) in started]


def redraw_graph(joint: JointGraph, primals: Sequence[Node], drawn: Sequence[Node]) -> Graph:
    """Random numbers of the forward from its inputs, whose contents do not matter, and the seed of each."""
    made = Builder(GuardFreeOracle(joint.env))
    for node in primals:
        made.input(node.attrs["name"], node.spec)
    nodes = [with_inputs(node, (made.input(f"seed_{n}", node.inputs[0].spec),)) for n, node in enumerate(drawn)]
    return Graph(tuple(made.inputs), nodes, tuple(map(Output, nodes)), (), "redraw")


def gradient_outputs(
    gradients: list[Node], inputs: list[Node], num_saved: int
) -> tuple[tuple[Output, ...], list[Node]]:
    """Gradients as outputs: aliases of tangents or earlier gradients if they share memory, copies of saved values."""
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


def binding_of(symbol: Symbol, forward: Graph) -> SymbolBinding:
    """Where an input of the forward has a symbol, or that the forward reads it."""
    name = str(symbol)
    if symbol in symbols_read(forward.nodes):
        return SymbolBinding(name, "unbacked", -1)
    for slot, node in enumerate(forward.inputs):
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
