"""Reductions as functions: an accumulator for each point of the kept axes, or partial results first.

total = sum over (i1: 1030)      partial[lane] += x[r[0]*32 + lane]      32 lanes in vectors, as far as they are whole
                                 total[()] += partial[r2[0]]             then these, in float64
                                 total[()] += x[1024 + r3[0]]            then what is left
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kiln.loops.body.indexing import Axis, points
from kiln.loops.codegen.effects import INDEX_OPS, combined
from kiln.loops.codegen.halide.body import HalideBody, NamedExpr, element, literal
from kiln.loops.codegen.halide.dialect import HALIDE
from kiln.loops.codegen.halide.pipeline import Pipeline, plain_symbols
from kiln.loops.kernel.kernel import Accumulate, Phase
from kiln.loops.program.nodes import ReduceOp
from kiln.loops.program.reductions import reduce_start
from kiln.symbolic import Symbol, is_static

MOST_IN_SINGLE = 64
"""Additions per partial sum that are done in float32; longer sums are done in float64."""
PARTIAL_VECTORS = 4
"""Vectors of partial sums, so that an addition does not wait for the one before."""


def accumulate(pipeline: Pipeline, phase: Phase, shared: Mapping[int, str], effect: Accumulate) -> None:
    if effect.running is not None or effect.exp_sum is not None or effect.op in INDEX_OPS:
        raise HALIDE.unsupported("a scan or the index of an extreme value", "it is written in C++")
    kept = list(reversed(plain_symbols(effect.index)))
    along = phase.axes[phase.vector] if phase.vector is not None and pipeline.run is None else None
    if along is not None and along in effect.over and not (is_static(along.size) and int(along.size) < pipeline.lanes):
        in_partial_results(pipeline, phase, shared, effect, kept, along)
    else:
        in_place(pipeline, phase, shared, effect, kept)


def in_place(
    pipeline: Pipeline, phase: Phase, shared: Mapping[int, str], effect: Accumulate, kept: list[Symbol]
) -> None:
    """One accumulator for each point of the kept axes, in vectors along them."""
    name = pipeline.name(effect.target + "_")
    domain, names = reduced_domain(pipeline, effect.over)
    value = pipeline.value(phase, shared, effect.result, names)
    dtype = accumulated(effect, value.dtype, 1)
    start(pipeline, name, effect.op, dtype, kept)
    add(pipeline, name, effect.op, dtype, kept, value)
    along = pipeline.lane_axis(phase, kept)
    if along is not None:
        pipeline.vectorised(name, kept, along)
        loops = [along.name, *[f"{domain}[{number}]" for number in range(len(effect.over))]]
        loops += [other for other in [*[symbol.name for symbol in kept], *pipeline.further] if other != along.name]
        pipeline.made.append(f"{name}.update(0).reorder({', '.join(loops)})")
        pipeline.made.append(f"{name}.update(0).vectorize({along.name}, {pipeline.lanes}, hl.TailStrategy.GuardWithIf)")
    pipeline.add_local(effect.target, name, dtype)


def in_partial_results(
    pipeline: Pipeline, phase: Phase, shared: Mapping[int, str], effect: Accumulate, kept: list[Symbol], along: Axis
) -> None:
    """One for each lane of some vectors; then these are combined, and what is left of the axis."""
    width = pipeline.lanes * PARTIAL_VECTORS
    if is_static(along.size) and int(along.size) < width:
        width = pipeline.lanes
    others = [axis for axis in effect.over if axis != along]
    whole, ints = along.size // width, HalideBody(pipeline.memory, pipeline.bounds, {}, "").ints()
    partial, lane = pipeline.name("partial"), pipeline.name("lane")
    pipeline.made.append(f'{lane} = hl.Var("{lane}")')
    domain, names = reduced_domain(pipeline, [Axis(along.symbol, whole), *others])
    names[along.symbol] = f"({domain}[0] * {width} + {lane})"
    value = pipeline.value(phase, shared, effect.result, names)
    dtype = accumulated(effect, value.dtype, width)
    lanes = [lane, *[symbol.name for symbol in kept]]
    define_start(pipeline, partial, effect.op, dtype, lanes)
    define_add(pipeline, partial, effect.op, dtype, lanes, value)
    loops = [lane, *[f"{domain}[{number}]" for number in range(1 + len(others))], *lanes[1:]]
    pipeline.made += [
        f"{partial}.compute_root().bound({lane}, 0, {width}).vectorize({lane}, {width})",
        f"{partial}.update(0).reorder({', '.join(loops)}).vectorize({lane}, {width})",
    ]
    pipeline.holds = True
    wide = accumulated(effect, value.dtype, 0)
    name = pipeline.name(effect.target + "_")
    start(pipeline, name, effect.op, wide, kept)
    lanes_domain = pipeline.name("r")
    pipeline.made.append(f'{lanes_domain} = hl.RDom([(0, {width})], "{lanes_domain}")')
    part = NamedExpr(element(partial, [f"{lanes_domain}[0]", *[symbol.name for symbol in kept]]), dtype)
    add(pipeline, name, effect.op, wide, kept, part)
    left = along.size - whole * width
    if not (is_static(left) and int(left) == 0):
        domain, names = reduced_domain(pipeline, [Axis(along.symbol, left), *others])
        names[along.symbol] = f"({ints.operand(whole * width)} + {domain}[0])"
        add(pipeline, name, effect.op, wide, kept, pipeline.value(phase, shared, effect.result, names))
    pipeline.add_local(effect.target, name, wide)


def reduced_domain(pipeline: Pipeline, over: Sequence[Axis]) -> tuple[str, dict[Symbol, str]]:
    """A domain over these axes, and the texts of their symbols."""
    name, ints = pipeline.name("r"), HalideBody(pipeline.memory, pipeline.bounds, {}, "").ints()
    extents = ", ".join([f"(0, {ints.text(axis.size)})" for axis in over])
    pipeline.made.append(f'{name} = hl.RDom([{extents}], "{name}")')
    return name, {axis.symbol: f"{name}[{number}]" for number, axis in enumerate(over)}


def start(pipeline: Pipeline, name: str, op: ReduceOp, dtype: torch.dtype, kept: Sequence[Symbol]) -> None:
    define_start(pipeline, name, op, dtype, [*[symbol.name for symbol in kept], *pipeline.further])
    pipeline.made.append(f"{name}.compute_root()")
    pipeline.holds = True


def add(
    pipeline: Pipeline, name: str, op: ReduceOp, dtype: torch.dtype, kept: Sequence[Symbol], value: NamedExpr
) -> None:
    define_add(pipeline, name, op, dtype, [*[symbol.name for symbol in kept], *pipeline.further], value)


def define_start(pipeline: Pipeline, name: str, op: ReduceOp, dtype: torch.dtype, at: list[str]) -> None:
    first = literal(reduce_start(op, dtype), dtype)
    text = f"hl.cast(hl.UInt(8), {first})" if dtype == torch.bool else first
    pipeline.made += [f'{name} = hl.Func("{name}")', f"{element(name, at)} = {text}"]


def define_add(
    pipeline: Pipeline, name: str, op: ReduceOp, dtype: torch.dtype, at: list[str], value: NamedExpr
) -> None:
    here = element(name, at)
    if dtype == torch.bool:
        text = f"hl.cast(hl.UInt(8), {combined(op, f'({here} != 0)', value.text, dtype)})"
    else:
        text = combined(op, here, f"hl.cast({HALIDE.dtype_name(dtype)}, {value.text})", dtype)
    pipeline.made.append(f"{here} = {text}")


def accumulated(effect: Accumulate, dtype: torch.dtype, parts: int) -> torch.dtype:
    """In what `parts` accumulators of each result are kept; 0: the result itself."""
    if effect.op in (ReduceOp.ANY, ReduceOp.ALL):
        return torch.bool
    if dtype != torch.float32 or effect.op not in (ReduceOp.SUM, ReduceOp.PROD):
        return dtype
    size = points(effect.over)
    short = parts > 0 and is_static(size) and int(size) <= MOST_IN_SINGLE * parts
    return torch.float32 if short else torch.float64
