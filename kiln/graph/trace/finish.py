"""The functional graph of a finished recording: live nodes, writes to inputs, aliases of outputs.

graph(%0: f32[4] "x"):
    %1: f32[4] = add(%0, 1.0)
    write %0 <- %1                    x.add_(1) was called
    return %1 is input 0              and x returned
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from torch.autograd.function import BackwardCFunction

from kiln.graph.ir.graph import Alias, Graph, Output, Write
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import live_nodes, nested_graphs, symbols_in, symbols_read
from kiln.graph.ops.breaks import UnsupportedMutation, UnsupportedOp
from kiln.graph.prims.meta import has_repeated_elements, same_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.graph.trace.autograd_edges import edge_of, edges_behind, leaf_of
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.outer import outer_node
from kiln.graph.trace.storage_view import StorageView, may_overlap, root_of
from kiln.symbolic import Expr, ShapeEnv, Symbol
from kiln.tensor.spec import TensorSpec

Owner = tuple[Literal["input", "output"], int, FakeTensor]
"""The input or output that owns memory: its kind, its number, its fake."""


def build_graph(mode: RecordingMode, records: Sequence[InputRecord], outputs: Sequence[FakeTensor]) -> Graph:
    """Marks the records that are used, which in order are the graph's inputs."""
    views = read_through_roots(mode, records)
    written = [(record, views.get(value, value)) for record, value in _written(records)]
    draft = _Outputs(mode, records, outputs)
    made = [draft.output(fake) for fake in outputs]
    roots = [output.value for output in made] + [value for _, value in written]
    live = live_nodes(mode.emit.nodes, roots)
    nodes = [node for node in mode.emit.nodes if node in live]
    history = any(fake.requires_grad and not fake.is_leaf for fake in outputs) or any(
        record.has_history for record in records
    )
    aliased = {output.alias.index for output in made if output.alias and output.alias.of == "input"}
    targets = {id(record) for record, _ in written}
    for index, record in enumerate(records):
        record.used = record.node in live or index in aliased or id(record) in targets or (record.kept and history)
    state_checks(mode.symbols.env, nodes, mode.forgotten)
    use_for_gradients(mode, records, outputs)
    use_for_sizes(records, nodes)
    used = [index for index, record in enumerate(records) if record.used]
    refuse_without_memory([*[records[index].node for index in used], *nodes])
    numbers = {index: number for number, index in enumerate(used)}
    inputs = tuple([records[index].node for index in used])
    versions = counted_versions(records, mode.counted_twice)
    writes = tuple([
        Write(record.node, value, max(versions[id(root_of(record.view.storage))], mode.is_versioned(record.view)))
        for record, value in written
    ])  # fmt: skip
    return Graph(inputs, nodes, tuple([output.renumbered(numbers) for output in made]), writes)


def refuse_without_memory(nodes: Iterable[Node]) -> None:
    """Meta tensors may be seen, as those that `functional_call` replaces, but no result is computed from them."""
    for node in nodes:
        if isinstance(node.spec, TensorSpec) and node.spec.device.type == "meta":
            if node.op.name == "input":
                raise UnsupportedInput(name=node.attrs["name"], reason="it is a meta tensor")
            raise UnsupportedOp(op=node.op.name, reason="its result is a meta tensor")


def counted_versions(records: Sequence[InputRecord], counted_twice: Mapping[int, int]) -> Counter[int]:
    """How often the inputs in one memory were changed in place, by the `id` of its root. Some operators do not count on
    fakes: the version of what they change rises by at least one all the same. Of a branch it is what both sides count
    (`branch_versions.py` of the interpreter has the rest)."""
    versions = Counter({root: -count for root, count in counted_twice.items()})
    for record in records:
        if isinstance(record.fake, FakeTensor):
            versions[id(root_of(record.view.storage))] += record.version - record.first_version
    return versions


def read_through_roots(mode: RecordingMode, records: Sequence[InputRecord]) -> dict[Node, Node]:
    """Inputs that are views of an input that is written, and the nodes that now read them there.

    graph(%0: "x", %1: "x[1:]")                    graph(%0: "x", %1: "x[1:]"):
        %2 = sin(%1)                        =>         %3 = as_strided(%0, ...)
        write %0 <- ...                                %2 = sin(%3)

    So it shows in the graph that they must be read before the write.
    """
    tensors = [record for record in records if isinstance(record.fake, FakeTensor)]
    roots = {id(record.view): record.node for record in tensors}
    views: dict[Node, Node] = {}
    for record in tensors:
        view = record.view
        if view.step is not None and view.storage.version:
            root = roots[id(root_of(view.storage))]
            views[record.node] = Node(PRIMS["as_strided"], (root,), view.step[1], record.node.spec)
    for node in mode.emit.nodes if views else ():
        node.inputs = tuple([views.get(operand, operand) for operand in node.inputs])
    mode.emit.nodes[:0] = views.values()
    return views


def state_checks(env: ShapeEnv, nodes: Sequence[Node], forgotten: Collection[Symbol]) -> None:
    """Assumptions on data-dependent sizes are checked when the last of them is read, before any is used.

    `forgotten`: sizes that only a call that failed has read.
    """
    reads = {node.spec.value: number for number, node in enumerate(nodes) if node.op.name == "local_scalar"}  # type: ignore[union-attr]
    checks: dict[int, list[tuple[str, Expr]]] = {number: [] for number in reads.values()}
    nested = [graph for node in nodes for graph in nested_graphs(node)]
    inner = set[Symbol]().union(*map(sizes_read_inside, nested))
    for graph in nested:
        state_inner_checks(env, graph, inner, set())
    for check in env.checks:
        if not inner.union(forgotten).isdisjoint(check.relation.free_symbols()):
            continue
        read = [reads[symbol] for symbol in check.relation.free_symbols() if symbol in reads]
        if read:
            checks[max(read)].append((check.relation.kind, check.relation.difference))
    for number, stated in checks.items():
        nodes[number].attrs = {**nodes[number].attrs, "checks": tuple(stated)}


def sizes_read_inside(graph: Graph) -> set[Symbol]:
    """The sizes that a nested graph and those in it read."""
    nested = [sizes_read_inside(inner) for node in graph.nodes for inner in nested_graphs(node)]
    return set(symbols_read([node for node in graph.nodes if node.op.name == "local_scalar"])).union(*nested)


def state_inner_checks(env: ShapeEnv, graph: Graph, inner: set[Symbol], known: set[Symbol]) -> None:
    """Likewise in a nested graph, of the sizes `inner` that such graphs read; those `known` are read around it."""
    known = set(known)
    for node in graph.nodes:
        for nested in nested_graphs(node):
            state_inner_checks(env, nested, inner, known)
        if node.op.name == "local_scalar":
            read = symbols_read([node])
            known |= read
            relations = [check.relation for check in env.checks]
            own = [relation for relation in relations if not read.isdisjoint(relation.free_symbols())]
            stated = [relation for relation in own if inner.intersection(relation.free_symbols()) <= known]
            node.attrs = {**node.attrs, "checks": tuple([(each.kind, each.difference) for each in stated])}


def use_for_gradients(mode: RecordingMode, records: Sequence[InputRecord], outputs: Sequence[FakeTensor]) -> None:
    """Inputs that no output needs but that have a gradient: zeros, for those overwritten entirely."""
    waiting = [record for record in records if record.requires_grad and not record.used]
    if not waiting:
        return
    with mode:  # autograd may regenerate the history of a view
        edges = list(map(edge_of, outputs))
    reached = {id(leaf_of(function)) for function, _ in edges_behind(edges)}
    for record in waiting:
        record.used = id(record.leaf) in reached


def refuse_lost_history(mode: RecordingMode, outputs: Sequence[FakeTensor]) -> None:
    """Break at a part of a split whose base was then changed in place: eager has no gradient function for it."""
    views = [output for output in outputs if output._is_view()]
    if not views or not mode.mutations:
        return
    with mode:  # autograd may regenerate the history of a view
        for view in views:
            try:
                view.grad_fn  # noqa: B018  (computed on demand)
            except RuntimeError as error:
                raise UnsupportedMutation(op="view", reason=str(error)) from error


def use_for_sizes(records: Sequence[InputRecord], nodes: Sequence[Node]) -> None:
    """Inputs that only bind a symbol: an integer, or a tensor with that size."""
    waiting = [(record, symbols_in(record.spec)) for record in records if not record.used]
    if not any(symbols for _, symbols in waiting):
        return
    needed = {symbol for node in nodes for symbol in symbols_in((node.spec, *node.attrs.values()))}
    needed.difference_update(*(symbols_in(record.spec) for record in records if record.used))
    # Integers first: tensors would be kept alive.
    for record, symbols in sorted(waiting, key=lambda pair: isinstance(pair[0].spec, TensorSpec)):
        record.used = not needed.isdisjoint(symbols)
        needed -= symbols


def changes_inputs(records: Sequence[InputRecord]) -> bool:
    """Whether the recording writes to an input."""
    return bool(_written(records))


def _written(records: Sequence[InputRecord]) -> list[tuple[InputRecord, Node]]:
    found: list[tuple[InputRecord, Node]] = []
    for record in records:
        if isinstance(record.fake, FakeTensor):
            view = record.view
            if view.step is None and view.node is not record.node:
                found.append((record, view.node))
    return found


class _Outputs:
    """Which outputs share memory, and with what."""

    def __init__(self, mode: RecordingMode, records: Sequence[InputRecord], outputs: Sequence[FakeTensor]) -> None:
        self.mode = mode
        views = {id(fake): fake.storage_view for fake in outputs if not fake.is_outer}
        self.sharing = Counter(id(view.storage) for view in views.values())
        self.made = 0
        self.owners: dict[int, Owner] = {}
        self.same: dict[int, Owner] = {}
        self.bases: set[int] = set()
        for index, record in enumerate(records):
            if isinstance(record.fake, FakeTensor):
                owner = self.same[id(record.fake)] = ("input", index, record.fake)
                if record.view.step is None:
                    self.owners[id(record.view.storage)] = owner
                self.bases.add(id(record.node))

    def output(self, fake: FakeTensor) -> Output:
        if fake.is_outer:
            self.made += 1
            return Output(outer_node(self.mode, fake), None, fake.requires_grad)
        view = fake.storage_view
        value = self.mode.memory.read(view)
        owner = self.same.get(id(fake)) or self.owners.get(id(view.storage))
        alias: Alias | None = None
        if owner is None:
            self.owners[id(view.storage)] = self.same[id(fake)] = ("output", self.made, fake)
            inside = view.step is not None and self.sharing[id(view.storage)] > 1
            value = self.within_root(view) if inside else self.owned(view, value)
        else:
            of, index, first = owner
            if of == "input" and fake is not first and fake.requires_grad:
                refuse_overlapping_base(first.storage_view.spec, self.mode.symbols.env)
            refuse_separate_gradients(fake, first)
            refuse_custom_view(self.mode, fake, first)
            alias = Alias(of, index, None if fake is first else view.spec)
        self.made += 1
        counted = 0 if fake.is_inference() else fake._version
        versions = max(counted, self.mode.is_versioned(view)) if owner is None else 0
        return Output(value, alias, fake.requires_grad, versions)

    def within_root(self, view: StorageView) -> Node:
        """The value of a view as part of its storage, which other outputs share."""
        root = root_of(view.storage)
        return self.mode.memory.within(view, self.owned(root, self.mode.memory.read(root)))

    def owned(self, view: StorageView, value: Node) -> Node:
        """A value that no other output has, with eager's strides."""
        base, spec = base_of(value), view.spec
        shared = base.op.kind is Kind.STRUCTURE and base.op.name != "item"
        if shared or id(base) in self.bases or not same_strides(value.tensor.strides, spec.strides, value.tensor.sizes):
            base = value = self.copied(value, spec)
            if has_repeated_elements(spec):
                base = value.inputs[0]
        self.bases.add(id(base))
        return value

    def copied(self, value: Node, spec: TensorSpec) -> Node:
        """A fresh copy with the strides of `spec`; repeated elements are copied once, then expanded."""
        emit = self.mode.emit
        if not has_repeated_elements(spec):
            return emit.node("clone", value, strides=spec.strides)
        for axis, (stride, size) in enumerate(zip(spec.strides, spec.sizes, strict=True)):
            if stride == 0 and size != 1:
                value = emit.node("slice", value, axis=axis, start=0, stop=1, step=1)
        return emit.node("expand", emit.node("clone", value, strides=spec.strides), sizes=spec.sizes)


def refuse_overlapping_base(base: TensorSpec, env: ShapeEnv) -> None:
    """Views of inputs are rebuilt by `as_strided`, whose gradient differs if elements overlap."""
    if may_overlap(base, env):
        raise UnsupportedOp(op="view", reason=f"an output is a view of an input with overlapping elements: {base}")


def refuse_separate_gradients(fake: FakeTensor, first: FakeTensor) -> None:
    """Shared memory is rebuilt as views, through which gradients flow. A detached tensor that got gradients of its own
    by a write shares only memory."""
    if not (fake.requires_grad and first.requires_grad and fake._version):
        return
    bases = [tensor if tensor._base is None else tensor._base for tensor in (fake, first)]
    if bases[0] is not bases[1]:
        raise UnsupportedOp(op="detach", reason="a detached tensor that was changed requires gradients of its own")


def refuse_custom_view(mode: RecordingMode, fake: FakeTensor, first: FakeTensor) -> None:
    """A result of an `autograd.Function` in the memory of its argument has a backward of its own, which a view that is
    rebuilt outside has not."""
    views = [view for view in (fake, first) if fake is not first and view.requires_grad and view._base is not None]
    for view in views:
        with mode:  # autograd computes the gradient function of a view on demand
            node, end = view.grad_fn, view._base.grad_fn  # type: ignore[union-attr]
        while node is not None and node is not end:
            if isinstance(node, BackwardCFunction):
                reason = "a result of the function is its argument, or a view of it"
                if refuse := getattr(getattr(node, "run", None), "refuse", None):
                    refuse(reason)
                raise UnsupportedOp(op="view", reason=reason)
            node = node.next_functions[0][0] if node.next_functions else None
