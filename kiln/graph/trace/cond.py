"""The branch in a recording, and its gradient.

    %3: (f32[4], f32[4]) = cond(%0, %1, true=@0, false=@1)       forward: its results, then what the backward reads
    %9: (f32[4],) = cond(%0, %1, %5, %8, true=@2, false=@3)      backward: of the side that was taken

The gradients of both sides are recorded with the forward, since they say which values of a side the backward reads:
these are further results of the forward, zeros on the other side. Views are computed again, and so are values whose
sizes depend on data of a side: the other side has no such size.

In eager a tensor that only one side uses has no gradient after the other side: of a branch of Python, the attribute
`exist` has pairs of results, the gradient and whether it exists (`graph/trace/absent_gradients.py`). Of `torch.cond`
they are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import cast, final

import torch

from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import nested_graphs, symbols_in, symbols_of, symbols_read, with_inputs
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.prims.meta import same_strides
from kiln.graph.prims.table import Kind
from kiln.graph.trace.absent_gradients import Existence
from kiln.graph.trace.custom_function import attach
from kiln.graph.trace.data_dependent import item_of
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow
from kiln.graph.trace.nested_graphs import CONSTANT, Nested, NotNested, draws_random, further, input_node, nested
from kiln.graph.trace.nested_logs import (
    Calls,
    Finish,
    Scope,
    Traced,
    dense,
    found_gradients,
    inputs_like,
    is_differentiated,
    is_real,
    operands,
    outside_values,
    refuse_second_derivative,
    require_same_outputs,
    results_of,
    traced,
    zeros_like,
)
from kiln.support.records import dataclass
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec


def cond(recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[FakeTensor]) -> tuple[FakeTensor, ...]:
    origin, changes = recorder.emit.origin, target.changes
    condition, captured = truth_value(recorder, args[0]), args[1:]
    values = operands(recorder, captured)
    needs = [is_differentiated([fake]) for fake in captured]

    def sides_of(finish: Finish | None = None) -> list[Traced]:
        with scope():
            return [
                traced(
                    recorder, log, inputs_like(values, "operand"), needs,
                    changes=changes, reads_sizes=True, finish=finish,
                )
                for log in target.logs
            ]  # fmt: skip

    branches = sides_of()
    own_sizes = None if target.same_sizes else OwnSizes.of(recorder, branches)
    if own_sizes is not None:
        measured = sides_of(own_sizes.measured)
        recorder.emit.origin = origin
        own_sizes.read(emit_cond(recorder, condition, values, own_sizes.alone(measured)))
        branches = sides_of(own_sizes.taken)
    with scope():
        require_same_outputs(recorder, *[branch.outputs for branch in branches])
        count, numbers = len(branches[0].results), differentiable_results(target, branches, needs)
        sides = [recorded_backward(recorder, branch, values, needs, numbers) for branch in branches if numbers]
        add_saved_values(recorder, branches if numbers else [], sides)
    recorder.emit.origin = origin
    made = emit_cond(recorder, condition, values, branches)
    results, contents, saved = made[:count], made[count : count + len(changes)], made[count + len(changes) :]
    for number, content in zip(changes, contents, strict=True):
        recorder._mode.write(captured[number], recorder.node_of(content), "torch.cond")
    if not numbers:
        return tuple(results)
    backward = CondBackward(recorder, target, condition, [*values, *map(recorder.node_of, saved)], sides, numbers)
    leaves = [fake for fake, need in zip(captured, needs, strict=True) if need]
    plain = [number for number in range(count) if number not in numbers]
    return cast(tuple[FakeTensor, ...], attach(recorder.held, leaves, results, plain, backward))


MOST_LEVELS = 1
"""Of branches in a side that has sizes of its own. Each level doubles the graph: the sizes are computed before."""


def depth(nodes: Sequence[Node]) -> int:
    """How deep branches and loops are nested."""
    return max([1 + depth(graph.nodes) for node in nodes for graph in nested_graphs(node)], default=0)


@final
@dataclass
class OwnSizes:
    """The sizes of results that differ between the sides: a branch of its own computes them before.

    if mask.any(): x = x[mask]        %5: (i64[],) = cond(...)           true: the count of the mask, false: x.size(0)
                                      u0 = the item of %5
                                      %7: (f32[u0, 4],) = cond(...)      each side pads its result to u0 rows, by none
    """

    recorder: Calls
    places: list[tuple[int, int]]
    """The result and the dimension of each such size."""
    sizes: list[Int] = field(default_factory=list)

    @staticmethod
    def of(recorder: Calls, branches: Sequence[Traced]) -> OwnSizes | None:
        """None where all sizes are the same."""
        simplify = recorder.env.simplify
        places = list[tuple[int, int]]()
        for number, results in enumerate(zip(*[branch.results for branch in branches], strict=True)):
            specs = [result.storage_view.spec for result in results]
            if specs[0].rank == specs[1].rank:
                pairs = enumerate(zip(*[map(simplify, spec.sizes) for spec in specs], strict=True))
                places += [(number, dim) for dim, (left, right) in pairs if left != right]
        if not places:
            return None
        if any(draws_random(branch.nested.nodes) for branch in branches):
            raise NotNested("its results differ in sizes, and it draws random numbers")
        if max(depth(branch.nested.nodes) for branch in branches) > MOST_LEVELS:
            raise NotNested("its results differ in sizes, as do those of branches in it")
        for branch in branches:
            for spec in [branch.results[number].storage_view.spec for number, _ in places]:
                if [*map(simplify, spec.strides)] != [*map(simplify, dense(spec))]:
                    raise NotNested("its results differ in sizes and are not contiguous")
        return OwnSizes(recorder, places)

    def measured(self, results: list[FakeTensor]) -> list[FakeTensor]:
        sizes = [results[number].size(dim) for number, dim in self.places]
        kwargs: dict[str, object] = {"dtype": torch.int64, "device": "cpu"}
        return [cast(FakeTensor, self.recorder.call(torch.full, ((), size), kwargs)) for size in sizes]

    def alone(self, branches: Sequence[Traced]) -> list[Traced]:
        """Without the contents of tensors that they change."""
        return [replace(branch, outputs=branch.outputs[: len(self.places)]) for branch in branches]

    def read(self, sizes: Sequence[FakeTensor]) -> None:
        self.sizes = [item_of(self.recorder._mode, self.recorder.node_of(size)) for size in sizes]

    def taken(self, results: list[FakeTensor]) -> list[FakeTensor]:
        """The results with the sizes that were read."""
        found = list(results)
        for (number, dim), size in zip(self.places, self.sizes, strict=True):
            whole = found[number]
            missing = self.recorder._mode.symbols.sym(size) - whole.size(dim)  # 0, of which there is no proof
            amounts = [0, 0] * (whole.dim() - dim - 1) + [0, missing]
            found[number] = cast(FakeTensor, self.recorder.call(torch.constant_pad_nd, (whole, amounts), {}))
        return found


def differentiable_results(target: ControlFlow, branches: Sequence[Traced], needs: Sequence[bool]) -> list[int]:
    """Those that have a gradient on some side; of `torch.cond`, as in torch, all with such a dtype."""
    places = range(len(branches[0].results))
    if target.lets_gradients_be_absent:
        return [n for n in places if any(branch.gradients[n] for branch in branches)]
    return [n for n in places if any(needs) and is_real(branches[0].results[n])]


def truth_value(recorder: Calls, condition: FakeTensor) -> Node:
    """A tensor of one element as a bool of rank 0."""
    node = recorder.node_of(condition)
    if node.tensor.rank:
        node = recorder.emit.node("reshape", node, sizes=())
    return recorder.emit.convert(node, torch.bool)


def emit_cond(
    recorder: Calls,
    condition: Node,
    values: Sequence[Node],
    branches: Sequence[Traced],
    exist: tuple[tuple[int, int], ...] = (),
) -> list[FakeTensor]:
    """The node, without the operands that neither branch reads."""
    outside = outside_values(branches)
    graphs = [
        branch.nested.graph(name, branch.outputs, outside)
        for name, branch in zip(("true", "false"), branches, strict=True)
    ]
    read = [{value for node in graph.nodes for value in node.inputs} for graph in graphs]
    given = [*values, *outside]
    used = [
        n for n in range(len(given)) if any(graph.inputs[n] in seen for graph, seen in zip(graphs, read, strict=True))
    ]
    true, false = [replace(graph, inputs=renumbered([graph.inputs[n] for n in used])) for graph in graphs]
    attrs: dict[str, Attr] = {"true": true, "false": false, "exist": exist}
    return results_of(recorder, "cond", (condition, *[given[n] for n in used]), attrs)


def renumbered(inputs: Sequence[Node]) -> tuple[Node, ...]:
    for number, node in enumerate(inputs):
        node.attrs = {**node.attrs, "index": number}
    return tuple(inputs)


# The gradient.


@final
@dataclass(eq=False)
class SideGradients:
    """The gradients of one side, as a nested graph of its operands, of values of the forward, and of the tangents."""

    nested: Nested
    operands: list[Node]
    tangents: list[Node]
    outputs: list[Node]
    """The gradients, true, false, and other truths."""
    exists: list[int]
    """For each gradient the number of the output that says whether it exists; if not, it is zeros."""
    saved: dict[Node, Node] = field(default_factory=dict)
    """Values of the forward that it reads, and the inputs that stand for them."""


def recorded_backward(
    recorder: Calls, branch: Traced, values: Sequence[Node], needs: Sequence[bool], numbers: Sequence[int]
) -> SideGradients:
    """`numbers`: the results that have a gradient on any side."""
    tangents = [input_node(0, f"tangent_{number}", branch.outputs[number].tensor) for number in numbers]
    leaves = [fake for fake, need in zip(branch.fakes, needs, strict=False) if need]
    with nested(recorder, tangents) as made:
        made.sizes.update(branch.nested.sizes)
        pairs = zip([branch.results[number] for number in numbers], tangents, strict=True)
        roots = [(result, recorder.fake_of(tangent)) for result, tangent in pairs if result.requires_grad]
        found = found_gradients(recorder, leaves, roots, may_be_absent=True)
        filled = [
            zeros_like(recorder, leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)
        ]
        truths, exists = existing(recorder, made, tangents, found)
        strides = [*[dense(leaf.storage_view.spec) for leaf in leaves], *[()] * len(truths)]
        outputs = made.fresh([*map(recorder.node_of, filled), *truths], strides)
    side = SideGradients(made, inputs_like(values, "operand"), tangents, outputs, exists)
    read_from_forward(side, branch.nested)
    return side


def existing(
    recorder: Calls, made: Nested, tangents: Sequence[Node], found: Sequence[torch.Tensor | None]
) -> tuple[list[Node], list[int]]:
    """Truths that say when gradients exist, and for each gradient the number of its truth among all outputs."""
    known = Existence(recorder.emit.node, recorder.nodes[made.first :], tangents).known
    truths = [recorder.emit.full(truth, (), torch.bool, torch.device("cpu")) for truth in (True, False)]
    exists = list[int]()
    for grad in found:
        truth = truths[1] if grad is None else known.get(recorder.node_of(grad), truths[0])
        truths += [truth] if truth not in truths else []
        exists.append(len(found) + truths.index(truth))
    return truths, exists


def read_from_forward(side: SideGradients, forward: Nested) -> None:
    """Replace what the gradients read of the forward: operands stay operands, views, constants and values of sizes that
    only the forward reads are computed again, other values are saved."""
    reads = ForwardReads(side, forward)
    nodes, outside = side.nested.nodes, side.nested.outside
    inside = {value: node for value, node in outside.items() if value in reads.own or value in reads.operands}
    for value in inside:
        del outside[value]
    if not forward.sizes.isdisjoint(symbols_of([*nodes, *inside])):
        for value in forward.nodes:
            if not forward.sizes.isdisjoint(symbols_read([value])):
                reads.copy(value)
    replaced = {node: reads.resolved(value) for value, node in inside.items()}
    for node in nodes:
        node.inputs = tuple([replaced.get(value, value) for value in node.inputs])
    nodes[:0] = reads.copies.values()


@final
class ForwardReads:
    """What stands in the gradients of a side for values of its forward; `copies`: those that are computed again."""

    def __init__(self, side: SideGradients, forward: Nested) -> None:
        self.side, self.forward, self.own = side, forward, set(forward.nodes)
        self.operands = dict(zip(forward.inputs, side.operands, strict=True))
        self.outer = {node: value for value, node in forward.outside.items()}
        self.copies: dict[Node, Node] = {}

    def resolved(self, value: Node) -> Node:
        side = self.side
        if value in self.operands:
            return self.operands[value]
        if value not in self.own:
            return side.nested.read(self.outer.get(value, value))
        if not self.forward.sizes.isdisjoint(symbols_in(value.spec)):
            if draws_random([value]):
                raise NotNested("it draws random numbers, which the backward would draw again")
        elif value.op.kind is not Kind.VIEW and value.op is not CONSTANT:
            return side.saved.setdefault(value, input_node(0, f"saved_{len(side.saved)}", value.tensor))
        return self.copies.get(value) or self.copy(value)

    def copy(self, value: Node) -> Node:
        made = self.copies[value] = with_inputs(value, tuple(map(self.resolved, value.inputs)))
        return made


def add_saved_values(recorder: Calls, branches: Sequence[Traced], sides: Sequence[SideGradients]) -> None:
    """Make what the gradients read results of the forward. Both sides use the same places, where the layouts agree."""
    places: list[TensorSpec] = []
    found: list[dict[int, Node]] = []
    for side in sides:
        taken: dict[int, Node] = {}
        for value in side.saved:
            free = (n for n, spec in enumerate(places) if n not in taken and spec == value.tensor)
            number = next(free, len(places))
            places += [value.tensor] if number == len(places) else []
            taken[number] = value
        found.append(taken)
    for branch, side, taken in zip(branches, sides, found, strict=True):
        with further(branch.nested):
            values = [taken[n] if n in taken else zeros(recorder, spec) for n, spec in enumerate(places)]
            made = branch.nested.fresh(values, [spec.strides for spec in places])
        if any(node.tensor != spec for node, spec in zip(made, places, strict=True)):
            raise NotNested("a value that its gradient reads is a part of another one")
        branch.outputs += made
        saved = [
            side.saved[taken[n]] if n in taken else input_node(0, f"unused_{n}", spec) for n, spec in enumerate(places)
        ]
        side.nested.inputs = (*side.operands, *saved, *side.tangents)


def zeros(recorder: Calls, spec: TensorSpec) -> Node:
    return recorder.emit.full(0, spec.sizes, spec.dtype, spec.device)


@final
@dataclass(frozen=True, eq=False)
class CondBackward:
    """The gradients of the captured values that need them, as another `cond`. `values`: operands and saved values."""

    recorder: Calls
    target: ControlFlow
    condition: Node
    values: Sequence[Node]
    sides: Sequence[SideGradients]
    numbers: Sequence[int]

    def __call__(self, grads: tuple[torch.Tensor | None, ...]) -> Sequence[torch.Tensor | None]:
        recorder, count = self.recorder, len(self.sides[0].exists)
        if not any(grads[number] is not None for number in self.numbers):
            return [None] * count
        refuse_second_derivative("cond")
        specs = [tangent.tensor for tangent in self.sides[0].tangents]
        tangents = [self.tangent(grads[number], spec) for number, spec in zip(self.numbers, specs, strict=True)]
        truths = list(zip(*[side.exists for side in self.sides], strict=True))
        always, never = (count, count), (count + 1, count + 1)
        absent = self.target.lets_gradients_be_absent
        kept = [n for n in range(count) if not absent or truths[n] != never]
        varying = [(at, truths[n]) for at, n in enumerate(kept) if absent and truths[n] != always]
        if varying and not (recorder.is_differentiating or recorder.may_be_absent):
            raise UnsupportedOp(op="backward", reason="a tensor has a gradient on one side of a branch alone")
        said = list(dict.fromkeys([truth for _, truth in varying]))
        branches = [copied(side, [*kept, *[truth[n] for truth in said]]) for n, side in enumerate(self.sides)]
        values = [*self.values, *tangents]
        exist = tuple([(at, len(kept) + said.index(truth)) for at, truth in varying])
        made = emit_cond(recorder, self.condition, values, branches, exist)
        found = dict(zip(kept, made, strict=False))
        return [found.get(n) for n in range(count)]

    def tangent(self, grad: torch.Tensor | None, spec: TensorSpec) -> Node:
        """In the layout that the gradients were recorded for."""
        recorder = self.recorder
        node = zeros(recorder, spec) if grad is None else recorder.node_of(grad)
        if node.tensor.offset == 0 and same_strides(node.tensor.strides, spec.strides, spec.sizes):
            return node
        return recorder.emit.node("clone", node, strides=spec.strides)


def copied(side: SideGradients, kept: Sequence[int]) -> Traced:
    """The outputs `kept` of a side, in nodes of their own: a program may ask for them more than once."""
    made = side.nested
    new = {node: with_inputs(node, ()) for node in (*made.inputs, *made.outside.values())}
    for node in made.nodes:
        new[node] = with_inputs(node, tuple([new[value] for value in node.inputs]))
    nodes, outside = [new[node] for node in made.nodes], {value: new[node] for value, node in made.outside.items()}
    inputs, outputs = tuple([new[node] for node in made.inputs]), [new[side.outputs[n]] for n in kept]
    own = {node: node for node in (*inputs, *nodes)}
    return Traced(Nested(made.recording, inputs, 0, nodes, outside, {**own, **outside}), outputs)
