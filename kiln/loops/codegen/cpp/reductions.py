"""Accumulators in C++: how partial results start, combine and end.

                 a number per lane, then one       one per point of the kept axes
    sum f32      f64v, lanes added at the end      row of f64
    amax f32     f32v                              row of f32
    argmax       Best<f32v, i32v> (i64v if long)   rows of value and index

Long sums and products of floats are accumulated in double precision, sums of float32 in short blocks first
(`blocked_sums.py`). Short ones (64 additions per lane) stay in float32; their lanes are added in double precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.codegen.cpp.statements import literal
from kiln.loops.codegen.effects import INDEX_OPS, combined, on_dtype
from kiln.loops.kernel.kernel import Accumulate
from kiln.loops.program.nodes import ReduceOp
from kiln.loops.program.reductions import reduce_start
from kiln.support.records import dataclass

_LANES: Mapping[ReduceOp, str] = {
    ReduceOp.SUM: "sum_lanes<{type}>({0})",
    ReduceOp.PROD: "prod_lanes<{type}>({0})",
    ReduceOp.MAX: "amax_lanes<{type}>({0})",
    ReduceOp.MIN: "amin_lanes<{type}>({0})",
    ReduceOp.ANY: "any_lanes({0})",
    ReduceOp.ALL: "all_lanes({0})",
}
FIRST_INDEX = "0"
"""The index of the start value: right if no element beats it, for then all are equal to it."""


def accumulated_in(op: ReduceOp, dtype: torch.dtype) -> torch.dtype:
    computed = CPP.computed(dtype)
    if op in (ReduceOp.ANY, ReduceOp.ALL):
        return torch.bool
    wide = op in (ReduceOp.SUM, ReduceOp.PROD) and computed == torch.float32
    return torch.float64 if wide else computed


def start_text(op: ReduceOp, dtype: torch.dtype) -> str:
    return literal(reduce_start(op, dtype), dtype)


@final
@dataclass(frozen=True, slots=True)
class Register:
    """An accumulator in registers, around loops deeper than `depth`.

    `lanes`: it is a vector; `across`: its lanes are combined at the end; `blocked`: the vectorised loop sums blocks in
    float32, which are added to it.
    """

    effect: Accumulate
    name: str
    dtype: torch.dtype
    depth: int
    lanes: bool
    across: bool
    blocked: bool = False

    @property
    def step_dtype(self) -> torch.dtype:
        """The dtype of what one step adds to."""
        return torch.float32 if self.blocked else self.dtype

    @property
    def op(self) -> ReduceOp:
        return self.effect.op

    @property
    def is_index(self) -> bool:
        return self.op in INDEX_OPS

    @property
    def is_split(self) -> bool:
        """May it have several copies, one per step of the vectorised loop?"""
        return self.across and not self.is_index

    @property
    def index(self) -> str:
        """The type of an index: lanes of 32 bits where those along the axis are known to fit."""
        size = self.effect.over[0].size
        return "i32" if self.across and isinstance(size, int) and size < 1 << 31 else "i64"

    @property
    def takes_largest(self) -> str:
        return "true" if self.op is ReduceOp.ARGMAX else "false"

    def type_name(self, step: bool = False) -> str:
        """Its C++ type; with `step`, of what one step adds to."""
        value = CPP.dtype_name(self.step_dtype if step else self.dtype)
        vector = "mask" if self.dtype == torch.bool else value + "v"
        if self.is_index:
            return f"Best<{vector}, {self.index}v>" if self.lanes else f"Best<{value}, {self.index}>"
        return vector if self.lanes else value

    def start(self) -> str:
        value = start_text(self.op, self.dtype)
        if self.is_index:
            first = f"({self.index}){FIRST_INDEX}"
            return f"{{all({value}), all({first})}}" if self.lanes else f"{{{value}, {FIRST_INDEX}}}"
        return f"all({value})" if self.lanes else value

    def merge(self, copies: list[str]) -> str:
        """All copies, a power of two of them, combined as a tree."""
        while len(copies) > 1:
            operands = [f"({copy})" if " " in copy else copy for copy in copies]
            pairs = zip(operands[::2], operands[1::2], strict=True)
            copies = [combined(self.op, left, right, self.dtype) for left, right in pairs]
        return copies[0]

    def lanes_combined(self, text: str) -> str:
        name = CPP.dtype_name(self.dtype)
        if self.dtype == torch.float32 and self.op in (ReduceOp.SUM, ReduceOp.PROD):
            name, text = "f64", f"__builtin_convertvector({text}, f64v)"
        if self.is_index:
            return f"best_lane<{self.takes_largest}, {name}>({text})"
        return _LANES[on_dtype(self.op, self.dtype)].format(text, type=name)
