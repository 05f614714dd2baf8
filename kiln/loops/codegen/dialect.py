"""A target language as data; a kernel writer does the rest.

    CPP.exprs["where"]        "sel({0}, {1}, {2})"
    CPP.compute_in[bfloat16]  float32

A POINTWISE primitive is a template over its operands; `exprs_for` holds other templates for classes of dtypes
("float", "int", "bool"). What cannot be a template (`convert`, `bitcast`) is a method of the writer and stands in
`methods`. A test compares both with `PRIMS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import final

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.kernel.errors import UnsupportedInKernel
from kiln.support.records import dataclass

_INFIX = re.compile(r"\{0\} [^\w\s(]+ \{1\}")


@final
@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    dtypes: Mapping[torch.dtype, str]
    """Name of each dtype as it lies in memory."""
    compute_in: Mapping[torch.dtype, torch.dtype]
    """Dtypes that are computed in another one."""
    exprs: Mapping[str, str]
    exprs_for: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    methods: frozenset[str] = frozenset()

    def computed(self, dtype: torch.dtype) -> torch.dtype:
        return self.compute_in.get(dtype, dtype)

    def dtype_name(self, dtype: torch.dtype) -> str:
        """Raises `UnsupportedInKernel` for a dtype that the language lacks."""
        if dtype not in self.dtypes:
            raise self.unsupported(str(dtype), "it has no such dtype")
        return self.dtypes[dtype]

    def expr(self, op: Prim, dtype: torch.dtype) -> str:
        kind = "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"
        special = self.exprs_for.get(kind, {})
        template = special.get(op.name) or self.exprs.get(op.name)
        if template is None:
            raise self.unsupported(f"`{op.name}` on {dtype}", "it has no expression for it")
        return template

    def unsupported(self, thing: str, reason: str) -> UnsupportedInKernel:
        return UnsupportedInKernel(language=self.name, thing=thing, reason=reason)

    def covers(self, op: Prim) -> bool:
        return any(op.name in known for known in (self.methods, self.exprs, *self.exprs_for.values()))


def is_infix(template: str) -> bool:
    """`{0} + {1}` takes numbers and vectors alike."""
    return _INFIX.fullmatch(template) is not None


def truth_exprs(negation: str) -> dict[str, str]:
    """Arithmetic and comparisons of truths by operators on bits; `negation` is the one in front of an operand."""
    never = f"{{0}} & {negation}{{0}}"
    return {
        "add": "{0} | {1}", "mul": "{0} & {1}", "maximum": "{0} | {1}", "minimum": "{0} & {1}", "abs": "{0}",
        "lt": f"{negation}{{0}} & {{1}}", "gt": f"{{0}} & {negation}{{1}}",
        "le": f"{negation}{{0}} | {{1}}", "ge": f"{{0}} | {negation}{{1}}",
        "isnan": never, "isinf": never, "signbit": never,
    }  # fmt: skip
