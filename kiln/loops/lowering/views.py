"""Elements of VIEW ops: the element below, at another index.

    permute(x, (1, 0))              at (i0, i1)   =>   x at (i1, i0)
    slice(x, axis=0, 2:8:3)         at (i0)       =>   x at (3*i0 + 2)
    view(x: f32[4, 8], (32,))       at (i0)       =>   x at (i0//8, i0 % 8)

`as_strided` and `view_dtype` need the storage itself: they are statements that make a buffer on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.graph.ir.node import Node
from kiln.loops.body.body import Index
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import ELEMENT
from kiln.loops.lowering.indexing import view_index
from kiln.symbolic import Int

IndexRule = Callable[[Node, Index], Index]
INDEX_RULES: dict[str, IndexRule] = {}
"""What a view does to an index, by op."""


def index_rule(*names: str) -> Callable[[IndexRule], IndexRule]:
    """Registers ops whose element is an element of their first input, at the index that the rule gives."""

    def fill(rule: IndexRule) -> IndexRule:
        for name in names:
            INDEX_RULES[name] = rule
            ELEMENT[name] = element_below
        return rule

    return fill


def element_below(body: Body, node: Node, index: Index, mask: int | None) -> int:
    return body.element(node.inputs[0], body.simplified(INDEX_RULES[node.op.name](node, index)), mask)


@ELEMENT("expand")
def expand(body: Body, node: Node, index: Index, mask: int | None) -> int:
    return body.broadcast_element(node.inputs[0], index, node.tensor.sizes, mask)


@index_rule("permute")
def permute(node: Node, index: Index) -> Index:
    below: list[Int] = [0] * len(index)
    for at, dim in zip(index, node.attrs["dims"], strict=True):
        below[dim] = at
    return tuple(below)


@index_rule("view", "reshape")
def view(node: Node, index: Index) -> Index:
    return view_index(index, node.tensor.sizes, node.inputs[0].tensor.sizes)


index_rule("clone")(lambda node, index: index)


@index_rule("unsqueeze")
def unsqueeze(node: Node, index: Index) -> Index:
    axis = node.attrs["axis"]
    return index[:axis] + index[axis + 1 :]


@index_rule("squeeze")
def squeeze(node: Node, index: Index) -> Index:
    axes, rest = node.attrs["axes"], iter(index)
    return tuple([0 if axis in axes else next(rest) for axis in range(node.inputs[0].tensor.rank)])


@index_rule("slice")
def slice_(node: Node, index: Index) -> Index:
    axis = node.attrs["axis"]
    return (*index[:axis], node.attrs["start"] + index[axis] * node.attrs["step"], *index[axis + 1 :])


@index_rule("select")
def select(node: Node, index: Index) -> Index:
    axis = node.attrs["axis"]
    return (*index[:axis], node.attrs["index"], *index[axis:])


@index_rule("diagonal")
def diagonal(node: Node, index: Index) -> Index:
    offset, axis1, axis2 = (node.attrs[name] for name in ("offset", "axis1", "axis2"))
    *rest, along = index
    others = iter(rest)
    row, column = (along, along + offset) if offset >= 0 else (along - offset, along)
    by_axis = {axis1: row, axis2: column}
    rank = node.inputs[0].tensor.rank
    return tuple([by_axis[axis] if axis in by_axis else next(others) for axis in range(rank)])


@index_rule("unfold")
def unfold(node: Node, index: Index) -> Index:
    *windows, inside = index
    if not node.inputs[0].tensor.rank:
        return ()
    axis = node.attrs["axis"]
    return (*windows[:axis], windows[axis] * node.attrs["step"] + inside, *windows[axis + 1 :])


@index_rule("flip")
def flip(node: Node, index: Index) -> Index:
    axes, sizes = node.attrs["axes"], node.tensor.sizes
    return tuple([sizes[axis] - 1 - at if axis in axes else at for axis, at in enumerate(index)])
