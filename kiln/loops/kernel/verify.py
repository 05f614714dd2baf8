"""The verifier of the loop IR: what lowering, schedule and code generation may rely on.

verify_program(program)      verify_scheduled(program)      verify_kernel(kernel)

All raise InvalidLoops, which names the rule and the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from kiln.graph.prims.table import Kind
from kiln.loops.body.body import Compute, Indirect, Load, LoopBody, Test
from kiln.loops.body.builder import dtype_of, operands_of, symbols_used
from kiln.loops.body.indexing import symbols_of
from kiln.loops.kernel.analyses import accesses, kernel_symbols, node_axes, phase_writes, reads, written
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.kernel.scheduled import ScheduledProgram
from kiln.loops.kernel.text import distinct_kernels, kernel_text, node_text
from kiln.loops.program.nodes import Axis, Buffer, Extern, LoopNode, LoopProgram, ReduceOp, Reduction, Scan, Scatter
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


# Bodies.


def _earlier(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for place, op in enumerate(body.ops):
        for operand in operands_of(op):
            if not 0 <= operand < place:
                yield f"op {place} uses place {operand}"
    for result in body.results:
        if not 0 <= result < len(body.ops):
            yield f"result {result} is no place"


def _fits_row(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for place, op in enumerate(body.ops):
        if isinstance(op, Compute):
            if op.op.kind is not Kind.POINTWISE:
                yield f"op {place}: {op.op.name} is not pointwise"
            elif op.op.inputs is not None and op.op.inputs != len(op.operands):
                yield f"op {place}: {op.op.name} takes {op.op.inputs} operands, not {len(op.operands)}"


def _dtypes_agree(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for place, op in enumerate(body.ops):
        if isinstance(op, Load) and op.mask is not None and dtype_of(body.ops, op.mask) != torch.bool:
            yield f"op {place}: the mask is no bool"
        if not isinstance(op, Compute):
            continue
        given = [dtype_of(body.ops, operand) for operand in op.operands]
        same = given[1:] if op.op.name == "where" else given
        if len(set(same)) > 1:
            yield f"op {place}: {op.op.name} of {given}"
        expected = {"bool": torch.bool, "same": same[-1]}.get(op.op.result, op.dtype)
        if expected != op.dtype:
            yield f"op {place}: {op.op.name} gives {expected}, not {op.dtype}"


def _symbols_bound(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    bound = set(scope)
    for place, op in enumerate(body.ops):
        if unknown := symbols_used(op) - bound:
            yield f"op {place} uses {', '.join(sorted(map(str, unknown)))}, which nothing binds"
        if isinstance(op, Indirect):
            bound.add(op.symbol)


def _ranks_fit(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for place, op in enumerate(body.ops):
        if isinstance(op, Load):
            if op.buffer not in ranks:
                yield f"op {place} loads {op.buffer}, which is not there"
            elif ranks[op.buffer] != len(op.index):
                yield f"op {place} loads {op.buffer} of rank {ranks[op.buffer]} at {len(op.index)} indices"


def _tests_open(body: LoopBody, scope: frozenset[Symbol], ranks: Ranks) -> Problem:
    for place, op in enumerate(body.ops):
        if isinstance(op, Test) and isinstance(op.relation, bool):
            yield f"op {place} tests a constant"


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

    B1  every operand is an earlier place, every result a place;
    B2  each Compute has a POINTWISE primitive and its number of operands;
    B3  operands have one dtype (but the condition of `where`), the result's is that of the row, masks are bools;
    B4  every symbol is in scope: a loop, a size, or bound by an earlier Indirect;
    B5  every loaded buffer exists and has as many dimensions as the index;
    B6  a Test is open (a decided one is a constant).
    """
    for rule, check in _BODY_RULES:
        for problem in check(body, scope, ranks):
            raise InvalidLoops(rule=rule, problem=problem, excerpt=excerpt())


# Programs.


def verify_program(program: LoopProgram) -> None:
    """Raise InvalidLoops unless

    P1  every buffer is defined once: input, constant, or result of one node (a scatter may write what it starts from);
    P2  a node reads only what is defined above it;
    P3  reductions over an index have one axis; scans run along an axis they have; scatter indices fit the rank;
    P4  results and writes name buffers that exist;
    and every body is right (B1 to B6).
    """
    ranks = {one.name: one.spec.rank for one in program.inputs if isinstance(one, Buffer)}
    ranks |= {one.name: one.spec.rank for one, _ in program.constants}
    sizes = _size_symbols(program)
    for node in program.nodes:
        for rule, problem in _node_problems(node, ranks):
            raise InvalidLoops(rule=rule, problem=problem, excerpt=node_text(node))
        if not isinstance(node, Extern):
            scope = sizes | {axis.symbol for axis in node_axes(node)}
            verify_body(node.body, scope, ranks, lambda node=node: node_text(node))  # type: ignore[misc]
        for out in _outs(node):
            ranks[out.name] = out.spec.rank
    named = [one.buffer for one in program.outputs if one.buffer is not None]
    for name in (*named, *(name for pair in program.writes for name in pair)):
        if name not in ranks:
            raise InvalidLoops(rule="P4", problem=f"{name} is not defined", excerpt=program.name)


def _size_symbols(program: LoopProgram) -> frozenset[Symbol]:
    symbols = frozenset(one for one in program.inputs if isinstance(one, Symbol))
    buffers = [one for one in program.inputs if isinstance(one, Buffer)] + [one for one, _ in program.constants]
    for buffer in (*buffers, *(out for node in program.nodes for out in _outs(node))):
        symbols |= symbols_of(*buffer.spec.sizes, *buffer.spec.strides, buffer.spec.offset)
    return symbols


def _outs(node: LoopNode) -> tuple[Buffer, ...]:
    return tuple(out for out in node.outs if out is not None) if isinstance(node, Extern) else (node.out,)


def _node_problems(node: LoopNode, ranks: Ranks) -> Problems:
    starts = {node.init, node.out.base} if isinstance(node, Scatter) else set()
    for out in _outs(node):
        if out.name in ranks and out.name not in starts:
            yield "P1", f"{out.name} is defined twice"
    for access in reads(node):
        if access.buffer not in ranks:
            yield "P2", f"{access.buffer} is read before it is defined"
    for name in written(node):
        if isinstance(node, Extern) and name in node.mutates and name not in ranks:
            yield "P2", f"{name} is written before it is defined"
    if isinstance(node, Reduction) and node.op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN) and len(node.reduced) != 1:
        yield "P3", "an index reduction has one axis"
    if isinstance(node, Scan) and not 0 <= node.along < len(node.axes):
        yield "P3", "a scan runs along one of its axes"
    if isinstance(node, Scatter) and len(node.index) != node.out.spec.rank:
        yield "P3", "a scatter has one index per dimension"


# Kernels.


def verify_scheduled(program: ScheduledProgram) -> None:
    """Every kernel of a program is right (K1 to K7)."""
    for kernel in distinct_kernels(program):
        verify_kernel(kernel)


def verify_kernel(kernel: KernelIR) -> None:
    """Raise InvalidLoops unless

    K1  names of parameters and locals differ, and written parameters are parameters;
    K2  effects write locals or written parameters, with one index per dimension, and give a result of the body;
    K3  an accumulator reduces axes of its phase and is indexed by others; a number or a row over kept axes;
    K4  a phase loads no local before something wrote it, and nothing that its own effects store
        (an accumulator is complete only in later phases);
    K5  every size symbol that is used (in a size, a stride, an effect) is an argument;
    K6  axes of units and of one phase have different symbols, `vector` is a place in them;
    K7  a sum of exp stands beside a maximum, in accumulators that nothing else feeds;
    and every body is right (B1 to B6).
    """
    for rule, problem in _kernel_problems(kernel):
        raise InvalidLoops(rule=rule, problem=problem, excerpt=kernel_text(kernel))
    ranks = {one.name: one.spec.rank for one in kernel.params} | {one.name: len(one.axes) for one in kernel.locals}
    sizes = symbols_of(*kernel.ints) | {axis.symbol for axis in kernel.units}
    for phase in kernel.phases:
        scope = sizes | {axis.symbol for axis in phase.axes} | _size_symbols_of(kernel)
        verify_body(phase.body, scope, ranks, lambda: kernel_text(kernel))
    if missing := kernel_symbols(kernel) - symbols_of(*kernel.ints):
        problem = f"{', '.join(sorted(map(str, missing)))} is no argument"
        raise InvalidLoops(rule="K5", problem=problem, excerpt=kernel_text(kernel))


def _size_symbols_of(kernel: KernelIR) -> frozenset[Symbol]:
    """Symbols of sizes and strides."""
    axes = [*kernel.units, *(axis for phase in kernel.phases for axis in phase.axes)]
    return symbols_of(*(axis.size for axis in axes), *(one for param in kernel.params for one in param.spec.sizes))


def _kernel_problems(kernel: KernelIR) -> Problems:
    names = [one.name for one in kernel.params] + [one.name for one in kernel.locals]
    if len(set(names)) != len(names):
        yield "K1", "two parameters or locals have one name"
    if kernel.writes - {one.name for one in kernel.params}:
        yield "K1", "a written buffer is no parameter"
    ranks = {one.name: one.spec.rank for one in kernel.params} | {one.name: len(one.axes) for one in kernel.locals}
    locals_ = {one.name for one in kernel.locals}
    set_: set[str] = set()
    for phase in kernel.phases:
        yield from _effect_problems(phase, ranks, locals_ | kernel.writes)
        for access in accesses(phase.body):
            if access.buffer in locals_ and access.buffer not in set_:
                yield "K4", f"local {access.buffer} is loaded before it is written"
            if access.buffer in phase_writes(phase) and access.buffer in locals_ - set_:
                yield "K4", f"{access.buffer} is loaded and written in one phase"
        for effect in phase.effects:
            if isinstance(effect, Accumulate) and effect.exp_sum is not None and {effect.target, effect.exp_sum} & set_:
                yield "K7", f"{effect.target} or {effect.exp_sum} holds something already"
        set_ |= set(phase_writes(phase))
        yield from _axis_problems(kernel.units, phase)


def _effect_problems(phase: Phase, ranks: Ranks, writable: frozenset[str] | set[str]) -> Problems:
    for effect in phase.effects:
        running = effect.running if isinstance(effect, Accumulate) else None
        for target in (effect, *(() if running is None else (running,))):
            if target.target not in writable:
                yield "K2", f"{target.target} may not be written"
            elif ranks[target.target] != len(target.index):
                yield "K2", f"{target.target} has rank {ranks[target.target]}, the index {len(target.index)}"
        if not 0 <= effect.result < len(phase.body.results):
            yield "K2", f"the body has no result {effect.result}"
        if not isinstance(effect, Accumulate):
            continue
        if effect.exp_sum is not None:
            yield from _exp_sum_problems(effect, effect.exp_sum, ranks, writable)
        over = {axis.symbol for axis in effect.over}
        if not over <= {axis.symbol for axis in phase.axes}:
            yield "K3", f"{effect.target} reduces an axis that the phase lacks"
        if over & symbols_of(*effect.index):
            yield "K3", f"{effect.target} is indexed by an axis that it reduces"


def _exp_sum_problems(effect: Accumulate, beside: str, ranks: Ranks, writable: frozenset[str] | set[str]) -> Problems:
    if effect.op is not ReduceOp.MAX or effect.running is not None:
        yield "K7", f"{beside} stands beside what is no maximum"
    if beside not in writable or ranks[beside] != len(effect.index):
        yield "K7", f"{beside} is no accumulator like {effect.target}"


def _axis_problems(units: tuple[Axis, ...], phase: Phase) -> Problems:
    symbols = [axis.symbol for axis in (*units, *phase.axes)]
    if len(set(symbols)) != len(symbols):
        yield "K6", "two axes have one symbol"
    if phase.vector is not None and not 0 <= phase.vector < len(phase.axes):
        yield "K6", "the vectorised axis is no axis of the phase"
