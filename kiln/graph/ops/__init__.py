"""ATen ops: decompositions into primitives, shape rules of library ops, effects, promotion."""

from kiln.graph.ops import (
    activations,
    attention,
    convolution,
    creation,
    library,
    linear,
    losses,
    norms,
    pointwise,
    random,
    reductions,
    sampling,
    softmax,
    views,
)
from kiln.graph.ops import data_movement as moves
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
    "activations",
    "attention",
    "convolution",
    "creation",
    "library",
    "linear",
    "losses",
    "moves",
    "norms",
    "pointwise",
    "random",
    "reductions",
    "sampling",
    "softmax",
    "views",
]
