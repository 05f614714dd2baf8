"""The sum of a row that has a number in one place at most is that number.

    %3 = eq(iota(50257), %target)              the gradient of a loss with respect to log-probabilities
    %4 = where(%3, %a, 0.0)
    %5 = sum(%4, axes=(1,))          =>        %5 = where(0 <= %target < 50257, %a, 0.0), one per row

Neither `%target` nor `%a` may change along the row; another condition on the row may be joined to the comparison. The
value is the sum's to the last bit. What is left computes every element from the row's numbers, with no pass over the
row before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import can_replace
from kiln.graph.passes.uniform import Uniform
from kiln.symbolic import Int


@final
@dataclass(frozen=True, slots=True)
class OneHot:
    """`value` where `place` is the index and `also`, if any, holds; `dtypes`: what it is converted to, in turn."""

    place: Node
    also: Node | None
    value: Node
    dtypes: tuple[torch.dtype, ...]


@final
@dataclass(frozen=True)
class OneHotSums:
    name: str = "one-hot-sums"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        uniform = Uniform()
        found = {node for node in graph.nodes if one_hot_row(node, uniform) is not None}
        if not found:
            return graph, 0
        return rewrite(graph, lambda builder, node: number_of(builder, node, uniform), context.oracle, only=found)


def one_hot_row(node: Node, uniform: Uniform) -> OneHot | None:
    """What `node` sums along its last axis, if that is such a row."""
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
    for compared, also in _parts(condition):
        place = _place(compared, length)
        parts = [one for one in (place, also, value) if one is not None]
        if place is not None and all(_is_of_a_row(one, rank) for one in parts):
            return OneHot(place, also, value, tuple(reversed(dtypes)))
    return None


def _parts(condition: Node) -> Iterator[tuple[Node, Node | None]]:
    """A condition as a comparison and what is joined to it."""
    yield condition, None
    if condition.op.name == "bitwise_and":
        first, second = condition.inputs
        yield first, second
        yield second, first


def _place(compared: Node, length: Int) -> Node | None:
    """What the index along the last axis is compared with."""
    if compared.op.name != "eq":
        return None
    for index, place in (compared.inputs, compared.inputs[::-1]):
        counts = index.op.name == "iota" and index.attrs["start"] == 0 and index.attrs["step"] == 1
        if counts and index.attrs["length"] == length and not place.tensor.dtype.is_floating_point:
            return place
    return None


def _is_of_a_row(node: Node, rank: int) -> bool:
    """One number for each row?"""
    sizes = node.tensor.sizes
    return len(sizes) <= rank and (not sizes or sizes[-1] == 1)


def number_of(builder: Builder, node: Node, uniform: Uniform) -> Node | None:
    """The number in place of the sum; `node` has new inputs where those were rewritten, so it is looked at again."""
    row = one_hot_row(node, uniform)
    length = node.inputs[0].tensor.sizes[-1]
    if row is None or not isinstance(length, int):
        return None
    place = row.place.tensor

    def number(value: float, dtype: torch.dtype) -> Node:
        return builder.constant(value, dtype, place.device)

    inside = builder.node(
        "bitwise_and",
        builder.node("ge", row.place, number(0, place.dtype)),
        builder.node("lt", row.place, number(length, place.dtype)),
    )
    if row.also is not None:
        inside = builder.node("bitwise_and", inside, row.also)
    made = builder.node("where", inside, row.value, number(0.0, row.value.tensor.dtype))
    for dtype in row.dtypes:
        made = builder.node("convert", made, dtype=dtype)
    if made.tensor.dtype is not node.tensor.dtype or made.tensor.sizes != (*node.tensor.sizes, 1):
        return None
    made = builder.node("add", made, number(0.0, made.tensor.dtype))  # -0.0 and zeros add up to 0.0
    made = builder.node("select", made, axis=made.tensor.rank - 1, index=0)
    return made if can_replace(made.spec, node.spec) else None
