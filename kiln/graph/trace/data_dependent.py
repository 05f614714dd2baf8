"""Handlers of ATen ops whose result sizes depend on data: the size is counted first, and read by the host.

    x.nonzero()         n = (x != 0).sum(), u0 = its item; aten.nonzero(x): i64[u0, 1]
    x[mask]             x[mask.nonzero().unbind(1)]
    x.unique()          sort, mark where a value differs from the one before, and select those

So a size is known before anything of that size is allocated, and what follows is compiled like any other op. One mask
has one count, so that `x[mask] = y[mask]` has one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch._ops import OpOverload

from kiln.graph.ir.node import Node
from kiln.graph.ops import DECOMPOSITIONS
from kiln.graph.ops.breaks import DataDependentOp
from kiln.graph.ops.data_movement import require_mask
from kiln.graph.prims.meta.layout import broadcast
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.mode import Args, Handler, Kwargs, RecordingMode
from kiln.graph.trace.shared_memory import by_storage, refuse_shared_memory
from kiln.graph.trace.special import computation, special, unbacked_integer
from kiln.runtime.heard_warnings import warn_like
from kiln.symbolic import Int
from kiln.symbolic.node import from_sym
from kiln.symbolic.relation import rel_eq
from kiln.tensor.spec import CPU, TensorSpec, contiguous_strides

MASKS = (torch.bool, torch.uint8)


def item_of(mode: RecordingMode, node: Node, largest: Int | None = None, smallest: Int = 0) -> Int:
    """The integer in a tensor of rank 0, from `smallest` to `largest`."""
    low, high = (number if isinstance(number, int) else None for number in (smallest, largest))
    made = unbacked_integer(mode, node, low or 0, high)
    return from_sym(made) if isinstance(made, torch.SymInt) else cast(int, made)


def count_of(mode: RecordingMode, node: Node) -> Int:
    """How many elements are not zero; one number for masks that are computed alike."""
    if mode.symbols.env.simplify(node.tensor.numel()) == 0:
        return 0
    key = computation(node)
    found = mode.counts.get(key)
    if found is None:
        emit = mode.emit
        marked = emit.convert(emit.pointwise("ne", node, 0), torch.int64)
        axes = tuple(range(marked.tensor.rank))
        total = emit.node("sum", marked, axes=axes) if axes else marked
        found = mode.counts[key] = item_of(mode, total, node.tensor.numel())
    return found


def positions(mode: RecordingMode, node: Node) -> Node:
    """The indices of the elements that are not zero, i64[count, rank]."""
    count, rank = count_of(mode, node), node.tensor.rank
    spec = TensorSpec(torch.int64, (count, rank), (1, count), 0, node.tensor.device)
    return mode.emit.library("aten.nonzero.default", (node,), {}, spec)


@special("nonzero.default")
def nonzero(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    return mode.wrap(positions(mode, mode.node_of(args[0])))


def without_masks(mode: RecordingMode, x: Node, indices: Sequence[Node | None]) -> list[Node | None]:
    """Indices of `x` with each mask replaced by the positions where it is true, one index per dimension."""
    made: list[Node | None] = []
    for index in indices:
        if index is None or index.tensor.dtype not in MASKS:
            made.append(index)
            continue
        if not index.tensor.rank:
            raise DataDependentOp(op="aten.index")  # it adds a dimension
        require_mask(mode.emit, x.tensor, index.tensor, len(made))
        if index.tensor.dtype is torch.uint8:
            warn_like(lambda: torch.zeros(1, device=CPU)[torch.zeros(1, dtype=torch.uint8, device=CPU)])
        found = positions(mode, index)
        for axis in range(index.tensor.rank):
            column = mode.emit.node("slice", found, axis=1, start=axis, stop=axis + 1, step=1)
            made.append(mode.emit.node("squeeze", column, axes=(1,)))
    if len(made) > x.tensor.rank:  # eager counts a mask as one index, and the result is what its kernel makes of it
        raise DataDependentOp(op="aten.index")
    return made


def indexing(name: str) -> Handler:
    """An op whose second argument is a list of indices."""
    rule = DECOMPOSITIONS[f"aten.{name}"]

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        values, named = mode.arguments(args, kwargs)
        try:
            return mode.wrap(rule(mode.emit, *values, **named))
        except DataDependentOp:
            values[1] = without_masks(mode, cast(Node, values[0]), cast("list[Node | None]", values[1]))
            return mode.wrap(rule(mode.emit, *values, **named))

    return handler


EXTENDED = ("index.Tensor", "index_put.default")
"""Overloads whose decomposition is tried first; masks are what it leaves to the handler here."""
for _name in EXTENDED:
    special(_name)(indexing(_name))


@special("index_put_.default", "_index_put_impl_.default")
def index_put_(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    refuse_shared_memory(mode, op, args[0], by_storage(mode, args[1:]))
    made = indexing("index_put.default")(mode, op, args, kwargs)
    mode.write(args[0], mode.node_of(made), op)
    return args[0]


@special("broadcast_tensors.default")
def broadcast_tensors(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Its kernel is Python of torch's, which asks torch's own environment of sizes."""
    tensors = cast(Sequence[torch.Tensor], args[0])
    sizes = broadcast(mode.emit.oracle, [mode.node_of(tensor).tensor.sizes for tensor in tensors])
    with mode:
        return [tensor.expand([mode.symbols.sym(size) for size in sizes]) for tensor in tensors]


@special("masked_select.default")
def masked_select(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    x, mask = (cast(torch.Tensor, arg) for arg in args)
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    with mode:
        x, mask = torch.broadcast_tensors(x, mask)
        if not x.dim():
            x, mask = x[None], mask[None]
        return torch.ops.aten.index(x, [mask])


@special("repeat_interleave.Tensor")
def repeat_interleave(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    repeats, emit = mode.node_of(args[0]), mode.emit
    size = cast("Int | None", mode.value(kwargs.get("output_size")))
    if size is None:
        size = item_of(mode, emit.node("sum", emit.convert(repeats, torch.int64), axes=(0,)))
    spec = TensorSpec(repeats.tensor.dtype, (size,), (1,), 0, repeats.tensor.device)
    return mode.wrap(emit.library("aten.repeat_interleave.Tensor", (repeats,), {"output_size": size}, spec))


@special("bincount.default")
def bincount(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    values, named = mode.arguments(args, kwargs)
    x, emit = cast(Node, values[0]), mode.emit
    if not mode.symbols.env.has_hint(x.tensor.numel()) or mode.symbols.decide(rel_eq(x.tensor.numel(), 0)):
        raise DataDependentOp(op=str(op))
    weights = cast("Node | None", values[1] if len(values) > 1 else named.get("weights"))
    least = cast(Int, values[2] if len(values) > 2 else named.get("minlength", 0))
    past = emit.pointwise("add", emit.node("amax", emit.convert(x, torch.int64), axes=(0,)), 1)
    size = item_of(mode, emit.pointwise("maximum", past, emit.number(least, torch.int64, x.tensor.device)), None, least)
    single = weights is not None and weights.tensor.dtype is torch.float32
    dtype = torch.int64 if weights is None else torch.float32 if single else torch.float64
    spec = TensorSpec(dtype, (size,), (1,), 0, x.tensor.device)
    return mode.wrap(emit.library("aten.bincount.default", values, named, spec))


@special("_ctc_loss.Tensor")
def ctc_loss(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """The losses, and what the backward reads: it has two states for each label of the longest target, and one."""
    values, named = mode.arguments(args, kwargs)
    (log_probs, lengths), emit = (cast(Node, values[number]) for number in (0, 3)), mode.emit
    spec, env = log_probs.tensor, mode.symbols.env
    if spec.rank != 3 or not lengths.tensor.rank or env.simplify(spec.sizes[1]) == 0:
        raise DataDependentOp(op=str(op))
    longest = item_of(mode, emit.node("amax", emit.convert(lengths, torch.int64), axes=(0,)))
    steps, batch, _ = spec.sizes
    states = (batch, steps, 2 * longest + 1)
    made = [TensorSpec(spec.dtype, sizes, contiguous_strides(sizes), 0, spec.device) for sizes in ((batch,), states)]
    return mode.wrap(emit.library("aten._ctc_loss.Tensor", values, named, tuple(made)))


Unique = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def distinct(mode: RecordingMode, x: torch.Tensor, order: torch.Tensor | None) -> Unique:
    """The first of each run of equal values, the run of each value, the lengths of runs. `order` sorted them before."""
    with mode:
        first = torch.ones_like(x[:1], dtype=torch.bool)
        starts = torch.cat([first, x[1:] != x[:-1]])
        where = starts.nonzero().squeeze(1)
        run = starts.cumsum(0) - 1
        inverse = run if order is None else torch.empty_like(run).scatter_(0, order, run)
        ends = torch.cat([where[1:], torch.full_like(run[:1], x.shape[0])])
        return x[where], inverse, ends - where


def comparable(mode: RecordingMode, op: OpOverload, tensor: object) -> FakeTensor:
    """An argument whose values are compared as in eager, where each NaN differs from all others."""
    spec = mode.view_of(tensor).spec
    if spec.dtype.is_complex or spec.dtype is torch.bool or spec.numel() == 0:
        raise DataDependentOp(op=str(op))
    return cast(FakeTensor, tensor)


@special("_unique2.default")
def unique(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    x = comparable(mode, op, args[0])
    with mode:
        values, order = x.reshape(-1).sort()
    found, inverse, counts = distinct(mode, values, order)
    mode.distinct[mode.node_of(found)] = mode.node_of(x)
    return found, *wanted(mode, x, inverse, counts, args[2:], kwargs)


@special("unique_consecutive.default")
def unique_consecutive(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    x, dim = comparable(mode, op, args[0]), args[3] if len(args) > 3 else kwargs.get("dim")
    if dim is not None and (x.dim() != 1 or dim not in (0, -1)):
        raise DataDependentOp(op=str(op))
    with mode:
        flat = x.reshape(-1)
    flags = (True, True) if dim == -1 else args[1:]  # from the end, eager computes both in any case
    found, inverse, counts = distinct(mode, flat, None)
    return found, *wanted(mode, x, inverse, counts, flags, kwargs)


def wanted(
    mode: RecordingMode, x: torch.Tensor, inverse: torch.Tensor, counts: torch.Tensor, flags: Args, kwargs: Kwargs
) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse and the counts, empty where the program does not ask for them."""
    asked = [
        bool(flags[number] if len(flags) > number else kwargs.get(name, False))
        for number, name in enumerate(("return_inverse", "return_counts"))
    ]
    with mode:
        shaped = inverse.view(x.shape) if asked[0] else torch.empty_like(inverse[:0])
        return shaped, counts if asked[1] else torch.empty_like(inverse[:0])
