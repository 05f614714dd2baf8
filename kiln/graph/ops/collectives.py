"""Collectives: calls that all ranks of a process group make, in the same order.

    y = all_reduce(x, "sum", "0")     %1: f32[4] = opaque _c10d_functional.all_reduce.default(%0, 'sum', '0')
    z = wait_tensor(y)                %2: f32[4] = wait(%1, %0)

The call starts the work and returns memory that is filled later; `wait` is its value once it is there, and keeps what
the work reads from being written over. Calls stay in order and are never dropped; a wait runs as late as its readers
allow (`loops/fusion/overlap.py`). A group is named, so that a program fits all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.graph.ir.node import Node, call_of
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.library import fresh
from kiln.graph.ops.registry import Results, decompose
from kiln.graph.prims.meta import preserved
from kiln.plan.collective_operators import MESSAGES
from kiln.plan.overloads import WAIT_TENSOR, is_collective
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec

FUNCTIONAL = "_c10d_functional."


def started(e: Emit, name: str, x: Node, spec: TensorSpec, *options: object) -> Node:
    """A collective on one tensor."""
    made = e.library(f"{FUNCTIONAL}{name}.default", (x, *options), {}, spec, opaque=True)  # type: ignore[arg-type]
    assert isinstance(made, Node)
    return made


def started_together(
    e: Emit, name: str, tensors: Sequence[Node], specs: list[TensorSpec], *options: object
) -> list[Node]:
    """A collective on several tensors."""
    given = (list(tensors), *options)
    made = e.library(f"{FUNCTIONAL}{name}.default", given, {}, tuple(specs), opaque=True)  # type: ignore[arg-type]
    return [part for part in made if part is not None]


def leading(x: Node, size: Int) -> TensorSpec:
    """The layout with another first size; a number counts as one element."""
    spec = x.tensor
    return fresh(spec, (size, *spec.sizes[1:]))


def gathered(x: Node, group_size: int) -> TensorSpec:
    return leading(x, (x.tensor.sizes[0] if x.tensor.rank else 1) * group_size)


def scattered(x: Node, group_size: int) -> TensorSpec:
    if not x.tensor.rank:
        raise RuntimeError("reduce_scatter_tensor expects a tensor with at least one dimension")
    return leading(x, x.tensor.sizes[0] // group_size)


@decompose("_c10d_functional.all_reduce.default")
def all_reduce(e: Emit, x: Node, reduce_op: str, group_name: str) -> Node:
    return started(e, "all_reduce", x, fresh(x.tensor, x.tensor.sizes), reduce_op, group_name)


@decompose("_c10d_functional.broadcast.default")
def broadcast(e: Emit, x: Node, src: int, group_name: str) -> Node:
    return started(e, "broadcast", x, fresh(x.tensor, x.tensor.sizes), src, group_name)


@decompose("_c10d_functional.all_gather_into_tensor.default")
def all_gather_into_tensor(e: Emit, x: Node, group_size: int, group_name: str) -> Node:
    return started(e, "all_gather_into_tensor", x, gathered(x, group_size), group_size, group_name)


@decompose("_c10d_functional.reduce_scatter_tensor.default")
def reduce_scatter_tensor(e: Emit, x: Node, reduce_op: str, group_size: int, group_name: str) -> Node:
    return started(e, "reduce_scatter_tensor", x, scattered(x, group_size), reduce_op, group_size, group_name)


@decompose("_c10d_functional.all_to_all_single.default")
def all_to_all_single(
    e: Emit, x: Node, output_split_sizes: Sequence[Int], input_split_sizes: Sequence[Int], group_name: str
) -> Node:
    splits = tuple(output_split_sizes), tuple(input_split_sizes)
    total: Int = 0
    for size in splits[0]:
        total = total + size
    return started(e, "all_to_all_single", x, leading(x, total), *splits, group_name)


@decompose("_c10d_functional.all_reduce_coalesced.default")
def all_reduce_coalesced(e: Emit, inputs: Sequence[Node], reduce_op: str, group_name: str) -> list[Node]:
    specs = [fresh(x.tensor, x.tensor.sizes) for x in inputs]
    return started_together(e, "all_reduce_coalesced", inputs, specs, reduce_op, group_name)


@decompose("_c10d_functional.all_gather_into_tensor_coalesced.default")
def all_gather_coalesced(e: Emit, inputs: Sequence[Node], group_size: int, group_name: str) -> list[Node]:
    specs = [gathered(x, group_size) for x in inputs]
    return started_together(e, "all_gather_into_tensor_coalesced", inputs, specs, group_size, group_name)


@decompose("_c10d_functional.reduce_scatter_tensor_coalesced.default")
def reduce_scatter_coalesced(
    e: Emit, inputs: Sequence[Node], reduce_op: str, group_size: int, group_name: str
) -> list[Node]:
    specs = [scattered(x, group_size) for x in inputs]
    return started_together(e, "reduce_scatter_tensor_coalesced", inputs, specs, reduce_op, group_size, group_name)


@decompose("kiln_c10d.changed.default")
def changed(e: Emit, function: str, x: Node, rank: int, op: str, group: str) -> Node:
    options = function, x, rank, op, group
    return e.library("kiln_c10d.changed.default", options, {}, preserved(e.oracle, x.tensor), opaque=True)


@decompose(MESSAGES)
def messages(
    e: Emit,
    tensors: Sequence[Node],
    sends: Sequence[int],
    ranks: Sequence[int],
    tags: Sequence[int],
    batched: int,
    group: str,
) -> list[Node]:
    specs = [token(x) if send else fresh(x.tensor, x.tensor.sizes) for x, send in zip(tensors, sends, strict=True)]
    options = tuple(sends), tuple(ranks), tuple(tags), batched, group
    made = e.library(MESSAGES, (list(tensors), *options), {}, tuple(specs), opaque=True)
    return [part for part in made if part is not None]


@decompose("kiln_c10d.unshard.default")
def unshard(e: Emit, shards: Sequence[Node], size: int, group: str) -> list[Node]:
    specs = [gathered(x, size) for x in shards]
    made = e.library("kiln_c10d.unshard.default", (list(shards), size, group), {}, tuple(specs), opaque=True)
    return [part for part in made if part is not None]


@decompose("kiln_c10d.exchange.default")
def exchange(e: Emit, function: str, like: Sequence[Node], sent: Sequence[Node], rank: int, group: str) -> list[Node]:
    specs = [fresh(x.tensor, x.tensor.sizes) for x in like] or [token(sent[0])]
    given = function, list(like), list(sent), rank, group
    made = e.library("kiln_c10d.exchange.default", given, {}, tuple(specs), opaque=True)
    return [part for part in made if part is not None]


def token(x: Node) -> TensorSpec:
    """What is waited for where nothing is received."""
    return fresh(x.tensor, (0,), torch.uint8)


@decompose(WAIT_TENSOR, "_c10d_functional._wrap_tensor_autograd.default")
def wait_tensor(e: Emit, x: Node) -> Results:
    """Also of a tensor that eager would wrap to wait later. What is no result of a collective is there already."""
    work = call_of(x)
    if work.op.name != "opaque" or not is_collective(work.attrs["target"]):
        return x
    return e.node("wait", x, *dict.fromkeys(work.inputs))
