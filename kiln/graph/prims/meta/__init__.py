"""Specs of primitive ops before they run: the column `META`, filled by the modules of this folder."""

from kiln.graph.prims.meta import create, pointwise, reduce, views
from kiln.graph.prims.meta import data_movement as moves
from kiln.graph.prims.meta.checks import CHECKS
from kiln.graph.prims.meta.column import META, SUPPLIED, MetaRule
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
    "MemoryFormat",
    "MetaRule",
    "broadcast",
    "create",
    "equal",
    "format_strides",
    "is_canonical",
    "is_contiguous",
    "is_dense",
    "is_in_format",
    "iterator_strides",
    "joint_device",
    "less",
    "moves",
    "pointwise",
    "pointwise_spec",
    "preserved",
    "preserved_strides",
    "reduce",
    "suggested_format",
    "view_strides",
    "views",
]
