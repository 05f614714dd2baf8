"""Elements of ops that choose between inputs, or pick by data.

cat(x, y)        at (i0)       =>   where(i0 < 4, x at (i0), y at (i0 - 4)), each loaded only where it is chosen
pad(x, value)    at (i0)       =>   where(0 <= i0 - 2 < 8, x at (i0 - 2), value)
gather(x, n)     at (i0, i1)   =>   x at (i0, j0) with j0 = indirect(n at (i0, i1))
"""

from __future__ import annotations

from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.prims.meta import broadcast
from kiln.loops.body.body import Index
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import ELEMENT
from kiln.symbolic import Int, ShapeEnv, rel_eq


@ELEMENT("cat")
def cat(body: Body, node: Node, index: Index, mask: int | None) -> int:
    axis, dtype = node.attrs["axis"], node.tensor.dtype
    pieces: list[tuple[int | None, int]] = []
    start: Int = 0
    for x in node.inputs:
        size = x.tensor.sizes[axis]
        inside = body.within(index[axis], start, start + size)
        at = (*index[:axis], index[axis] - start, *index[axis + 1 :])
        if size != 0:
            pieces.append((inside, body.element(x, body.simplified(at), body.both(mask, inside))))
        start = start + size
    result = pieces[-1][1]
    for inside, value in reversed(pieces[:-1]):
        result = body.choose(dtype, inside, value, result)
    return result


@ELEMENT("pad")
def pad(body: Body, node: Node, index: Index, mask: int | None) -> int:
    x, value = node.inputs
    below = tuple([at - low for at, low in zip(index, node.attrs["low"], strict=True)])
    tests = [
        body.within(at, 0, size)
        for at, size, low, high in zip(below, x.tensor.sizes, node.attrs["low"], node.attrs["high"], strict=True)
        if not (_at_most_zero(low) and _at_most_zero(high))
    ]
    inside = body.both(*tests)
    if any(size == 0 for size in x.tensor.sizes):
        return body.element(value, (), mask)
    loaded = body.element(x, body.simplified(below), body.both(mask, inside))
    return body.choose(node.tensor.dtype, inside, loaded, body.element(value, (), mask))


def _at_most_zero(amount: Int) -> bool:
    return isinstance(amount, int) and amount <= 0


@ELEMENT("gather")
def gather(body: Body, node: Node, index: Index, mask: int | None) -> int:
    x, indices = node.inputs
    if not x.tensor.rank:
        return body.element(x, (), mask)
    axis = node.attrs["axis"]
    picked = body.indirect(body.element(indices, index, mask), x.tensor.sizes[axis])
    return body.checked(body.element(x, (*index[:axis], picked, *index[axis + 1 :]), mask), (picked,))


@ELEMENT("index")
def index_(body: Body, node: Node, index: Index, mask: int | None) -> int:
    x, *indices = node.inputs
    at = indexed(body, node, x.tensor.sizes, indices, index, mask)
    return body.checked(body.element(x, at, mask), at)


def indexed(
    body: Body, node: Node, sizes: tuple[Int, ...], indices: list[Node], index: Index, mask: int | None
) -> Index:
    """The index into a tensor of `sizes` of the element at `index` of the indexed result (attribute `axes`)."""
    axes, picked = node.attrs["axes"], picked_sizes(indices, body.elements.env)
    start = axes[0] if axes == tuple(range(axes[0], axes[-1] + 1)) else 0
    stop = start + len(picked)
    rest = iter(index[:start] + index[stop:])
    by_axis: dict[int, Int] = {}
    for axis, indices_of_axis in zip(axes, indices, strict=True):
        value = body.broadcast_element(indices_of_axis, index[start:stop], picked, mask)
        by_axis[axis] = body.indirect(value, sizes[axis])
    return tuple([by_axis[axis] if axis in by_axis else next(rest) for axis in range(len(sizes))])


def picked_sizes(indices: list[Node], env: ShapeEnv | None) -> tuple[Int, ...]:
    """The common sizes of index tensors; which symbols are 1, `env` knows."""
    return broadcast(GuardFreeOracle(env), [node.tensor.sizes for node in indices], "index")


@ELEMENT("select_scatter")
def select_scatter(body: Body, node: Node, index: Index, mask: int | None) -> int:
    x, y = node.inputs
    axis = node.attrs["axis"]
    here = body.test(rel_eq(index[axis], node.attrs["index"]))
    new = body.element(y, index[:axis] + index[axis + 1 :], body.both(mask, here))
    return body.choose(node.tensor.dtype, here, new, body.element(x, index, mask))


@ELEMENT("slice_scatter")
def slice_scatter(body: Body, node: Node, index: Index, mask: int | None) -> int:
    x, y = node.inputs
    axis, start, step = node.attrs["axis"], node.attrs["start"], node.attrs["step"]
    if y.tensor.sizes[axis] == 0:
        return body.element(x, index, mask)
    offset = index[axis] - start
    stop = start + (y.tensor.sizes[axis] - 1) * step + 1
    here = body.both(body.within(index[axis], start, stop), body.test(rel_eq(offset % step, 0)))
    below = body.ranges.simplify(offset if step == 1 else offset // step)
    new = body.element(y, (*index[:axis], below, *index[axis + 1 :]), body.both(mask, here))
    return new if here is None else body.choose(node.tensor.dtype, here, new, body.element(x, index, mask))


@ELEMENT("diagonal_scatter")
def diagonal_scatter(body: Body, node: Node, index: Index, mask: int | None) -> int:
    x, y = node.inputs
    offset, axis1, axis2 = (node.attrs[name] for name in ("offset", "axis1", "axis2"))
    row, column = index[axis1], index[axis2]
    here = body.test(rel_eq(row + offset, column))
    rest = tuple([at for axis, at in enumerate(index) if axis not in (axis1, axis2)])
    new = body.element(y, (*rest, row if offset >= 0 else column), body.both(mask, here))
    return body.choose(node.tensor.dtype, here, new, body.element(x, index, mask))
