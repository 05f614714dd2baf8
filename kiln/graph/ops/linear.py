"""Matrix products: ATen calls with predicted results.

aten.mm(x: f32[4, 8], y: f32[8, 2])     =     f32[4, 2]
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.promotion import promoted
from kiln.graph.ops.registry import decompose, library
from kiln.graph.ops.sizes import is_empty
from kiln.graph.prims.meta import broadcast, equal, matches
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec

ProductRule = Callable[[Emit, Node, Node], TensorSpec]


def _matrix(x: Node, op: str, rank: int) -> TensorSpec:
    spec = x.tensor
    if spec.rank != rank:
        raise RuntimeError(f"{op}: expected rank {rank}, got {spec.rank}")
    return spec


def _same(e: Emit, op: str, left: Int, right: Int) -> None:
    if not matches(e.oracle, left, right):
        raise RuntimeError(f"{op}: sizes {left} and {right} do not match")


def _expands(e: Emit, op: str, bias: TensorSpec, result: TensorSpec) -> None:
    """Whether a tensor that is added to a product can be broadcast to its sizes."""
    missing = result.rank - bias.rank
    pairs = zip(bias.sizes, result.sizes[max(missing, 0) :], strict=False)
    fits = [size == 1 or matches(e.oracle, size, other) or equal(e.oracle, size, 1) for size, other in pairs]
    if missing < 0 or not all(fits):
        raise RuntimeError(f"{op}: input of sizes {bias.sizes} cannot be expanded to {result.sizes}")


def _same_dtype(op: str, *specs: TensorSpec) -> None:
    for spec in specs:
        if spec.dtype is not specs[0].dtype and is_empty(*specs) and "bmm" in op:
            raise UnsupportedOp(op=op, reason="without elements, eager does not compare the dtypes")
        if spec.dtype is not specs[0].dtype and op == "addmv":
            raise UnsupportedOp(op=op, reason="torch 2.11 computes it with operands of several dtypes")
        if spec.dtype is not specs[0].dtype:
            raise RuntimeError(f"{op}: expected equal dtypes, got {specs[0].dtype} and {spec.dtype}")


def _product(op: str, rank: int, other_rank: int) -> ProductRule:
    """Contracts the last axis of `x` with the last but one of `y`, or with its only one."""

    def rule(e: Emit, x: Node, y: Node) -> TensorSpec:
        left, right = _matrix(x, op, rank), _matrix(y, op, other_rank)
        _same_dtype(op, left, right)
        if rank == 3:
            _same(e, op, left.sizes[0], right.sizes[0])
        _same(e, op, left.sizes[-1], right.sizes[max(other_rank - 2, 0)])
        return left.with_sizes((*left.sizes[:-1], *(right.sizes[-1:] if other_rank > 1 else ())))

    return rule


def _added(op: str, product: ProductRule) -> Callable[..., TensorSpec]:
    """The product plus a tensor that is expanded to it."""

    def rule(e: Emit, bias: Node, x: Node, y: Node, *, beta: Number = 1, alpha: Number = 1) -> TensorSpec:
        _same_dtype(op, bias.tensor, x.tensor, y.tensor)
        made = product(e, x, y)
        _expands(e, op, bias.tensor, made)
        return made

    return rule


bmm, mm, mv = _product("bmm", 3, 3), _product("mm", 2, 2), _product("mv", 2, 1)
library("bmm.default")(bmm)
library("mm.default")(mm)
library("mv.default")(mv)
library("dot.default", "vdot.default")(_product("dot", 1, 1))
for _name, _rule in (("addmm", mm), ("baddbmm", bmm), ("addmv", mv)):
    library(f"{_name}.default")(_added(_name, _rule))


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


@decompose("_euclidean_dist.default")
def euclidean_distances(e: Emit, x: Node, y: Node) -> Node:
    """`cdist` of many points by one product, |x|^2 - 2xy + |y|^2, of matrices with the norms and ones as columns."""
    _same_dtype("cdist", x.tensor, y.tensor)
    rank, p = x.tensor.rank, e.pointwise
    if rank not in (2, 3):
        raise UnsupportedOp(op="_euclidean_dist", reason=f"its points have {rank} dimensions")
    norms = [e.node("unsqueeze", e.node("sum", p("mul", z, z), axes=(rank - 1,)), axis=rank - 1) for z in (x, y)]
    ones = [e.full(1.0, norm.tensor.sizes, norm.tensor.dtype, norm.tensor.device) for norm in norms]
    left = e.node("cat", p("mul", x, -2.0), norms[0], ones[0], axis=rank - 1)
    right = e.node("cat", y, ones[1], norms[1], axis=rank - 1)
    turned = e.node("permute", right, dims=(*range(rank - 2), rank - 1, rank - 2))
    name, product = ("mm", mm) if rank == 2 else ("bmm", bmm)
    squares = e.library(f"aten.{name}.default", (left, turned), {}, product(e, left, turned))
    return p("sqrt", p("maximum", squares, 0.0))


@library("_cdist_forward.default")
def cdist(e: Emit, x: Node, y: Node, p: float, compute_mode: int | None) -> TensorSpec:
    batch = broadcast(e.oracle, (x.tensor.sizes[:-2], y.tensor.sizes[:-2]), "cdist")
    return x.tensor.with_sizes((*batch, x.tensor.sizes[-2], y.tensor.sizes[-2]))


@library("_cdist_backward.default")
def cdist_backward(e: Emit, grad: Node, x: Node, y: Node, p: float, cdist: Node) -> TensorSpec:
    batch = broadcast(e.oracle, (x.tensor.sizes[:-2], y.tensor.sizes[:-2]), "cdist")
    return x.tensor.with_sizes((*batch, *x.tensor.sizes[-2:]))


@library("_pdist_forward.default")
def distances_of_pairs(e: Emit, x: Node, p: float = 2.0) -> TensorSpec:
    if x.tensor.rank != 2:
        raise RuntimeError("pdist: expected a matrix")
    rows = x.tensor.sizes[0]
    return x.tensor.with_sizes((rows * (rows - 1) // 2,))


@library("_pdist_backward.default")
def distances_of_pairs_backward(e: Emit, grad: Node, x: Node, p: float, pdist: Node) -> TensorSpec:
    return x.tensor.with_sizes(x.tensor.sizes)
