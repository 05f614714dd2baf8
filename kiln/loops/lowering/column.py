"""What lowering knows of each primitive op: two columns.

    ELEMENT["add"](body, node, index, mask)     the place of one element of the result, in a loop body
    STATEMENT["sum"](lowering, node)            the loop node (or call) that writes the whole result

An op with an element rule can be inlined into its readers, or realised: written to a buffer by a `Pointwise` node.
An op with only a statement always has a buffer.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.loops.ir.body import Index
from kiln.loops.lowering.body import Body

ElementRule = Callable[[Body, Node, Index, int | None], int]
"""(body, node, index, mask) -> place of the element. Loads must be guarded by `mask` (a place of a bool)."""

ELEMENT = PRIMS.column("element", required=frozenset({Kind.POINTWISE, Kind.VIEW}))
STATEMENT = PRIMS.column(
    "statement", required=frozenset({Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.LIBRARY, Kind.EFFECT, Kind.NESTED})
)
