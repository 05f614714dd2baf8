"""One loop node as a kernel of its own: what a node becomes when nothing is fused with it.

    out: f32[64, 32] = pointwise (i0: 64, i1: 32): exp(load x[i0, i1])

    kernel exp_out(x: f32[64, 32] -> out: f32[64, 32]) units (i0: 64, i1: 32)     # strips along i1
        phase ():
            out[i0, i1] = exp(load x[i0, i1])

A pointwise node's axes are units; a reduction keeps its kept axes as units and accumulates in a phase. Scatters that
may hit a place twice run through the colliding axes in order, so that results do not depend on threads: in vectors of
indices and values where these are neighbours along them, else in strips of units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Index, LoopBody
from kiln.loops.body.builder import BodyBuilder, dtype_of
from kiln.loops.body.indexing import Axis, stride_along, symbols_of
from kiln.loops.fusion.inplace import take_over
from kiln.loops.fusion.views import KernelLoops, merge_views, open_sizes
from kiln.loops.kernel.analyses import kernel_symbols, phase_stores
from kiln.loops.kernel.atomics import is_atomic
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Local, Phase, Store
from kiln.loops.program.nodes import Buffer, Pointwise, ReduceOp, Reduction, Scan, Scatter
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, product
from kiln.tensor.size_hint import size_hint

STRIP = 256
"""Units that go through a phase together: enough for long vector loops, few enough for locals to stay in the cache."""

GRAIN_NANOSECONDS = 20_000
"""Work of a scatter that is worth a thread, at a nanosecond for each value."""

CPU = Target()
SingleNode = Pointwise | Reduction | Scan | Scatter
Buffers = Mapping[str, Buffer]


def single_kernel(node: SingleNode, buffers: Buffers, target: Target = CPU) -> KernelCall:
    """The kernel that computes `node` alone; `buffers` are those of the program by name."""
    make = _MAKERS[type(node)]
    call: KernelCall = make(node, buffers, target)
    return call


def _pointwise(node: Pointwise, buffers: Buffers, target: Target) -> KernelCall:
    phase = Phase((), node.body, (Store(node.out.name, _at(node.axes), 0),))
    strip = STRIP if node.axes and not target.is_gpu else 0
    return assemble("pointwise", node.axes, (phase,), (), buffers, target, strip=strip, origin=node.origin)


def _reduction(node: Reduction, buffers: Buffers, target: Target) -> KernelCall:
    total = Local("total", accumulator_dtype(node.op, node.out.spec.dtype), ())
    vector = None if node.op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN) else len(node.reduced) - 1
    gather = Phase(node.reduced, node.body, (Accumulate(total.name, node.op, node.reduced, (), 0),), vector)
    builder = BodyBuilder()
    value = converted(builder, builder.load(total.name, (), total.dtype), node.out.spec.dtype)
    finish = Phase((), builder.finish(value), (Store(node.out.name, _at(node.kept), 0),))
    return assemble(node.op.value, node.kept, (gather, finish), (total,), buffers, target, origin=node.origin)


def _scan(node: Scan, buffers: Buffers, target: Target) -> KernelCall:
    along = node.axes[node.along]
    units = tuple(axis for axis in node.axes if axis is not along)
    total = Local("total", dtype_of(node.body.ops, node.body.results[0]), ())
    store = Store(node.out.name, _at(node.axes), 0)
    phase = Phase((along,), node.body, (Accumulate(total.name, node.op, (along,), (), 0, running=store),))
    return assemble(f"scan_{node.op.value}", units, (phase,), (total,), buffers, target, origin=node.origin)


def _scatter(node: Scatter, buffers: Buffers, target: Target) -> KernelCall:
    """Units are the axes that are indices of the result themselves: different units write different places.

    On a GPU all axes are where its atomic operations combine what collides. Plain writes that collide leave any of
    the values, in eager as well.
    """
    own = {axis.symbol for axis in node.axes} & set(node.index)
    if target.is_gpu and (node.combine is None or is_atomic(node.combine, node.out.spec.dtype)):
        own = {axis.symbol for axis in node.axes}
    units = tuple(axis for axis in node.axes if axis.symbol in own)
    inner = tuple(axis for axis in node.axes if axis.symbol not in own)
    phase = Phase(inner, node.body, (Store(node.out.name, node.index, 0, node.combine),))
    if target.is_gpu:
        return assemble("scatter", units, (phase,), (), buffers, target, origin=node.origin)
    strip = STRIP if units and not (inner and _runs_along(node, inner[-1], units[-1], buffers)) else 0
    grain = max(int(GRAIN_NANOSECONDS / max(size_hint(product(axis.size for axis in inner)), 1)), 1)
    grain = 1 << grain.bit_length() - 1
    return assemble("scatter", units, (phase,), (), buffers, target, strip=strip, grain=grain, origin=node.origin)


def _runs_along(node: Scatter, axis: Axis, rather: Axis, buffers: Buffers) -> bool:
    """Are neighbours in memory neighbours along `axis` more often than along `rather`?"""
    touched = [(one.buffer, one.index) for one in accesses(node.body)] + [(node.out.name, node.index)]
    steps = [[stride_along(buffers[name].spec, index, one.symbol) for name, index in touched] for one in (axis, rather)]
    return steps[0].count(1) > steps[1].count(1)


_MAKERS: Mapping[type, Callable[[Any, Buffers, Target], KernelCall]] = {
    Pointwise: _pointwise,
    Reduction: _reduction,
    Scan: _scan,
    Scatter: _scatter,
}


def accumulator_dtype(op: ReduceOp, out: torch.dtype) -> torch.dtype:
    """Sums and products of narrow floating-point numbers are kept in float32."""
    narrow = out.is_floating_point and out.itemsize < 4 and op in (ReduceOp.SUM, ReduceOp.PROD)
    return torch.float32 if narrow else out


def converted(builder: BodyBuilder, place: int, dtype: torch.dtype) -> int:
    """The value at `place` as a `dtype`."""
    return place if builder.dtype_of(place) == dtype else builder.pointwise(PRIMS["convert"], dtype, place)


def _at(axes: tuple[Axis, ...]) -> Index:
    return tuple(axis.symbol for axis in axes)


@final
@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, named after the buffers of the program, and the values of those of its sizes that are not symbols."""

    kernel: KernelIR
    sizes: Mapping[Symbol, Int]
    over: Mapping[str, str] = field(default_factory=dict)
    """Results by the arguments whose memory they took over."""


def assemble(
    name: str,
    units: tuple[Axis, ...],
    phases: tuple[Phase, ...],
    locals_: tuple[Local, ...],
    buffers: Buffers,
    target: Target,
    *,
    strip: int = 0,
    grain: int = 1,
    origin: str = "",
    dying: Collection[str] = (),
) -> KernelCall:
    """A kernel with the parameters and size arguments that its phases use, in order of appearance.

    `dying`: arguments that results may be written over. On a GPU known sizes stay numbers: what divides them decides
    how memory is accessed.
    """
    used = {name: buffers[name] for part in _parameters(phases, locals_) for name in part}
    loops = merge_views(KernelLoops(units, phases, locals_, used))
    sizes: Mapping[Symbol, Int] = {}
    if not target.is_gpu:
        loops, sizes = open_sizes(loops)
    loops, over = take_over(loops, dying, buffers)
    read, written = _parameters(loops.phases, locals_)
    params = tuple(loops.buffers[name] for name in (*read, *written))
    kernel = KernelIR(
        name, loops.units, loops.phases, loops.locals, params, frozenset(written), (), grain,
        strip if loops.units else 0, origin,
    )  # fmt: skip
    needed = kernel_symbols(kernel) | symbols_of(*(size for one in params for size in one.spec.sizes))
    # Sizes of parameters may be in terms of blocks, which are units.
    needed -= {axis.symbol for axis in loops.units}
    ints: list[Symbol] = sorted(needed, key=lambda one: one.sort_key)
    return KernelCall(replace(kernel, ints=tuple(ints)), sizes, over)


def _parameters(phases: tuple[Phase, ...], locals_: tuple[Local, ...]) -> tuple[dict[str, None], dict[str, None]]:
    """Buffers that are only read, and those that are written."""
    private = {one.name for one in locals_}
    loaded = [access.buffer for phase in phases for access in accesses(phase.body)]
    stored = [store.target for phase in phases for store in phase_stores(phase)]
    written = dict.fromkeys(name for name in stored if name not in private)
    return dict.fromkeys(name for name in loaded if name not in private and name not in written), written


def copy_body(source: Buffer, index: Index) -> LoopBody:
    """The body that gives an element of `source`."""
    builder = BodyBuilder()
    return builder.finish(builder.load(source.name, index, source.spec.dtype))
