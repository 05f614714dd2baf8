"""Matrix products: ATen calls with predicted results.

aten.mm(x: f32[4, 8], y: f32[8, 2])     =     f32[4, 2]
"""

from __future__ import annotations

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.promotion import promoted
from kiln.graph.ops.registry import decompose, library
from kiln.graph.ops.sizes import is_empty
from kiln.graph.prims.meta import broadcast, equal
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec


def _matrix(x: Node, op: str, rank: int) -> TensorSpec:
    spec = x.tensor
    if spec.rank != rank:
        raise RuntimeError(f"{op}: expected rank {rank}, got {spec.rank}")
    return spec


def _same(e: Emit, op: str, left: Int, right: Int) -> None:
    if not equal(e.oracle, left, right):
        raise RuntimeError(f"{op}: sizes {left} and {right} do not match")


def _expands(e: Emit, op: str, bias: TensorSpec, result: TensorSpec) -> None:
    """Whether a tensor that is added to a product can be broadcast to its sizes."""
    missing = result.rank - bias.rank
    pairs = zip(bias.sizes, result.sizes[max(missing, 0) :], strict=False)
    if missing < 0 or not all(equal(e.oracle, size, 1) or equal(e.oracle, size, other) for size, other in pairs):
        raise RuntimeError(f"{op}: input of sizes {bias.sizes} cannot be expanded to {result.sizes}")


def _same_dtype(op: str, *specs: TensorSpec) -> None:
    for spec in specs:
        if spec.dtype is not specs[0].dtype and is_empty(*specs) and "bmm" in op:
            raise UnsupportedOp(op=op, reason="without elements, eager does not compare the dtypes")
        if spec.dtype is not specs[0].dtype:
            raise RuntimeError(f"{op}: expected equal dtypes, got {specs[0].dtype} and {spec.dtype}")


@library("mm.default")
def mm(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "mm", 2), _matrix(y, "mm", 2)
    _same_dtype("mm", left, right)
    _same(e, "mm", left.sizes[1], right.sizes[0])
    return left.with_sizes((left.sizes[0], right.sizes[1]))


@library("addmm.default")
def addmm(e: Emit, bias: Node, x: Node, y: Node, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _same_dtype("addmm", bias.tensor, x.tensor, y.tensor)
    made = mm(e, x, y)
    _expands(e, "addmm", bias.tensor, made)
    return made


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
    made = bmm(e, x, y)
    _expands(e, "baddbmm", bias.tensor, made)
    return made


@decompose("addr.default")
def addr(e: Emit, x: Node, left: Node, right: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    if left.tensor.rank != 1 or right.tensor.rank != 1:
        raise RuntimeError("addr: Expected 1-D vectors")
    p = e.pointwise
    result = left.tensor.with_sizes((left.tensor.sizes[0], right.tensor.sizes[0]))
    _expands(e, "addr", x.tensor, result)
    x = e.node("expand", x, sizes=result.sizes)  # its dtype counts as that of a matrix
    x, left, right = promoted(e, x, e.node("unsqueeze", left, axis=1), right)
    outer = p("mul", left, right)
    added = outer if alpha == 1 else p("mul", outer, alpha)
    if beta == 0:
        return added
    return p("add", x if beta == 1 else p("mul", x, beta), added)


@decompose("addbmm.default")
def addbmm(e: Emit, x: Node, left: Node, right: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    _same_dtype("addbmm", x.tensor, left.tensor, right.tensor)
    p = e.pointwise
    product = e.library("aten.bmm.default", (left, right), {}, bmm(e, left, right))
    total = e.node("sum", product, axes=(0,))
    _expands(e, "addbmm", x.tensor, total.tensor)
    scaled = total if alpha == 1 else p("mul", total, alpha)
    return scaled if beta == 0 else p("add", x if beta == 1 else p("mul", x, beta), scaled)


@library("linalg_cross.default")
def cross(e: Emit, x: Node, y: Node, *, dim: int = -1) -> TensorSpec:
    sizes = broadcast(e.oracle, (x.tensor.sizes, y.tensor.sizes), "cross")
    return x.tensor.with_sizes(sizes)


@library("_cdist_forward.default")
def cdist(e: Emit, x: Node, y: Node, p: float, compute_mode: int | None) -> TensorSpec:
    batch = broadcast(e.oracle, (x.tensor.sizes[:-2], y.tensor.sizes[:-2]), "cdist")
    return x.tensor.with_sizes((*batch, x.tensor.sizes[-2], y.tensor.sizes[-2]))


@library("_cdist_backward.default")
def cdist_backward(e: Emit, grad: Node, x: Node, y: Node, p: float, cdist: Node) -> TensorSpec:
    batch = broadcast(e.oracle, (x.tensor.sizes[:-2], y.tensor.sizes[:-2]), "cdist")
    return x.tensor.with_sizes((*batch, *x.tensor.sizes[-2:]))


@library("mv.default")
def mv(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "mv", 2), _matrix(y, "mv", 1)
    _same_dtype("mv", left, right)
    _same(e, "mv", left.sizes[1], right.sizes[0])
    return left.with_sizes((left.sizes[0],))


@library("addmv.default")
def addmv(e: Emit, bias: Node, x: Node, y: Node, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
    _same_dtype("addmv", bias.tensor, x.tensor, y.tensor)
    made = mv(e, x, y)
    _expands(e, "addmv", bias.tensor, made)
    return made


@library("dot.default", "vdot.default")
def dot(e: Emit, x: Node, y: Node) -> TensorSpec:
    left, right = _matrix(x, "dot", 1), _matrix(y, "dot", 1)
    _same_dtype("dot", left, right)
    _same(e, "dot", left.sizes[0], right.sizes[0])
    return left.with_sizes(())
