"""The column `meta`: the spec of an op's result from the specs of its inputs and its attributes.

    META["sum"](oracle, f32[4, 8], axes=(1,))   =   f32[4]

A rule is `rule(oracle, *input_specs, **attrs) -> Spec`. Strides are those of eager's kernel.
Rules raise `ShapeMismatch`, `DeviceMismatch` or `ImpossibleView` where eager raises. Ops in
`SUPPLIED` have no rule: the maker of the node supplies the spec.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column, Kind
from kiln.tensor.spec import Spec

MetaRule = Callable[..., Spec]

META: Column[MetaRule] = PRIMS.column("meta", required=frozenset(Kind) - {Kind.STRUCTURE, Kind.LIBRARY, Kind.EFFECT})

SUPPLIED = frozenset({"input", "constant_tensor", "aten", "opaque", "local_scalar"})
