"""Shape rules of primitive ops: the columns `META` and `CHECKS`, filled by the modules of this folder."""

from kiln.graph.prims.meta import create, data_movement, pointwise, reduce, views  # noqa: F401  (they fill `META`)
from kiln.graph.prims.meta.checks import CHECKS
from kiln.graph.prims.meta.column import META, SUPPLIED, MetaRule
from kiln.graph.prims.meta.create import HasOutputs
from kiln.graph.prims.meta.data_movement import has_repeated_elements, preserved
from kiln.graph.prims.meta.layout import (
    MemoryFormat,
    alike,
    at_most,
    broadcast,
    empty_sizes,
    equal,
    format_strides,
    is_canonical,
    is_contiguous,
    is_dense,
    is_in_format,
    iterator_strides,
    less,
    matches,
    preserved_strides,
    same_strides,
    suggested_format,
)  # fmt: skip
from kiln.graph.prims.meta.pointwise import joint_device, pointwise_spec
from kiln.graph.prims.meta.views import view_strides

__all__ = [
    "CHECKS",
    "META",
    "SUPPLIED",
    "HasOutputs",
    "MemoryFormat",
    "MetaRule",
    "alike",
    "at_most",
    "broadcast",
    "empty_sizes",
    "equal",
    "format_strides",
    "has_repeated_elements",
    "is_canonical",
    "is_contiguous",
    "is_dense",
    "is_in_format",
    "iterator_strides",
    "joint_device",
    "less",
    "matches",
    "pointwise_spec",
    "preserved",
    "preserved_strides",
    "same_strides",
    "suggested_format",
    "view_strides",
]  # fmt: skip
