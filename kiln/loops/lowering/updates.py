"""Updates in place: which nodes are computed in the memory of the value that they replace.

    %3 = select_scatter(%0, %2, axis=2, index=5)      =>      b0: f32[1, 8, 32 at 160] in a0 = pointwise ...: load a2
    write %0 <- %3                                            write a0 = a0          only the element at 5 is stored

A chain of updates starts from an input that the graph overwrites with the end of the chain, or from a value that has
memory of its own. Each update makes a new version of that memory:

    parts         select_scatter, slice_scatter, diagonal_scatter: the new part is stored into a view
    elements      scatter, index_put: a loop that writes what the index picks
    views, clone  nothing: the same memory under another layout

A chain is lowered in place if no older version is needed after it is overwritten. Values computed from an older version
that are used later get a buffer of their own before (`kept`). Anything else is lowered as functional code: a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle, UnknownRelation
from kiln.graph.prims.errors import ImpossibleView, ShapeMismatch
from kiln.graph.prims.meta import META, has_repeated_elements, same_strides, view_strides
from kiln.graph.prims.table import Kind
from kiln.loops.lowering.checks import last_check
from kiln.loops.lowering.column import ELEMENT, LOOP_DTYPES
from kiln.plan.overloads import find_overload
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec

PARTS: Mapping[str, str] = {"select_scatter": "select", "slice_scatter": "slice", "diagonal_scatter": "diagonal"}
"""Updates of a part, and the view that the part is."""
ELEMENTS = frozenset({"scatter", "index_put"})
"""Updates of elements that data picks."""
THROUGH_STORAGE = frozenset({"as_strided", "view_dtype"})
"""Views that need the memory of their input."""
FRESH_CALLS = frozenset({
    "aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default",
    "aten.embedding_dense_backward.default",
})  # fmt: skip
"""Calls whose result has memory of its own."""
MADE_BY_LOOPS = frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.CREATE, Kind.DATA_MOVEMENT})
MANY_PARTS = 4
"""So many updates of parts of a value that is no input pay for storing it first; fewer are computed with it."""
NEVER = 1 << 60  # behind all positions


@final
@dataclass
class Updates:
    """Nodes that are computed in place: by node, the node whose memory it is, and the layout there.

    `nested`: parts that are in their place already. `read`: nodes that others read. `kept`: values that get a buffer
    before a version is overwritten.
    """

    memory: dict[Node, Node] = field(default_factory=dict)
    layout: dict[Node, TensorSpec] = field(default_factory=dict)
    nested: set[Node] = field(default_factory=set)
    read: set[Node] = field(default_factory=set)
    kept: set[Node] = field(default_factory=set)

    def __contains__(self, node: Node) -> bool:
        return node in self.memory

    @property
    def targets(self) -> frozenset[Node]:
        """The nodes whose memory is updated."""
        return frozenset(self.memory.values())


def find_updates(graph: Graph, nodes: Sequence[Node], calls: frozenset[Node], env: ShapeEnv | None) -> Updates:
    """The updates in place among `nodes`; `calls` are left to ATen."""
    found = Updates()
    if not any(node.op.name in PARTS or node.op.name in ELEMENTS for node in nodes):
        return found
    finder = _Finder(graph, nodes, calls, GuardFreeOracle(env), found)
    for write in graph.writes:
        if write.value not in found:
            finder.try_chain(write.target, write.value)
    for node in reversed(nodes):
        if node not in found and (node.op.name in PARTS or node.op.name in ELEMENTS):
            start = finder.start(node)
            if start is not None:
                finder.try_chain(start, node)
    return found


@final
class _Finder:
    def __init__(
        self, graph: Graph, nodes: Sequence[Node], calls: frozenset[Node], oracle: GuardFreeOracle, found: Updates
    ) -> None:
        self.graph, self.nodes, self.calls, self.oracle, self.found = graph, nodes, calls, oracle, found
        self.position = {node: number for number, node in enumerate(nodes)}
        self.last_check = last_check(nodes)
        self.users: dict[Node, list[Node]] = {}
        for node in nodes:
            for operand in node.inputs:
                self.users.setdefault(operand, []).append(node)
        self.results = {output.value for output in graph.outputs if output.alias is None}
        self.results |= {write.value for write in graph.writes}

    def try_chain(self, target: Node, value: Node) -> None:
        """Enter the chain of updates from `target` to `value`, if it is one that can be in place."""
        spec = target.spec
        if not isinstance(spec, TensorSpec) or 0 in spec.sizes or has_repeated_elements(spec):
            return
        if spec.dtype not in LOOP_DTYPES or target in self.found.targets:
            return
        chain = _Chain(target, self.oracle, self.calls)
        try:
            placed = chain.place(value, spec)
            for node in (
                self.nodes if placed else ()
            ):  # calls and results may need the views; an unknown relation raises
                if node.op.kind is Kind.VIEW and node not in chain.layout:
                    layout_of(node, chain.layout, self.oracle)
        except (UnknownRelation, ShapeMismatch, ImpossibleView):
            return
        if not placed or not chain.updates or any(node in self.found for node in chain.layout):
            return
        is_input = target.op.name == "input"
        if is_input and min(map(self.position.__getitem__, chain.updates)) < self.last_check:
            return
        parts = sum(node.op.name in PARTS for node in chain.updates)
        if not is_input and parts == len(chain.updates) and parts < MANY_PARTS:
            return
        kept = self._kept(chain)
        if kept is None:
            return
        self.found.memory.update(dict.fromkeys(chain.layout, target))
        self.found.layout.update(chain.layout)
        self.found.nested |= chain.nested
        self.found.read |= {node for node in chain.layout if self._is_read(node, chain)}
        self.found.kept |= kept
        if not is_input:
            self.found.kept.add(target)

    def start(self, node: Node) -> Node | None:
        """What the chain of updates that ends with `node` starts from: memory that the graph makes for it."""
        updates: list[Node] = []
        while node.op.name in PARTS or node.op.name in ELEMENTS or node.op.name in ("view", "permute"):
            if node.op.name != "view" and node.op.name != "permute":
                updates.append(node)
            node = node.inputs[0]
        if self._is_own(node):
            return node
        return next((update for update in reversed(updates[1:]) if self._is_own(update)), None)

    def _is_own(self, node: Node) -> bool:
        if node in self.found or node in self.calls or not isinstance(node.spec, TensorSpec) or node.spec.offset != 0:
            return False
        if node.op.kind is Kind.LIBRARY:
            return node.attrs["target"] in FRESH_CALLS
        return node.op.kind in MADE_BY_LOOPS and node.op.name != "constant"

    def _kept(self, chain: _Chain) -> set[Node] | None:
        """Values to store before the version that they are computed from is overwritten; None: that is impossible."""
        overwritten = [*map(self.position.__getitem__, chain.updates), NEVER]
        limits = {node: overwritten[version] for node, version in chain.version.items()}
        limits[chain.target] = overwritten[0]
        if any(self._last_use(node, chain) > limit for node, limit in limits.items()):
            return None
        kept: set[Node] = set()
        for node in self.nodes:
            if node in limits:
                continue
            limit = min((limits.get(operand, NEVER) for operand in node.inputs), default=NEVER)
            if limit == NEVER or not self._shows_later(node):
                continue
            if self._last_use(node, chain) <= limit:
                limits[node] = limit
            elif node.op.kind in (Kind.LIBRARY, Kind.STRUCTURE) or node.op.name in THROUGH_STORAGE:
                return None
            else:
                kept.add(node)
        return kept

    def _is_read(self, node: Node, chain: _Chain) -> bool:
        return node in self.results or any(user not in chain.layout for user in self.users.get(node, ()))

    def _last_use(self, node: Node, chain: _Chain) -> int:
        """The position of the last reader. Views in the chain, and parts that are in their place, read nothing."""
        if node in self.results:
            return NEVER
        readers = (user for user in self.users.get(node, ()) if user not in chain.layout or user in chain.updates)
        return max((self.position[reader] for reader in readers), default=-1)

    def _shows_later(self, node: Node) -> bool:
        """May a reader of `node` read what `node` reads: is it computed there, or a view?"""
        if node.op.kind in (Kind.VIEW, Kind.STRUCTURE):
            return True
        if node.op.kind is Kind.LIBRARY:
            return node.attrs["target"] not in FRESH_CALLS and not _is_functional(node)
        return node not in self.calls and ELEMENT.get(node.op.name) is not None


def _is_functional(node: Node) -> bool:
    """Is no result of a call a view of an argument?"""
    return all(result.alias_info is None for result in find_overload(node.attrs["target"])._schema.returns)


@final
class _Chain:
    """Updates of the memory of `target`, oldest first, and the versions and layouts of the nodes in it."""

    def __init__(self, target: Node, oracle: GuardFreeOracle, calls: frozenset[Node]) -> None:
        self.target, self.oracle, self.calls = target, oracle, calls
        self.updates: list[Node] = []
        self.version: dict[Node, int] = {}
        self.layout: dict[Node, TensorSpec] = {}
        self.nested: set[Node] = set()

    def place(self, node: Node, spec: TensorSpec) -> bool:
        """Can `node` be made at `spec`, as the newest version of that memory?"""
        if node is self.target:
            return not self.updates and spec == node.spec
        if node in self.calls or not isinstance(node.spec, TensorSpec) or node.spec.dtype is not spec.dtype:
            return False
        if node.spec.rank != spec.rank or not same_strides(node.spec.strides, spec.strides, spec.sizes):
            return False
        if self._is_current(node):
            return self.view(node) == spec
        if node.op.name in PARTS or node.op.name in ELEMENTS:
            return self._place_update(node, spec)
        below = self._layout_below(node, spec)
        if below is None or not self.place(node.inputs[0], below):
            return False
        self._enter(node, spec)
        return True

    def _place_update(self, node: Node, spec: TensorSpec) -> bool:
        if any(0 in operand.tensor.sizes for operand in node.inputs):
            return False
        if not self.place(node.inputs[0], spec):
            return False
        if node.op.name in PARTS:
            part = part_layout(self.oracle, node, spec)
            if self._place_nested(node.inputs[1], part):
                self.nested.add(node)
                self._enter(node, spec)
                return True
        self.updates.append(node)
        self._enter(node, spec)
        return True

    def _place_nested(self, node: Node, part: TensorSpec) -> bool:
        """Is the new part itself an update of the old one, whose nodes nothing else needs?"""
        saved = list(self.updates), dict(self.version), dict(self.layout), set(self.nested)
        if (node.op.name in PARTS or node.op.name in ELEMENTS) and self.place(node, part):
            return True
        self.updates, self.version, self.layout, self.nested = saved
        return False

    def _enter(self, node: Node, spec: TensorSpec) -> None:
        self.version[node], self.layout[node] = len(self.updates), spec

    def _is_current(self, node: Node) -> bool:
        """Is it the newest version, or a view of it?"""
        while node not in self.layout and node is not self.target and node.op.kind is Kind.VIEW:
            node = node.inputs[0]
        return self.version.get(node, 0 if node is self.target else -1) == len(self.updates)

    def view(self, node: Node) -> TensorSpec | None:
        """The layout of a node of the chain, or of a view of one."""
        return layout_of(node, {**self.layout, self.target: self.target.tensor}, self.oracle)

    def _layout_below(self, node: Node, spec: TensorSpec) -> TensorSpec | None:
        """Where the input of a view must be, that the view is at `spec`."""
        rule = LAYOUT_BELOW.get(node.op.name)
        return None if rule is None else rule(self.oracle, node, spec)


def part_layout(oracle: GuardFreeOracle, node: Node, spec: TensorSpec) -> TensorSpec:
    """The part that `node` sets, in a tensor of `spec`."""
    made = META[PARTS[node.op.name]](oracle, spec, **node.attrs)
    assert isinstance(made, TensorSpec)
    return made


def layout_of(node: Node, layouts: Mapping[Node, TensorSpec], oracle: GuardFreeOracle) -> TensorSpec | None:
    """The layout of a view of a node in `layouts`."""
    known = layouts.get(node)
    if known is not None:
        return known
    if node.op.kind is not Kind.VIEW or node.op.name in THROUGH_STORAGE:
        return None
    below = layout_of(node.inputs[0], layouts, oracle)
    made = None if below is None else META[node.op.name](oracle, below, **node.attrs)
    return made if isinstance(made, TensorSpec) else None


LayoutRule = Callable[[GuardFreeOracle, Node, TensorSpec], TensorSpec | None]


def _below_view(oracle: GuardFreeOracle, node: Node, spec: TensorSpec) -> TensorSpec | None:
    sizes = node.inputs[0].tensor.sizes
    strides = view_strides(oracle, spec, sizes)
    return None if strides is None else spec.with_view(sizes, strides, spec.offset)


def _below_permute(oracle: GuardFreeOracle, node: Node, spec: TensorSpec) -> TensorSpec:
    dims = node.attrs["dims"]
    back = [dims.index(axis) for axis in range(len(dims))]
    sizes, strides = (tuple([values[axis] for axis in back]) for values in (spec.sizes, spec.strides))
    return spec.with_view(sizes, strides, spec.offset)


def _below_unsqueeze(oracle: GuardFreeOracle, node: Node, spec: TensorSpec) -> TensorSpec | None:
    made = META["squeeze"](oracle, spec, axes=(node.attrs["axis"],))
    return made if isinstance(made, TensorSpec) else None


def _below_squeeze(oracle: GuardFreeOracle, node: Node, spec: TensorSpec) -> TensorSpec | None:
    made: object = spec
    for axis in node.attrs["axes"]:
        assert isinstance(made, TensorSpec)
        made = META["unsqueeze"](oracle, made, axis=axis)
    return made if isinstance(made, TensorSpec) else None


def _same_layout(oracle: GuardFreeOracle, node: Node, spec: TensorSpec) -> TensorSpec:
    return spec


LAYOUT_BELOW: Mapping[str, LayoutRule] = {
    "view": _below_view,
    "reshape": _below_view,
    "permute": _below_permute,
    "squeeze": _below_squeeze,
    "unsqueeze": _below_unsqueeze,
    "clone": _same_layout,
}
"""Where the input of an op must be, that the op is nothing but another view of it."""
