"""Shape rules of primitive ops: the column `META`, filled by the modules of this folder."""

from kiln.graph.prims.meta import create, data_movement, pointwise, reduce, views
from kiln.graph.prims.meta.checks import CHECKS
from kiln.graph.prims.meta.column import META, SUPPLIED, MetaRule
from kiln.graph.prims.meta.create import HasOutputs
from kiln.graph.prims.meta.data_movement import preserved
from kiln.graph.prims.meta.layout import (
    MemoryFormat,
    broadcast,
    equal,
    format_strides,
    is_canonical,
    is_contiguous,
    is_dense,
    is_in_format,
    iterator_strides,
    less,
    preserved_strides,
    suggested_format,
)
from kiln.graph.prims.meta.pointwise import joint_device, pointwise_spec
from kiln.graph.prims.meta.views import view_strides

__all__ = [
    "CHECKS",
    "META",
    "SUPPLIED",
    "HasOutputs",
    "MemoryFormat",
    "MetaRule",
    "broadcast",
    "create",
    "data_movement",
    "equal",
    "format_strides",
    "is_canonical",
    "is_contiguous",
    "is_dense",
    "is_in_format",
    "iterator_strides",
    "joint_device",
    "less",
    "pointwise",
    "pointwise_spec",
    "preserved",
    "preserved_strides",
    "reduce",
    "suggested_format",
    "view_strides",
    "views",
]
