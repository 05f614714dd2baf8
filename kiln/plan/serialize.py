"""Plans as canonical JSON and back; no pickle, so a file can only be data.

    encode_plan(plan)  ->  b'{"t":"Plan","name":"add_norm","inputs":[...],...}'
    decode_plan(data) == plan

Equal plans have equal bytes. A dataclass is an object whose "t" names its class, with the fields that differ from
their defaults; types that JSON lacks are objects with one key of `SCALARS`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kiln.plan.operands import LAYOUT_NUMBERS, MEMORY_FORMATS
from kiln.plan.plan import Kernel, KernelParam, Plan, PlanInput, PlanOutput, Ref, SymbolBinding
from kiln.plan.region import RegionSpec, Saved
from kiln.plan.signature import Carried, SavedTensor, Signature, Tangent, Watched
from kiln.plan.steps import STEPS
from kiln.support.errors import KilnError
from kiln.symbolic import Expr, Relation, parse_int, parse_relation
from kiln.tensor.dtypes import DTYPE_NAMES, DTYPES_BY_NAME
from kiln.tensor.spec import TensorSpec

CLASSES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *STEPS, TensorSpec, Kernel, KernelParam, Plan, PlanInput, PlanOutput, Ref, SymbolBinding, RegionSpec, Saved,
        Carried, SavedTensor, Signature, Tangent, Watched,
    )
}  # fmt: skip
FORMATS = {str(kind): kind for kind in MEMORY_FORMATS}
LAYOUTS = {str(kind): kind for kind in LAYOUT_NUMBERS}


class UnreadablePlan(KilnError, ValueError):
    code = "KILN6002"
    what = "a stored plan cannot be read"
    why = "{problem}"
    try_ = ("remove the cache folder or write the bundle again",)


# fmt: off
SCALARS: tuple[tuple[str, type, Callable[[Any], str], Callable[[str], object]], ...] = (
    # key     type                 to text                      from text
    ("expr",  Expr,                str,                         parse_int),
    ("rel",   Relation,            str,                         parse_relation),
    ("dtype", torch.dtype,         DTYPE_NAMES.__getitem__,     DTYPES_BY_NAME.__getitem__),
    ("dev",   torch.device,        str,                         torch.device),
    ("mf",    torch.memory_format, str,                         FORMATS.__getitem__),
    ("lay",   torch.layout,        str,                         LAYOUTS.__getitem__),
    ("float", float,               repr,                        float),
)
# fmt: on
READERS = {key: read for key, _, _, read in SCALARS}


def encode_plan(plan: object) -> bytes:
    """A plan, a region spec, or a tuple of their parts."""
    return json.dumps(to_json(plan), separators=(",", ":"), allow_nan=False).encode()


def decode_plan(data: bytes) -> Any:
    """The plan (or region spec). Raises UnreadablePlan."""
    try:
        return Decoder().value(json.loads(data))
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise UnreadablePlan(problem=f"{type(error).__name__}: {error}") from error


def to_json(value: Any) -> Any:
    """`value` as types that the json module writes."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if type(value).__name__ in CLASSES:
        made = {"t": type(value).__name__}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if field.default is dataclasses.MISSING or item != field.default or type(item) is not type(field.default):
                made[field.name] = to_json(item)
        return made
    for key, kind, write, _ in SCALARS:
        if isinstance(value, kind):
            return {key: write(value)}
    raise TypeError(f"a plan cannot hold a value of type {type(value).__name__}")


class Decoder:
    """Reads the JSON form; equal expressions are parsed once."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Any] = {}

    def value(self, data: object) -> object:
        if isinstance(data, list):
            return tuple(self.value(item) for item in data)
        if not isinstance(data, dict):
            return data
        if "t" in data:
            return CLASSES[data["t"]](**{name: self.value(item) for name, item in data.items() if name != "t"})
        ((key, text),) = data.items()
        if (key, text) not in self.known:
            self.known[key, text] = READERS[key](text)
        return self.known[key, text]
