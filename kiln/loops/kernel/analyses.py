"""Questions about bodies, nodes and kernels: what they touch, what they cost, in which bounds an index lies.

    accesses(body)                       (Access("x", (i0, i1), f32, conditional=False), ...)
    flops(body)                          arithmetic operations per point
    stride_along(spec, index, i1)        1: neighbours along i1 are neighbours in memory
    axis_bounds(axes).of(8*i0 + i1)      the interval of an index expression

Each is a walk over the data; none changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from kiln.loops.body.body import Compute, Index, Indirect, Load, LoopBody, Random
from kiln.loops.body.builder import dtype_of, symbols_used
from kiln.loops.body.indexing import substituted, symbols_of
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
from kiln.loops.program.nodes import Axis, BufferArg, Extern, LoopNode, Reduction, Scatter
from kiln.symbolic import BoundAnalysis, Expr, Int, Range, Symbol, product
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Access:
    """One load or store. `conditional`: under a mask."""

    buffer: str
    index: Index
    dtype: torch.dtype
    conditional: bool = False


def accesses(body: LoopBody) -> tuple[Access, ...]:
    """The loads of a body, in order."""
    loads = (op for op in body.ops if isinstance(op, Load))
    return tuple(Access(op.buffer, op.index, op.dtype, op.mask is not None) for op in loads)


def reads(node: LoopNode) -> tuple[Access, ...]:
    """What a node loads; an extern call reads whole buffers (index ())."""
    if isinstance(node, Extern):
        return tuple(Access(arg.name, (), torch.uint8) for arg in buffer_args(node))
    loads = accesses(node.body)
    return (Access(node.init, (), node.out.spec.dtype), *loads) if isinstance(node, Scatter) else loads


def buffer_args(node: Extern) -> tuple[BufferArg, ...]:
    """Buffers among the arguments of an extern call, in order."""
    return tuple(_buffers_in((*node.args, *(value for _, value in node.kwargs))))


def _buffers_in(value: object) -> Iterable[BufferArg]:
    if isinstance(value, BufferArg):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _buffers_in(one)


def written(node: LoopNode) -> tuple[str, ...]:
    """Names of the buffers that a node writes."""
    if isinstance(node, Extern):
        return (*(out.name for out in node.outs if out is not None), *node.mutates)
    return (node.out.name,)


def node_axes(node: LoopNode) -> tuple[Axis, ...]:
    """All axes of a node's iteration space."""
    if isinstance(node, Extern):
        return ()
    return (*node.kept, *node.reduced) if isinstance(node, Reduction) else node.axes


def points(axes: Sequence[Axis]) -> Int:
    """Number of points of an iteration space."""
    return product(axis.size for axis in axes)


def dtypes(body: LoopBody) -> tuple[torch.dtype, ...]:
    """Dtype of the value at each place."""
    return tuple(dtype_of(body.ops, place) for place in range(len(body.ops)))


def result_dtypes(body: LoopBody) -> tuple[torch.dtype, ...]:
    return tuple(dtype_of(body.ops, place) for place in body.results)


def flops(body: LoopBody) -> int:
    """Arithmetic operations per point; a random number counts 10."""
    total = 0
    for op in body.ops:
        total += op.op.flops if isinstance(op, Compute) else 10 if isinstance(op, Random) else 0
    return total


def free_symbols(body: LoopBody) -> frozenset[Symbol]:
    """Loop and size symbols of a body: all but those that it binds."""
    used = frozenset().union(*(symbols_used(op) for op in body.ops))
    return used - bound_symbols(body)


def bound_symbols(body: LoopBody) -> frozenset[Symbol]:
    """Symbols that stand for data."""
    return frozenset(op.symbol for op in body.ops if isinstance(op, Indirect))


# --------------------------------------------------------------------------------------- indices


def linear_index(spec: TensorSpec, index: Index) -> Int:
    """Elements from the start of the tensor (its offset not counted)."""
    total: Int = 0
    for at, stride in zip(index, spec.strides, strict=True):
        total = total + at * stride
    return total


def stride_of(value: Int, symbol: Symbol) -> Int | None:
    """By how much `value` grows with `symbol`; None where that depends on `symbol`."""
    if not isinstance(value, Expr) or symbol not in value.free_symbols():
        return 0
    step = substituted(value, {symbol: symbol + 1}) - value
    return None if symbol in symbols_of(step) else step


def stride_along(spec: TensorSpec, index: Index, symbol: Symbol) -> Int | None:
    """Elements between neighbours along `symbol`; None where it is not one number."""
    return stride_of(linear_index(spec, index), symbol)


def axis_bounds(axes: Sequence[Axis], sizes: Mapping[Symbol, Range] | None = None) -> BoundAnalysis:
    """Bounds of index expressions: an axis runs below its size, sizes are not negative unless `sizes` says more."""
    ranges = dict(sizes or {})
    for symbol in symbols_of(*(axis.size for axis in axes)):
        ranges.setdefault(symbol, Range(0))
    of_sizes = BoundAnalysis(ranges)
    for axis in axes:
        top = of_sizes.of(axis.size).hi
        ranges[axis.symbol] = Range(0, None if top is None else max(top - 1, 0))
    return BoundAnalysis(ranges)


# --------------------------------------------------------------------------------------- kernels


def phase_writes(phase: Phase) -> tuple[str, ...]:
    """Buffers and locals that a phase writes."""
    names = []
    for effect in phase.effects:
        names.append(effect.target)
        if isinstance(effect, Accumulate) and effect.running is not None:
            names.append(effect.running.target)
        if isinstance(effect, Accumulate) and effect.exp_sum is not None:
            names.append(effect.exp_sum)
    return tuple(dict.fromkeys(names))


def phase_stores(phase: Phase) -> tuple[Store, ...]:
    """All stores of a phase, those of scans too."""
    found = []
    for effect in phase.effects:
        store = effect if isinstance(effect, Store) else effect.running
        if store is not None:
            found.append(store)
    return tuple(found)


def kernel_reads(kernel: KernelIR) -> frozenset[str]:
    """Parameters that the kernel loads from, or combines into."""
    names = {one.buffer for phase in kernel.phases for one in accesses(phase.body)}
    names |= {one.target for phase in kernel.phases for one in phase_stores(phase) if one.combine is not None}
    return frozenset(one.name for one in kernel.params if one.name in names)


def kernel_symbols(kernel: KernelIR) -> frozenset[Symbol]:
    """Size symbols that the kernel needs: all free symbols that no axis and no indirect binds."""
    used: frozenset[Symbol] = symbols_of(*(axis.size for axis in kernel.units))
    bound = {axis.symbol for axis in kernel.units}
    for local in kernel.locals:
        used |= symbols_of(*(axis.size for axis in local.axes))
    touched: set[str] = set()
    for phase in kernel.phases:
        bound |= {axis.symbol for axis in phase.axes} | bound_symbols(phase.body)
        used |= symbols_of(*(axis.size for axis in phase.axes)) | free_symbols(phase.body)
        for store in phase_stores(phase):
            used |= symbols_of(*store.index)
        for effect in phase.effects:
            used |= symbols_of(*effect.index)
        touched |= {one.buffer for one in accesses(phase.body)} | set(phase_writes(phase))
    for param in kernel.params:
        if param.name in touched:
            used |= symbols_of(*param.spec.strides)
    return used - bound
