"""Comparisons of indices in 32-bit lanes.

    eq(index(i1, i64), v1)               const mask v2 = lanes32() == distance32(v1, i1);
    le(sub(index(i1, i64), v1), 0)       const mask v4 = lanes32() <= distance32((i64)0, i1 - v1);

A vector of 64-bit indices takes two registers. One that counts up by one from lane to lane is determined by its first
lane: comparing it with a number compares 32-bit lane numbers with the distance of that number from the first lane.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.body.indexing import stride_of, symbols_of
from kiln.loops.codegen.cpp.dialect import CPP, CPP_INTEGERS
from kiln.loops.codegen.integers import IntPrinter
from kiln.loops.codegen.kernel_writer import NUMBER, Nest, StatementWriter, Storage, TextValue
from kiln.symbolic import Int, Relation

SIGN_OF: Mapping[str, str] = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TURNED: Mapping[str, str] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The operator with its sides exchanged."""


class IndexCompareStatements(StatementWriter, ABC):
    """Tracks vectors that count up by one from lane to lane."""

    def __init__(self, nest: Nest, storages: Mapping[str, Storage], unsettled: frozenset[str]) -> None:
        super().__init__(CPP, nest, storages, unsettled)
        self._firsts: dict[str, str] = {}  # the first lane's index, by the name of the vector

    def index(self, expr: Int, dtype: torch.dtype) -> TextValue:
        made = super().index(expr, dtype)
        lane, expr = self.nest.lane_symbol, self.nest.expr(expr)
        if lane is None or dtype != torch.int64 or not made.varying or stride_of(expr, lane) != 1:
            return made
        if not self.nest.varies(symbols_of(expr) - {lane}):
            self._firsts[made.text] = IntPrinter(self.nest.bounds, CPP_INTEGERS).text(expr)
        return made

    def test(self, relation: Relation) -> TextValue:
        """Between the cuts of a loop a test has one answer for all lanes."""
        symbols = relation.free_symbols()
        if not self.nest.cuts or self.nest.lane_symbol not in symbols:
            return super().test(relation)
        text = IntPrinter(self.nest.bounds, CPP_INTEGERS).relation(relation)
        return self.define(text, torch.bool, NUMBER, self.nest.depth_of(symbols))

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: TextValue) -> TextValue:
        dims = NUMBER.union(*(operand.dims for operand in operands))
        if op.name == "where" and dims and not operands[0].varying:  # one answer chooses whole vectors
            texts = [each.text if each.varying else self.operand(each, infix=False) for each in operands[1:]]
            depth = max(operand.depth for operand in operands)
            return self.define(f"sel({operands[0].text}, {', '.join(texts)})", dtype, dims, depth)
        lanes = [operand.text in self._firsts for operand in operands]
        if len(operands) != 2 or sum(lanes) != 1 or all(operand.varying for operand in operands):
            return super().pointwise(op, dtype, *operands)
        position = lanes.index(True)
        number, first = operands[1 - position].text, self._firsts[operands[position].text]
        if op.name in SIGN_OF:
            sign = SIGN_OF[op.name] if position == 0 else TURNED[SIGN_OF[op.name]]
            depth = max(operand.depth for operand in operands)
            return self.define(f"lanes32() {sign} distance32({number}, {first})", dtype, operands[position].dims, depth)
        made = super().pointwise(op, dtype, *operands)
        if op.name == "add" or (op.name == "sub" and position == 0):
            self._firsts[made.text] = f"({first}) {'+' if op.name == 'add' else '-'} {number}"
        return made
