"""Specs of a program's inputs in files.

f32[batch, 16]     {"dtype": "f32", "sizes": ["batch", 16], "strides": [16, 1], "offset": 0, "device": "cpu"}
int(n)             {"scalar": "int", "value": "n"}
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.programs.call.errors import DamagedProgram
from kiln.programs.call.fields import LARGEST, LARGEST_RANK, Fields, Json
from kiln.symbolic import Expr, Int, Symbol, parse_int
from kiln.tensor.dtypes import DTYPE_NAMES, DTYPES_BY_NAME
from kiln.tensor.spec import ScalarSpec, TensorSpec

SCALARS: dict[str, type[int] | type[float] | type[bool]] = {"int": int, "float": float, "bool": bool}


def spec_to_json(spec: TensorSpec | ScalarSpec) -> Json:
    if isinstance(spec, ScalarSpec):
        return {"scalar": spec.kind.__name__, "value": None if spec.value is None else _size_to_json(spec.value)}
    return {
        "dtype": DTYPE_NAMES[spec.dtype],
        "sizes": [*map(_size_to_json, spec.sizes)],
        "strides": [*map(_size_to_json, spec.strides)],
        "offset": _size_to_json(spec.offset),
        "device": str(spec.device),
    }


def spec_from_json(data: Json) -> TensorSpec | ScalarSpec:
    """Inverse of `spec_to_json`. Raises DamagedProgram."""
    fields = Fields(data, "the spec of an input")
    if isinstance(data, dict) and "scalar" in data:
        kind, value = SCALARS[fields.choice("scalar", tuple(SCALARS))], fields.take("value")
        fields.finish()
        return ScalarSpec(kind, None if value is None else _size_from_json(value))
    dtype = DTYPES_BY_NAME[fields.choice("dtype", tuple(DTYPES_BY_NAME))]
    sizes, strides = _sizes(fields.items("sizes")), _sizes(fields.items("strides"))
    offset = _size_from_json(fields.take("offset"))
    try:
        device = torch.device(fields.text("device"))
    except RuntimeError as problem:
        raise DamagedProgram(problem="an input is on an unknown device") from problem
    fields.finish()
    if len(sizes) != len(strides) or len(sizes) > LARGEST_RANK:
        raise DamagedProgram(problem=f"an input has {len(sizes)} sizes and {len(strides)} strides")
    return TensorSpec(dtype, sizes, strides, offset, device)


def _sizes(data: Sequence[Json]) -> tuple[Int, ...]:
    return tuple([_size_from_json(item) for item in data])


def _size_to_json(size: Int) -> Json:
    return size if isinstance(size, int) else str(size)


def _size_from_json(data: Json) -> Int:
    if type(data) is int and 0 <= data < LARGEST:
        return data
    if not isinstance(data, str):
        raise DamagedProgram(problem=f"a size is {str(data)[:40]!r}")
    return parse_int(data)


def bound_by(spec: TensorSpec | ScalarSpec) -> set[Symbol]:
    """The symbols whose numbers an input with this spec tells."""
    sizes = (spec.value,) if isinstance(spec, ScalarSpec) else spec.sizes
    return {size for size in sizes if isinstance(size, Symbol)}


def used_by(spec: TensorSpec | ScalarSpec) -> set[Symbol]:
    """The symbols in a spec."""
    numbers = (spec.value,) if isinstance(spec, ScalarSpec) else (*spec.sizes, *spec.strides, spec.offset)
    return {found for number in numbers if isinstance(number, Expr) for found in number.free_symbols()}
