"""Replaces the sum of a row with at most one non-zero element by that element.

    %3 = eq(iota(50257), %target)              the gradient of a loss with respect to log-probabilities
    %4 = where(%3, %a, 0.0)
    %5 = sum(%4, axes=(1,))          =>        %5 = where(0 <= %target < 50257, %a, 0.0), one per row

`%target` and `%a` must be constant along the row; another condition on the row may be combined with the comparison.
The result has the same bits. Every element is then computed from values of its row, without an earlier pass over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import can_replace
from kiln.graph.passes.uniform import Uniform
from kiln.support.records import dataclass
from kiln.symbolic import Int


@final
@dataclass(frozen=True, slots=True)
class OneHot:
    """`value` at index `target` if `condition` (where given) holds; then converted to each of `dtypes` in turn."""

    target: Node
    condition: Node | None
    value: Node
    dtypes: tuple[torch.dtype, ...]


@final
@dataclass(frozen=True)
class OneHotSums:
    name: str = "one-hot-sums"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        uniform = Uniform()
        found = {node for node in graph.nodes if one_hot_row(node, uniform) is not None}
        return rewrite(graph, lambda builder, node: number_of(builder, node, uniform), context.oracle, only=found)


def one_hot_row(node: Node, uniform: Uniform) -> OneHot | None:
    """The rows that `node` sums along its last axis, if they are one-hot."""
    if node.op.name != "sum" or not node.tensor.dtype.is_floating_point:
        return None
    x = node.inputs[0]
    if node.attrs["axes"] != (x.tensor.rank - 1,):
        return None
    dtypes: list[torch.dtype] = []
    length, rank = x.tensor.sizes[-1], x.tensor.rank
    while x.op.name == "convert" and x.inputs[0].tensor.dtype.is_floating_point:
        dtypes.append(x.tensor.dtype)
        x = x.inputs[0]
    if x.op.name != "where" or uniform.value(x.inputs[2]) != 0:
        return None
    condition, value, _ = x.inputs
    for comparison, other in _parts(condition):
        target = _target(comparison, length)
        parts = [part for part in (target, other, value) if part is not None]
        if target is not None and all(_is_per_row(part, rank) for part in parts):
            return OneHot(target, other, value, tuple(reversed(dtypes)))
    return None


def _parts(condition: Node) -> Iterator[tuple[Node, Node | None]]:
    """A condition as a comparison and another condition."""
    yield condition, None
    if condition.op.name == "bitwise_and":
        first, second = condition.inputs
        yield first, second
        yield second, first


def _target(comparison: Node, length: Int) -> Node | None:
    """What the index along the last axis is compared with."""
    if comparison.op.name != "eq":
        return None
    for index, target in (comparison.inputs, comparison.inputs[::-1]):
        counts = index.op.name == "iota" and index.attrs["start"] == 0 and index.attrs["step"] == 1
        if counts and index.attrs["length"] == length and not target.tensor.dtype.is_floating_point:
            return target
    return None


def _is_per_row(node: Node, rank: int) -> bool:
    """Whether it has a single value for each row."""
    sizes = node.tensor.sizes
    return len(sizes) <= rank and (not sizes or sizes[-1] == 1)


def number_of(builder: Builder, node: Node, uniform: Uniform) -> Node | None:
    """The replacement of the sum; matched again, as the inputs of `node` may have been rewritten."""
    row = one_hot_row(node, uniform)
    length = node.inputs[0].tensor.sizes[-1]
    if row is None or not isinstance(length, int):
        return None
    spec = row.target.tensor

    def number(value: float, dtype: torch.dtype) -> Node:
        return builder.constant(value, dtype, spec.device)

    above = builder.node("ge", row.target, number(0, spec.dtype))
    inside = builder.node("bitwise_and", above, builder.node("lt", row.target, number(length, spec.dtype)))
    if row.condition is not None:
        inside = builder.node("bitwise_and", inside, row.condition)
    made = builder.node("where", inside, row.value, number(0.0, row.value.tensor.dtype))
    for dtype in row.dtypes:
        made = builder.node("convert", made, dtype=dtype)
    if made.tensor.dtype is not node.tensor.dtype or made.tensor.sizes != (*node.tensor.sizes, 1):
        return None
    made = builder.node("add", made, number(0.0, made.tensor.dtype))  # a sum of -0.0 and zeros is 0.0
    made = builder.node("select", made, axis=made.tensor.rank - 1, index=0)
    return made if can_replace(made.spec, node.spec) else None
