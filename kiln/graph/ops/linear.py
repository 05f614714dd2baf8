"""Matrix products: ATen steps with predicted results."""

from __future__ import annotations

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit, Number
from kiln.graph.ops.registry import library
from kiln.graph.prims.meta import equal
from kiln.graph.prims.spec import TensorSpec
from kiln.symbolic import Int


def _matrix(x: Node, op: str, rank: int) -> TensorSpec:
    spec = x.tensor
    if spec.rank != rank:
        raise RuntimeError(f"{op}: expected a tensor of rank {rank}, got one of rank {spec.rank}")
    return spec


def _same(e: Emit, op: str, left: Int, right: Int) -> None:
    if not equal(e.oracle, left, right):
        raise RuntimeError(f"{op}: sizes {left} and {right} do not fit")


def _same_dtype(op: str, *specs: TensorSpec) -> None:
    for spec in specs:
        if spec.dtype is not specs[0].dtype:
            raise RuntimeError(f"{op}: expected one dtype, got {specs[0].dtype} and {spec.dtype}")


@library("mm.default")
def mm(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "mm", 2), _matrix(y, "mm", 2)
    _same_dtype("mm", left, right)
    _same(e, "mm", left.sizes[1], right.sizes[0])
    return left.with_sizes((left.sizes[0], right.sizes[1]))


@library("addmm.default")
def addmm(e: Emit, bias: Node, x: Node, y: Node, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _same_dtype("addmm", bias.tensor, x.tensor, y.tensor)
    return mm(e, x, y)


@library("bmm.default")
def bmm(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "bmm", 3), _matrix(y, "bmm", 3)
    _same_dtype("bmm", left, right)
    _same(e, "bmm", left.sizes[0], right.sizes[0])
    _same(e, "bmm", left.sizes[2], right.sizes[1])
    return left.with_sizes((left.sizes[0], left.sizes[1], right.sizes[2]))


@library("baddbmm.default")
def baddbmm(e: Emit, bias: Node, x: Node, y: Node, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _same_dtype("baddbmm", bias.tensor, x.tensor, y.tensor)
    return bmm(e, x, y)


@library("mv.default")
def mv(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "mv", 2), _matrix(y, "mv", 1)
    _same_dtype("mv", left, right)
    _same(e, "mv", left.sizes[1], right.sizes[0])
    return left.with_sizes((left.sizes[0],))


@library("addmv.default")
def addmv(e: Emit, bias: Node, x: Node, y: Node, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    return mv(e, x, y)


@library("dot.default", "vdot.default")
def dot(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "dot", 1), _matrix(y, "dot", 1)
    _same_dtype("dot", left, right)
    _same(e, "dot", left.sizes[0], right.sizes[0])
    return left.with_sizes(())
