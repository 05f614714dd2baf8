"""Lays out the values between convolutions of images channels last, as the libraries prefer; on a GPU volumes, too.

    %2: f32[4, 64, 56, 56] = aten.convolution.default(%0, %1, ...)
    %3: f32[4, 64, 56, 56] = maximum(%2, 0)
    return %3
                                =>
    %2: f32[4, 3, 56, 56 | 9408, 1, 168, 3] = clone(%0, strides=(9408, 1, 168, 3))
    %3: f32[4, 64, 56, 56 | 200704, 1, 3584, 64] = aten.convolution.default(%2, %1, ...)
    %4: f32[4, 64, 56, 56 | 200704, 1, 3584, 64] = maximum(%3, 0)
    %5: f32[4, 64, 56, 56] = clone(%4, strides=(200704, 3136, 56, 1))
    return %5

For contiguous images the CPU library reorders argument and result in every call. Here the argument of the first
convolution is copied once, and the layout propagates by the shape rules; a view that becomes impossible turns into a
`reshape`. Ops without a rule for other strides read a copy in the old layout, as does everything that leaves the graph:
outputs and saved values keep eager's strides. A value written to an input is copied there anyway.

It is done if the copies of images move at most half of what the library would reorder. For channels-last images the
library copies the weight into that layout in every call: on the CPU, a convolution whose weight is much larger than its
images keeps the old layout, between two small copies. On the GPU the library copies the weight for either layout; here
it is copied (under autocast, by the cast) in its stead, which does not count. Nor does there a copy of what a loop
makes, which the loop writes in that layout.
Depthwise convolutions with several results for a channel, and all of volumes, keep it on the GPU: cuDNN would run a
kernel for each group.

Training: a partitioned graph saves the argument of each convolution in eager's layout and gains nothing. On the GPU,
whose tensor cores need this layout for half precision, the joint graph is laid out before the partition, backward
convolutions included; only gradients of weights are copied back. On the CPU a joint graph is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.ir.size_oracle import UnknownRelation
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import LIBRARY
from kiln.graph.passes.align_costs import BOUND_VIEWS
from kiln.graph.passes.convolutions import BACKWARD, CONVOLUTION, IMAGES, convolution_of, on_cpu
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.errors import ImpossibleView, ShapeMismatch
from kiln.graph.prims.meta import format_strides
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, evaluate, product
from kiln.tensor.spec import Spec, TensorSpec

DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float16, torch.bfloat16),
}
"""Dtypes with fast channels-last convolutions, by device."""

VOLUMES = 5
"""The rank of a batch of volumes."""
RANKS: Mapping[str, tuple[int, ...]] = {"cpu": (4,), "cuda": (4, VOLUMES)}
"""Of images whose convolutions are faster, by device."""

FOLLOWING = frozenset({
    CONVOLUTION, "aten.max_pool2d_with_indices.default", "aten.avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default", BACKWARD, "aten.max_pool2d_with_indices_backward.default",
    "aten.avg_pool2d_backward.default", "aten._adaptive_avg_pool2d_backward.default",
})  # fmt: skip
"""Library ops that preserve the layout and are fast in either."""

FOLLOWING_KINDS = frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN})
FOLLOWING_OPS = frozenset({"clone", "reshape", "cat", "pad", "flip", "gather", "index", "full", "item"})

LEAST_ELEMENTS = 1 << 17
"""Of all arguments and results of convolutions: below this nothing is gained."""

HEAVY = 4
"""A weight with this many times the elements of argument and result costs more to copy than is gained."""

NOMINAL = 8
"""Assumed for a symbolic size when counting elements."""


@final
@dataclass(frozen=True)
class ChannelsLast:
    name: str = "channels-last"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        library = [node for node in graph.nodes if node.op.kind is Kind.LIBRARY]
        if any(node.attrs["target"] == BACKWARD and on_cpu(node) for node in library):
            return graph, 0
        chosen = {node for node in library if is_candidate(node) and not is_heavy(node)}
        reordered = sum(elements(node.inputs[0]) + elements(images_of(node)[-1]) for node in chosen)
        if reordered < LEAST_ELEMENTS:
            return graph, 0
        relayout = Relayout(graph, context, chosen)
        changed = relayout.run()
        return (changed, relayout.changes) if 2 * relayout.moved <= reordered else (graph, 0)


def images_of(node: Node) -> tuple[Node, ...]:
    """The images of a convolution; for a forward convolution, also its result."""
    count = IMAGES[node.attrs["target"]]
    return (*node.inputs[:count], node) if count == 1 else node.inputs[:count]


def is_candidate(node: Node) -> bool:
    """Whether it is a convolution of images or volumes, not transposed, in a dtype for this layout."""
    call = convolution_of(node)
    if call is None or runs_by_group(node):
        return False
    specs = [image.tensor for image in images_of(node)]
    spec = specs[-1]
    return (
        spec.rank in RANKS.get(spec.device.type, ())
        and spec.dtype in DTYPES.get(spec.device.type, ())
        and not call.transposed
        and 0 not in spec.sizes
        and any(image.strides != channels_last_strides(image) for image in specs)
    )


def runs_by_group(node: Node) -> bool:
    """Whether cuDNN has only kernels of one group: one channel makes several. ATen has a kernel for the old layout."""
    call = convolution_of(node)
    if call is None or on_cpu(node):
        return False
    made, taken, *_ = call.weight.tensor.sizes
    return taken == 1 and call.groups != 1 and (made != call.groups or call.x.tensor.rank == VOLUMES)


def channels_last_strides(image: TensorSpec) -> tuple[Int, ...]:
    return format_strides(image.sizes, "channels_last_3d" if image.rank == VOLUMES else "channels_last")


def is_moved_alone(value: Node) -> bool:
    """Whether a copy of it is a loop of its own: on a GPU, the loop that makes a value writes the copy."""
    base = base_of(value)
    in_loop = base.op.kind in FOLLOWING_KINDS or base.op.name in FOLLOWING_OPS - {"item"}
    return value.tensor.device.type == "cpu" or not in_loop


def wants_weight(node: Node) -> bool:
    """Whether the weight is copied here: on the GPU."""
    weight = node.inputs[IMAGES[node.attrs["target"]]]
    return not on_cpu(node) and any(size != 1 for size in weight.tensor.sizes[2:])


def is_heavy(node: Node) -> bool:
    """Whether, on the CPU, the weight would be copied and is much larger than the images."""
    if node.attrs["target"] != CONVOLUTION or not on_cpu(node):
        return False
    image, weight = node.inputs[:2]
    if all(size == 1 for size in weight.tensor.sizes[2:]):
        return False
    return elements(weight) > HEAVY * (elements(image) + elements(node))


def elements(node: Node) -> int:
    """The number of elements, with a nominal size for each symbol."""
    count: Int = product(node.tensor.sizes)
    return evaluate(count, dict.fromkeys(count.free_symbols(), NOMINAL)) if isinstance(count, Expr) else count


class Relayout:
    """State of a run: the new node of each old one, and copies in the old layout where needed."""

    def __init__(self, graph: Graph, context: PassContext, chosen: set[Node]) -> None:
        self.graph = graph
        self.chosen = chosen
        self.emit = Emit(context.oracle)
        self.new: dict[Node, Node] = {node: node for node in graph.inputs}
        self.moved = 0
        self.changes = 0
        self._entered: dict[Node, Node] = {}
        self._restored: dict[Node, Node] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.emit.origin = node.origin
            self.new[node] = self.relaid(node)
        outputs = tuple([replace(output, value=self.restored(output.value)) for output in self.graph.outputs])
        return replace(rebuilt(self.graph, self.emit.nodes, self.new), outputs=outputs)

    def relaid(self, node: Node) -> Node:
        """`node` on the new inputs."""
        inputs = tuple([self.new[value] for value in node.inputs])
        if node in self.chosen:
            count = IMAGES[node.attrs["target"]]
            images, (weight, *rest) = map(self.entered, inputs[:count]), inputs[count:]
            inputs = (*images, self.laid_out_weight(weight) if wants_weight(node) else weight, *rest)
        elif all(new.spec == old.spec for new, old in zip(inputs, node.inputs, strict=True)):
            return self.emit.append(with_inputs(node, inputs))
        made = self.laid_out(node, inputs)
        if made is not None and same_values(made.spec, node.spec):
            return made
        return self.emit.append(with_inputs(node, tuple(map(self.restored, node.inputs))))

    def laid_out_weight(self, weight: Node) -> Node:
        """`weight` in channels-last layout. The copy stands for the library's own."""
        moved = self.moved
        made = self.entered(weight)
        self.moved = moved
        return made

    def entered(self, image: Node) -> Node:
        """`image` in channels-last layout."""
        strides = channels_last_strides(image.tensor)
        if image.tensor.strides == strides:
            return image
        if image not in self._entered:
            self._entered[image] = self.copied(image, strides)
        return self._entered[image]

    def copied(self, value: Node, strides: tuple[Int, ...]) -> Node:
        if is_moved_alone(value):
            self.moved += elements(value)
        self.changes += 1
        return self.emit.node("clone", value, strides=strides)

    def restored(self, old: Node) -> Node:
        """The value of `old` in its old layout; a view becomes a view of its restored base."""
        new = self.new[old]
        if new.spec == old.spec:
            return new
        if old not in self._restored:
            self._restored[old] = self._restore(old, new)
        return self._restored[old]

    def _restore(self, old: Node, new: Node) -> Node:
        if old.op.kind is Kind.VIEW or isinstance(old.spec, tuple):
            return self.emit.append(with_inputs(old, tuple(map(self.restored, old.inputs))))
        return self.copied(new, old.tensor.strides)

    def laid_out(self, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        """`node` with the strides of its rule for the new inputs; None without a rule."""
        rule = rule_of(node)
        if rule is None:
            return None
        kept = len(self.emit.nodes)
        try:
            made = rule(self.emit, node, inputs)
        except (UnknownRelation, ShapeMismatch, ImpossibleView):
            del self.emit.nodes[kept:]
            return None
        if made.op is not node.op:
            self.moved += elements(made)
        self.changes += 1
        return made


NodeRule = Callable[[Emit, Node, tuple[Node, ...]], Node]


def rule_of(node: Node) -> NodeRule | None:
    """How `node` is made on inputs of other strides; None if it cannot be."""
    name, kind = node.op.name, node.op.kind
    if name == "aten":
        follows = node.attrs["target"] in FOLLOWING and not is_heavy(node) and not runs_by_group(node)
        return library_step if follows else None
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
    """The same call, with strides of the results from its rule."""
    args, kwargs = node_arguments(node, inputs)
    return emit.add(node.op, inputs, node.attrs, LIBRARY[node.attrs["target"]](emit, *args, **kwargs))


def same_values(new: Spec | None, old: Spec | None) -> bool:
    """Whether only strides differ."""
    if isinstance(new, TensorSpec) and isinstance(old, TensorSpec):
        return (new.dtype, new.sizes, new.device) == (old.dtype, old.sizes, old.device)
    if isinstance(new, tuple) and isinstance(old, tuple):
        return len(new) == len(old) and all(map(same_values, new, old))
    return new == old
