"""Gives the values between 2-d convolutions the layout in which the CPU library works in place.

    %2: f32[4, 64, 56, 56] = aten.convolution.default(%0, %1, ...)
    %3: f32[4, 64, 56, 56] = maximum(%2, 0)
    return %3
                                =>
    %2: f32[4, 3, 56, 56 | 9408, 1, 168, 3] = clone(%0, strides=(9408, 1, 168, 3))
    %3: f32[4, 64, 56, 56 | 200704, 1, 3584, 64] = aten.convolution.default(%2, %1, ...)
    %4: f32[4, 64, 56, 56 | 200704, 1, 3584, 64] = maximum(%3, 0)
    %5: f32[4, 64, 56, 56] = clone(%4, strides=(200704, 3136, 56, 1))
    return %5

On contiguous images the library reorders argument and result in every call. Here the argument of the first
convolution is copied once, and what follows is laid out anew by the shape rules: a view that no longer holds becomes
a `reshape`. What has no rule for other strides reads a copy in the old layout, and so does everything that leaves
the graph: outputs and saved values keep the strides that eager gives them. A value that is written to an input is
copied there anyway.

It is done where the copies move at most half of what the library would have reordered. A training graph, which saves
the argument of each convolution, therefore stays as it is, and one with `convolution_backward` is not looked at.
Weights stay. For a channels-last image the library first copies the weight into that layout, in every call; a
convolution whose weight is much larger than its images stays in the old layout, between two small copies.
The library may sum in another order: not for strict numerics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import fill_template
from kiln.graph.ir.known import OpenQuestion
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import LIBRARY
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.errors import ImpossibleView, ShapeMismatch
from kiln.graph.prims.meta import format_strides
from kiln.graph.prims.spec import Spec, TensorSpec
from kiln.graph.prims.table import Kind
from kiln.symbolic import Expr, Int, evaluate, product

CONVOLUTION, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"

FOLLOWING = frozenset({
    CONVOLUTION, "aten.max_pool2d_with_indices.default", "aten.avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default",
})  # fmt: skip
"""Library ops whose rule predicts strides from those of the argument, and which are fast in either layout."""

FOLLOWING_KINDS = frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN})
FOLLOWING_OPS = frozenset({"clone", "reshape", "cat", "pad", "flip", "gather", "index", "full", "item"})
BOUND_VIEWS = frozenset({"as_strided", "view_dtype"})
"""Views whose meaning depends on the strides of what they view."""

LEAST_ELEMENTS = 1 << 17
"""Of all arguments and results of convolutions: below it nothing is to be gained."""

HEAVY = 4
"""A weight of this many times the elements of argument and result costs more to copy than is gained."""

NOMINAL = 8
"""A symbolic size is taken to be this when elements are compared."""


@final
@dataclass(frozen=True)
class ChannelsLast:
    name: str = "channels-last"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        if context.numerics == "strict":
            return graph, 0
        library = [node for node in graph.nodes if node.op.kind is Kind.LIBRARY]
        if any(node.attrs["target"] == BACKWARD for node in library):
            return graph, 0
        chosen = {node for node in library if is_candidate(node) and not is_heavy(node)}
        reordered = sum(elements(node.inputs[0]) + elements(node) for node in chosen)
        if reordered < LEAST_ELEMENTS:
            return graph, 0
        relayout = Relayout(graph, context, chosen)
        changed = relayout.run()
        return (changed, relayout.changes) if 2 * relayout.moved <= reordered else (graph, 0)


def is_candidate(node: Node) -> bool:
    """A plain 2-d convolution on the CPU, in a dtype that the library has."""
    if node.attrs["target"] != CONVOLUTION:
        return False
    spec = node.tensor
    transposed = node.attrs["args"][6]
    return (
        spec.rank == 4
        and spec.device.type == "cpu"
        and spec.dtype in (torch.float32, torch.bfloat16)
        and transposed is False
        and 0 not in spec.sizes
        and spec.strides != format_strides(spec.sizes, "channels_last")
    )


def is_heavy(node: Node) -> bool:
    """A convolution whose weight would be copied, and is much larger than its images."""
    if node.attrs["target"] != CONVOLUTION:
        return False
    image, weight = node.inputs[:2]
    if all(size == 1 for size in weight.tensor.sizes[2:]):
        return False
    return elements(weight) > HEAVY * (elements(image) + elements(node))


def elements(node: Node) -> int:
    """How many, with a nominal number for each symbol."""
    count: Int = product(node.tensor.sizes)
    return evaluate(count, dict.fromkeys(count.free_symbols(), NOMINAL)) if isinstance(count, Expr) else count


class Relayout:
    """One run: the new node of each old one, and that node's copy in the old layout where it is asked for."""

    def __init__(self, graph: Graph, context: PassContext, chosen: set[Node]) -> None:
        self.graph = graph
        self.chosen = chosen
        self.emit = Emit(context.oracle, context.numerics)
        self.place: dict[Node, Node] = {node: node for node in graph.inputs}
        self.moved = 0
        self.changes = 0
        self._entered: dict[Node, Node] = {}
        self._restored: dict[Node, Node] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.emit.origin = node.origin
            self.place[node] = self.placed(node)
        outputs = tuple([replace(one, value=self.restored(one.value)) for one in self.graph.outputs])
        return replace(rebuilt(self.graph, self.emit.nodes, self.place), outputs=outputs)

    def placed(self, node: Node) -> Node:
        """`node` on the new inputs."""
        inputs = tuple([self.place[one] for one in node.inputs])
        if node in self.chosen:
            inputs = (self.entered(inputs[0]), *inputs[1:])
        elif all(new.spec == old.spec for new, old in zip(inputs, node.inputs, strict=True)):
            return self.emit.append(with_inputs(node, inputs))
        made = self.laid_out(node, inputs)
        if made is not None and same_values(made.spec, node.spec):
            return made
        return self.emit.append(with_inputs(node, tuple([self.restored(one) for one in node.inputs])))

    def entered(self, image: Node) -> Node:
        """`image` in channels-last layout."""
        spec = image.tensor
        strides = format_strides(spec.sizes, "channels_last")
        if spec.strides == strides:
            return image
        if image not in self._entered:
            self._entered[image] = self.copied(image, strides)
        return self._entered[image]

    def copied(self, value: Node, strides: tuple[Int, ...]) -> Node:
        self.moved += elements(value)
        self.changes += 1
        return self.emit.node("clone", value, strides=strides)

    def restored(self, old: Node) -> Node:
        """The value of `old` in its old layout: a view is taken again of its restored base."""
        new = self.place[old]
        if new.spec == old.spec:
            return new
        if old not in self._restored:
            self._restored[old] = self._restore(old, new)
        return self._restored[old]

    def _restore(self, old: Node, new: Node) -> Node:
        if old.op.kind is Kind.VIEW or isinstance(old.spec, tuple):
            return self.emit.append(
                Node(old.op, tuple(map(self.restored, old.inputs)), old.attrs, old.spec, old.origin)
            )
        return self.copied(new, old.tensor.strides)

    def laid_out(self, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        """`node` with the strides that its rule gives for the new inputs; None: it has no such rule."""
        rule = rule_of(node)
        if rule is None:
            return None
        kept = len(self.emit.nodes)
        try:
            made = rule(self.emit, node, inputs)
        except (OpenQuestion, ShapeMismatch, ImpossibleView):
            del self.emit.nodes[kept:]
            return None
        if made.op is not node.op:
            self.moved += elements(made)
        self.changes += 1
        return made


NodeRule = Callable[[Emit, Node, tuple[Node, ...]], Node]


def rule_of(node: Node) -> NodeRule | None:
    """How `node` is made again on inputs of other strides."""
    name, kind = node.op.name, node.op.kind
    if name == "aten":
        return library_step if node.attrs["target"] in FOLLOWING and not is_heavy(node) else None
    if name == "view":
        return view_or_copy
    if kind is Kind.VIEW:
        return None if name in BOUND_VIEWS else primitive
    return primitive if kind in FOLLOWING_KINDS or name in FOLLOWING_OPS else None


def primitive(emit: Emit, node: Node, inputs: tuple[Node, ...]) -> Node:
    return emit.node(node.op.name, *inputs, **node.attrs)


def view_or_copy(emit: Emit, node: Node, inputs: tuple[Node, ...]) -> Node:
    try:
        return primitive(emit, node, inputs)
    except ImpossibleView:
        return emit.node("reshape", inputs[0], sizes=node.attrs["sizes"])


def library_step(emit: Emit, node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same call; its rule predicts the strides of the results."""
    attrs = node.attrs
    args = [fill_template(one, inputs, as_it_is) for one in attrs["args"]]
    kwargs = {key: fill_template(one, inputs, as_it_is) for key, one in attrs["kwargs"]}
    spec: Spec = LIBRARY.get(attrs["target"])(emit, *args, **kwargs)  # type: ignore[misc]
    return emit.add(node.op, inputs, attrs, spec)


def as_it_is(value: Any) -> Any:
    return value


def same_values(new: Spec, old: Spec) -> bool:
    """Equal but for the strides."""
    if isinstance(new, TensorSpec) and isinstance(old, TensorSpec):
        return (new.dtype, new.sizes, new.device) == (old.dtype, old.sizes, old.device)
    if isinstance(new, tuple) and isinstance(old, tuple):
        return len(new) == len(old) and all(map(same_part, new, old))
    return new == old


def same_part(new: Any, old: Any) -> bool:
    return new is old if new is None or old is None else same_values(new, old)
