"""ATen ops: decompositions into primitives, shape rules of library ops, effects, promotion."""

from kiln.graph.ops import linear, moves, pointwise, reductions, views
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import DECOMPOSITIONS, INPLACE, LIBRARY, MUTATIONS, VIEWS, Effects, Step

__all__ = [
    "DECOMPOSITIONS",
    "INPLACE",
    "LIBRARY",
    "MUTATIONS",
    "VIEWS",
    "Effects",
    "Emit",
    "Step",
    "linear",
    "moves",
    "pointwise",
    "reductions",
    "views",
]
