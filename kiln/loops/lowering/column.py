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
    """The nodes that are left to ATen because of a dtype, or because their sums must have a fixed order."""
    return frozenset([
        node
        for node in nodes
        if (node.op.kind not in NO_LOOPS and not all(map(_has_loops, (node, *node.inputs))))
        or _adds_in_any_order(node, target)
    ])  # fmt: skip


def _adds_in_any_order(node: Node, target: Target) -> bool:
    """Would atomic additions round differently in each call, though the program must be deterministic?"""
    if not (target.is_gpu and target.deterministic and node.op.kind is Kind.SCATTER):
        return False
    adds = node.attrs["accumulate"] if node.op.name == "index_put" else node.attrs["reduce"] == "sum"
    return bool(adds) and node.tensor.dtype.is_floating_point


def _has_loops(node: Node) -> bool:
    return not isinstance(node.spec, TensorSpec) or node.spec.dtype in LOOP_DTYPES
