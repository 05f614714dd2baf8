"""Statements: ops that write buffers of their own.

sum(x, axes=(1,))            =>   b0: f32[4] = reduction sum over (i1: 8) keeping (i0: 4): load a0[i0, i1]
cumsum(x, axis=0)            =>   b0: f32[8] = scan sum along i0 of (i0: 8): load a0[i0]
index_put(x, i, v) add       =>   b0 = a copy of x;  b0 = scatter sum into b0 at [j0, i1] of (...): load v
as_strided(x, ...)           =>   b0: ... in a0 = extern aten.as_strided.default(a0, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kiln.graph.ir.node import Node
from kiln.loops.body.body import Index
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import STATEMENT, combination
from kiln.loops.lowering.data_movement import indexed, picked_sizes
from kiln.loops.lowering.errors import NoLowering
from kiln.loops.lowering.indexing import loop_axes, loop_symbol
from kiln.loops.lowering.lower import Lowering, origin_text
from kiln.loops.program.nodes import Buffer, Extern, Pointwise, ReduceOp, Reduction, Scan, Scatter
from kiln.symbolic import Int, ShapeEnv
from kiln.tensor.spec import TensorSpec

SCAN_OPS: Mapping[str, ReduceOp] = {
    "cumsum": ReduceOp.SUM, "cumprod": ReduceOp.PROD, "cummax": ReduceOp.MAX, "cummin": ReduceOp.MIN,
}  # fmt: skip


def own_index(axes: Sequence[Axis]) -> Index:
    return tuple([axis.symbol for axis in axes])


@STATEMENT("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")
def reduction(lowering: Lowering, node: Node) -> None:
    x = node.inputs[0]
    sizes, over = x.tensor.sizes, [axis for axis in node.attrs["axes"] if x.tensor.sizes[axis] != 1]
    if not over:
        # Each reduces one element: to itself, or to index 0.
        lowering.buffers[node] = _unreduced(lowering, node)
        return
    kept_axes = [axis for axis in range(len(sizes)) if axis not in node.attrs["axes"]]
    order = kept_axes + over
    symbols = {axis: loop_symbol(number) for number, axis in enumerate(order)}
    axes = tuple([Axis(symbols[axis], sizes[axis]) for axis in order])
    kept, reduced = axes[: len(kept_axes)], axes[len(kept_axes) :]
    body = lowering.body(axes)
    value = body.element(x, tuple([symbols.get(axis, 0) for axis in range(len(sizes))]))
    out = lowering.buffers[node] = lowering.new_buffer(node.tensor)
    lowering.emit(Reduction(out, kept, reduced, ReduceOp(node.op.name), body.finish(value), lowering.loop_origin(node)))


def _unreduced(lowering: Lowering, node: Node) -> Buffer:
    """Only axes of size 1 are reduced."""
    x, reduced = node.inputs[0], node.attrs["axes"]
    axes = loop_axes(node.tensor.sizes)
    body = lowering.body(axes)
    if node.op.result == "same":
        rest = iter(own_index(axes))
        position = body.element(x, tuple([0 if axis in reduced else next(rest) for axis in range(x.tensor.rank)]))
    else:
        position = body.builder.constant(0, node.tensor.dtype)
    out = lowering.new_buffer(node.tensor)
    lowering.emit(Pointwise(out, axes, body.finish(position), lowering.loop_origin(node)))
    return out


@STATEMENT("cumsum", "cumprod", "cummax", "cummin")
def scan(lowering: Lowering, node: Node) -> None:
    x = node.inputs[0]
    if not x.tensor.rank or x.tensor.sizes[node.attrs["axis"]] == 1:
        lowering.buffers[node] = lowering.store(node.tensor, x)
        return
    axes = loop_axes(x.tensor.sizes)
    body = lowering.body(axes)
    value = body.element(x, own_index(axes))
    out = lowering.buffers[node] = lowering.new_buffer(node.tensor)
    op, along = SCAN_OPS[node.op.name], node.attrs["axis"]
    lowering.emit(Scan(out, axes, along, op, body.finish(value), lowering.loop_origin(node)))


# Scatters.


def _initialised(lowering: Lowering, node: Node) -> Buffer:
    """What a scatter writes into: the memory of its first input if that is overwritten, else a copy of it."""
    return lowering.in_place.target(node) or lowering.store(node.tensor, node.inputs[0])


@STATEMENT("scatter")
def scatter(lowering: Lowering, node: Node) -> None:
    x, indices, source = node.inputs

    def written(body: Body, at: Index) -> tuple[Index, int]:
        index = at
        if x.tensor.rank:
            axis = node.attrs["axis"]
            chosen = body.indirect(body.element(indices, at), x.tensor.sizes[axis])
            index = (*at[:axis], chosen, *at[axis + 1 :])
        return index, body.element(source, at if source.tensor.rank else ())

    _scattered(lowering, node, indices.tensor.sizes, written)


@STATEMENT("index_put")
def index_put(lowering: Lowering, node: Node) -> None:
    x, *indices, values = node.inputs
    sizes = _indexed_sizes(x.tensor, indices, node.attrs["axes"], lowering.env)

    def written(body: Body, at: Index) -> tuple[Index, int]:
        index = indexed(body, node, x.tensor.sizes, indices, at, None)
        return index, body.broadcast_element(values, at, sizes, None)

    _scattered(lowering, node, sizes, written)


def _scattered(
    lowering: Lowering,
    node: Node,
    sizes: tuple[Int, ...],
    written: Callable[[Body, Index], tuple[Index, int]],
) -> None:
    """A loop over `sizes`; at each point, `written` gives an index into the result and the value that goes there."""
    out = _initialised(lowering, node)
    if 0 not in sizes:
        axes = loop_axes(sizes)
        with lowering.in_place.apart_from(out, node.inputs[1:]):
            body = lowering.body(axes)
            index, value = written(body, own_index(axes))
            loop = body.finish(value, used=symbols_of(*index))
        origin = lowering.loop_origin(node)
        lowering.emit(Scatter(out, out.base or out.name, axes, index, combination(node), loop, origin))
    lowering.buffers[node] = out


def _indexed_sizes(x: TensorSpec, indices: list[Node], axes: tuple[int, ...], env: ShapeEnv | None) -> tuple[Int, ...]:
    """Sizes of x[..., i0, i1, ...]."""
    picked = picked_sizes(indices, env)
    rest = [size for axis, size in enumerate(x.sizes) if axis not in axes]
    start = axes[0] if axes == tuple(range(axes[0], axes[-1] + 1)) else 0
    return (*rest[:start], *picked, *rest[start:])


# Memory.


@STATEMENT("as_strided")
def as_strided(lowering: Lowering, node: Node) -> None:
    """On a GPU by its distance from the base, whose offset is guarded: an argument may be a copy that is aligned."""
    if not lowering.target.is_gpu:
        _view(lowering, node, "aten.as_strided.default", node.tensor.sizes, node.tensor.strides, node.tensor.offset)
        return
    base = lowering.buffers_by_name[lowering.argument(node.inputs[0]).name]
    if not _lies_within(node.tensor, base.spec):
        raise NoLowering(op="as_strided", problem="it reads memory outside of its argument, of which a copy has none")
    out = lowering.buffers[node] = lowering.new_buffer(node.tensor, base=base.name)
    lowering.emit(Extern((out,), "kiln.view", (), origin=origin_text(node)))


def _lies_within(part: TensorSpec, whole: TensorSpec) -> bool:
    """Is it known that the first and the last element of `part` are between those of `whole`?"""
    before, behind = part.offset - whole.offset, _end(whole) - _end(part)
    return isinstance(before, int) and isinstance(behind, int) and before >= 0 and behind >= 0


def _end(spec: TensorSpec) -> Int:
    return spec.offset + sum((size - 1) * stride for size, stride in zip(spec.sizes, spec.strides, strict=True))


@STATEMENT("view_dtype")
def view_dtype(lowering: Lowering, node: Node) -> None:
    _view(lowering, node, "aten.view.dtype", node.tensor.dtype)


def _view(lowering: Lowering, node: Node, target: str, *args: object) -> None:
    below = lowering.argument(node.inputs[0])
    out = lowering.buffers[node] = lowering.new_buffer(node.tensor, base=below.name)
    lowering.emit(Extern((out,), target, (below, *args), origin=origin_text(node)))


@STATEMENT("empty")
def empty(lowering: Lowering, node: Node) -> None:
    lowering.buffers[node] = lowering.empty(node.tensor, node)


@STATEMENT("cat")
def cat(lowering: Lowering, node: Node) -> None:
    """Each input is written into its part of the result, so that loops test no index."""
    spec, axis = node.tensor, node.attrs["axis"]
    if 0 in spec.sizes or sum(x.tensor.sizes[axis] != 0 for x in node.inputs) < 2:
        lowering.buffers[node] = lowering.store(spec, node)
        return
    out = lowering.buffers[node] = lowering.empty(spec, node)
    start: Int = 0
    for x in node.inputs:
        sizes = x.tensor.sizes
        axes = loop_axes(sizes)
        part = spec.with_view(sizes, spec.strides, spec.offset + start * spec.strides[axis])
        body = lowering.body(axes)
        value = body.element(x, own_index(axes))
        if sizes[axis] != 0:
            buffer = lowering.new_buffer(part, base=out.name)
            lowering.emit(Pointwise(buffer, axes, body.finish(value), lowering.loop_origin(node)))
        start = start + sizes[axis]


@STATEMENT("constant_tensor")
def constant_tensor(lowering: Lowering, node: Node) -> None:
    name = f"c{len(lowering.constants)}"
    buffer = lowering.buffers[node] = lowering.buffers_by_name[name] = Buffer(name, node.tensor)
    lowering.constants.append((buffer, node.attrs["key"]))
