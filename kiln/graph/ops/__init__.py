"""ATen ops: decompositions into primitives, shape rules of library ops, effects, promotion."""

from kiln.graph.ops import (  # noqa: F401  (they fill the tables)
    activations,
    adaptive_pools,
    attention,
    collectives,
    convolution,
    creation,
    data_movement,
    grouped_products,
    image_padding,
    interpolation,
    interpolation_gradients,
    library,
    linear,
    losses,
    norms,
    pointwise,
    random,
    recurrent,
    reductions,
    sampling,
    softmax,
    views,
    weight_norm,
)  # fmt: skip
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import DECOMPOSITIONS, INPLACE, LIBRARY, MUTATIONS, VIEWS, Effects, ViewStep

__all__ = ["DECOMPOSITIONS", "INPLACE", "LIBRARY", "MUTATIONS", "VIEWS", "Effects", "Emit", "ViewStep"]
