"""The verifier of loop bodies; `InvalidLoops` is raised by those of programs and kernels as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from kiln.graph.prims.table import Kind
from kiln.loops.body.analyses import operands_of, symbols_used
from kiln.loops.body.body import Compute, Indirect, Load, LoopBody, Test
from kiln.support.errors import KilnError
from kiln.symbolic import Symbol


class InvalidLoops(KilnError):
    code = "KILN9301"
    what = "rule {rule} of the loop IR is broken"
    why = "{problem}, in\n{excerpt}"
    try_ = ("this is a fault of Kiln: run with KILN_DUMP=folder and report the folder",)


Ranks = Mapping[str, int]
Problem = Iterator[str]
Problems = Iterator[tuple[str, str]]


def _earlier(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for position, op in enumerate(body.ops):
        for operand in operands_of(op):
            if not 0 <= operand < position:
                yield f"op {position} uses op {operand}"
    for result in body.results:
        if not 0 <= result < len(body.ops):
            yield f"result {result} is not an op"


def _fits_row(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for position, op in enumerate(body.ops):
        if isinstance(op, Compute):
            if op.op.kind is not Kind.POINTWISE:
                yield f"op {position}: {op.op.name} is not pointwise"
            elif op.op.inputs is not None and op.op.inputs != len(op.operands):
                yield f"op {position}: {op.op.name} takes {op.op.inputs} operands, not {len(op.operands)}"


def _dtypes_agree(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for position, op in enumerate(body.ops):
        if isinstance(op, Load) and op.mask is not None and body.ops[op.mask].dtype != torch.bool:
            yield f"op {position}: the mask is not a bool"
        if not isinstance(op, Compute):
            continue
        given = [body.ops[operand].dtype for operand in op.operands]
        same = given[1:] if op.op.name == "where" else given
        if len(set(same)) > 1:
            yield f"op {position}: {op.op.name} of {given}"
        expected = {"bool": torch.bool, "same": same[-1]}.get(op.op.result, op.dtype)
        if expected != op.dtype:
            yield f"op {position}: {op.op.name} gives {expected}, not {op.dtype}"


def _symbols_bound(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    bound = set(scope)
    for position, op in enumerate(body.ops):
        if unknown := symbols_used(op) - bound:
            yield f"op {position} uses {', '.join(sorted(map(str, unknown)))}, which nothing binds"
        if isinstance(op, Indirect):
            bound.add(op.symbol)


def _ranks_fit(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for position, op in enumerate(body.ops):
        if isinstance(op, Load):
            if op.buffer not in ranks:
                yield f"op {position} loads {op.buffer}, which does not exist"
            elif ranks[op.buffer] != len(op.index):
                yield f"op {position} loads {op.buffer} of rank {ranks[op.buffer]} at {len(op.index)} indices"


def _tests_open(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for position, op in enumerate(body.ops):
        if isinstance(op, Test) and isinstance(op.relation, bool):
            yield f"op {position} tests a constant"


_BODY_RULES: tuple[tuple[str, Callable[[LoopBody, frozenset[Symbol], Ranks], Problem]], ...] = (
    ("B1", _earlier),
    ("B2", _fits_row),
    ("B3", _dtypes_agree),
    ("B4", _symbols_bound),
    ("B5", _ranks_fit),
    ("B6", _tests_open),
)


def verify_body(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks, excerpt: Callable[[], str]) -> None:
    """Raise InvalidLoops unless

    B1  operands are earlier ops, results are ops;
    B2  each Compute has a POINTWISE primitive and its number of operands;
    B3  operands have one dtype (but the condition of `where`), the result's is that of the row, masks are bools;
    B4  every symbol is in scope: a loop, a size, or bound by an earlier Indirect;
    B5  every loaded buffer exists and has as many dimensions as the index;
    B6  a Test is open (a decided one is a constant).
    """
    for rule, check in _BODY_RULES:
        for problem in check(body, scope, ranks):
            raise InvalidLoops(rule=rule, problem=problem, excerpt=excerpt())
