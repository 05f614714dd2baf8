"""Loop bodies as text.

    v0 = load x[i0, i1]
    -> sub(v0, load mean[i0])

A value that is used once is written where it is used, if the line stays short; others are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kiln.loops.body.analyses import operands_of
from kiln.loops.body.body import (
    BodyOp,
    Check,
    Compute,
    Const,
    Index,
    IndexValue,
    Indirect,
    Load,
    LoopBody,
    Random,
    Test,
)
from kiln.loops.body.indexing import Axis
from kiln.tensor.dtypes import DTYPE_NAMES

MAX_NESTED, MAX_RESULT = 72, 100
"""Longest expression that is written in place: as an operand, as a result."""

INDENT = "    "


class BodyText:
    """Lines that name values, and the expressions of the results."""

    def __init__(self, body: LoopBody, results: Sequence[int] | None = None) -> None:
        """`results`: the number of each result as often as it is used; None: each once."""
        self.lines: list[str] = []
        self._exprs: list[str] = []
        uses = Counter(position for op in body.ops for position in operands_of(op))
        uses.update(body.results if results is None else (body.results[position] for position in results))
        for position, op in enumerate(body.ops):
            self._exprs.append(self._write(op, uses[position], MAX_RESULT if position in body.results else MAX_NESTED))
        self.results = tuple(self._exprs[position] for position in body.results)

    def _write(self, op: BodyOp, uses: int, limit: int) -> str:
        """How later ops refer to the value; adds a line unless it is written in place."""
        text = self._expr(op)
        if isinstance(op, Indirect):
            self.lines.append(f"{op.symbol} = {text}")
            return op.symbol.name
        if isinstance(op, Const) or (uses == 1 and len(text) <= limit):
            return text
        name = f"v{sum(line.startswith('v') for line in self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _expr(self, op: BodyOp) -> str:
        match op:
            case Load(buffer, index, _, mask):
                condition = "" if mask is None else f" if {self._exprs[mask]}"
                return f"load {access_text(buffer, index)}{condition}"
            case Const(value, dtype):
                return f"{DTYPE_NAMES[dtype]}({number_text(value)})"
            case IndexValue(expr, dtype):
                return f"index({expr}, {DTYPE_NAMES[dtype]})"
            case Test(relation):
                return f"test({relation})"
            case Compute(prim, operands, dtype):
                extra = f", {DTYPE_NAMES[dtype]}" if prim.result == "attr" else ""
                return f"{prim.name}({', '.join(self._exprs[operand] for operand in operands)}{extra})"
            case Indirect(_, operand, size, check):
                return f"indirect({self._exprs[operand]}, {size}{'' if check is Check.IN_SIZE else f', {check.value}'})"
            case Random(distribution, seed, counter, dtype):
                return f"random_{distribution}({self._exprs[seed]}, {counter}, {DTYPE_NAMES[dtype]})"


def number_text(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def access_text(buffer: str, index: Index) -> str:
    return f"{buffer}[{', '.join(map(str, index))}]"


def axes_text(axes: Sequence[Axis], vector: int | None = None) -> str:
    marks = ["" if position != vector else " vector" for position in range(len(axes))]
    return f"({', '.join(f'{axis.symbol}: {axis.size}{mark}' for axis, mark in zip(axes, marks, strict=True))})"
