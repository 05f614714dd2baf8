"""Shape rules of pointwise ops: broadcast sizes, TensorIterator's strides, the common device.

add(f32[4, 8], f32[8])                      =  f32[4, 8]
mul(f32[4, 8 | 1, 4], f32[4, 8 | 1, 4])     =  f32[4, 8 | 1, 4]
lt(f32[4 @cuda:0], f32[])                   =  b8[4 @cuda:0]      a CPU scalar follows the other device
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.graph.prims.errors import DeviceMismatch
from kiln.graph.prims.meta.column import META, MetaRule
from kiln.graph.prims.meta.layout import is_canonical, iterator_layout, layout_without_symbols, preserved_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.tensor.spec import SizeOracle, TensorSpec


def pointwise_spec(oracle: SizeOracle, specs: Sequence[TensorSpec], dtype: torch.dtype) -> TensorSpec:
    """Result of a pointwise op on tensors of `specs`, laid out as by TensorIterator."""
    lead = specs[0]
    device = lead.device
    for spec in specs:
        if spec.sizes == () or spec is lead:
            if spec.device != device:
                return _general_spec(oracle, specs, dtype)
        elif lead.sizes == () and spec.device == device:
            lead = spec
        elif spec.sizes != lead.sizes or spec.strides != lead.strides or spec.device != device:
            return _general_spec(oracle, specs, dtype)
    if not is_canonical(lead.sizes, lead.strides):
        return _general_spec(oracle, specs, dtype)
    if lead.dtype is dtype and lead.offset == 0:
        return lead
    return TensorSpec(dtype, lead.sizes, lead.strides, 0, device)


def _general_spec(oracle: SizeOracle, specs: Sequence[TensorSpec], dtype: torch.dtype) -> TensorSpec:
    operands = tuple([(spec.sizes, spec.strides) for spec in specs])
    sizes, strides = layout_without_symbols(operands) or iterator_layout(oracle, operands)
    return TensorSpec(dtype, sizes, strides, 0, joint_device(specs))


def joint_device(specs: Sequence[TensorSpec]) -> torch.device:
    """The device of the inputs; CPU tensors of rank 0 mix with another device."""
    device = specs[0].device
    for spec in specs:
        if spec.device == device:
            continue
        if device.type == "cpu":
            device = spec.device
        elif spec.device.type != "cpu":
            raise DeviceMismatch(op="pointwise op", problem=f"inputs are on {device} and {spec.device}")
    for spec in specs:
        if spec.device != device and spec.rank:
            raise DeviceMismatch(
                op="pointwise op", problem=f"an input is on {device}, another of rank {spec.rank} on the CPU"
            )
    return device


def _like_inputs(dtype: torch.dtype | None) -> MetaRule:
    """The rule of an op on inputs of equal dtypes; None: the result has theirs."""

    def rule(oracle: SizeOracle, first: TensorSpec, *rest: TensorSpec) -> TensorSpec:
        for spec in rest:
            if spec.dtype is not first.dtype:
                raise ValueError(f"pointwise inputs of dtypes {first.dtype} and {spec.dtype}")
        return pointwise_spec(oracle, (first, *rest), dtype or first.dtype)

    return rule


@META("where")
def where_meta(oracle: SizeOracle, condition: TensorSpec, x: TensorSpec, y: TensorSpec) -> TensorSpec:
    if condition.dtype is not torch.bool or x.dtype is not y.dtype:
        raise ValueError(f"where on dtypes {condition.dtype}, {x.dtype}, {y.dtype}")
    return pointwise_spec(oracle, (condition, x, y), x.dtype)


@META("convert")
def convert_meta(oracle: SizeOracle, x: TensorSpec, *, dtype: torch.dtype) -> TensorSpec:
    """As `x.to(dtype)`: the format is preserved, strides of size-1 dimensions too."""
    strides = preserved_strides(oracle, x.sizes, x.strides)
    return TensorSpec(dtype, x.sizes, strides, 0, x.device)


@META("bitcast")
def bitcast_meta(oracle: SizeOracle, x: TensorSpec, *, dtype: torch.dtype) -> TensorSpec:
    if dtype.itemsize != x.dtype.itemsize:
        raise ValueError(f"bitcast of {x.dtype} to {dtype}, which has another width")
    return pointwise_spec(oracle, (x,), dtype)


RULES: dict[str, MetaRule] = {"same": _like_inputs(None), "bool": _like_inputs(torch.bool)}

for _row in PRIMS:
    if _row.kind is Kind.POINTWISE and META.get(_row.name) is None:
        META[_row.name] = RULES[_row.result]
