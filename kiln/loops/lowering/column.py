"""The two columns of lowering: how each primitive op becomes loops.

    ELEMENT["add"](body, node, index, mask)     the position of one element of the result, in a loop body;
                                                loads are guarded by `mask`: the position of a bool, or None
    STATEMENT["sum"](lowering, node)            the loop node (or call) that writes the whole result

An op with an element rule can be inlined into its readers, or realised: written to a buffer by a `Pointwise` node.
An op with only a statement always has a buffer. Dtypes that loops do not have (complex numbers, 8-bit floats) are left
to ATen: see `library.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column, Kind
from kiln.loops.kernel.atomics import is_atomic
from kiln.loops.program.nodes import ReduceOp
from kiln.support.target import Target
from kiln.tensor.spec import TensorSpec

ELEMENT: Column[Callable[..., int]] = PRIMS.column("element", required=frozenset({Kind.POINTWISE, Kind.VIEW}))
STATEMENT: Column[Callable[..., None]] = PRIMS.column(
    "statement", required=frozenset({Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.LIBRARY, Kind.EFFECT, Kind.NESTED})
)

LOOP_DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
})  # fmt: skip
"""Dtypes that loops compute with."""
NO_LOOPS = frozenset({Kind.VIEW, Kind.STRUCTURE, Kind.LIBRARY, Kind.EFFECT, Kind.NESTED})
"""Kinds of op that never become loops by their dtype."""


def without_loops(nodes: Iterable[Node], target: Target) -> frozenset[Node]:
    """The nodes that are left to ATen because of a dtype, or because of the order in which they combine elements."""
    return frozenset([
        node
        for node in nodes
        if (node.op.kind not in NO_LOOPS and not all(map(_has_loops, (node, *node.inputs))))
        or (target.is_gpu and node.op.kind is Kind.SCATTER and not _combines_in_any_order(node, target))
    ])  # fmt: skip


def combination(node: Node) -> ReduceOp | None:
    """How a scatter combines what meets in one element; None: any of the values stays."""
    if node.op.name == "index_put":
        return ReduceOp.SUM if node.attrs["accumulate"] else None
    return None if node.attrs["reduce"] is None else ReduceOp(node.attrs["reduce"])


def _combines_in_any_order(node: Node, target: Target) -> bool:
    """Can the points of a scatter run at once, by atomic operations, and may its sums be rounded in any order?"""
    op, dtype = combination(node), node.tensor.dtype
    return op is None or (is_atomic(op, dtype) and not (target.deterministic and dtype.is_floating_point))


def _has_loops(node: Node) -> bool:
    return not isinstance(node.spec, TensorSpec) or node.spec.dtype in LOOP_DTYPES
