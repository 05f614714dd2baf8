"""A scatter as a kernel of its own.

    out: f32[4, 8] = scatter sum into x at [j0, i1] of (i0: 6, i1: 8): j0 = indirect(load at[i0], 4); load y[i0, i1]

    kernel scatter(at, y -> out) units (i1: 8)     # strips along i1
        phase (i0: 6): out[j0, i1] += load y[i0, i1]

Units are the axes that index the result themselves: different units write different elements. The other axes run in
order, so that results do not depend on threads: in vectors of indices and values where these are neighbours along
them, else in strips of units. On a GPU all axes are units where its atomic operations combine what collides; plain
writes that collide leave any of the values, in eager as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from kiln.loops.body.analyses import accesses
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis, points, stride_along
from kiln.loops.fusion.assemble import KernelCall, assemble
from kiln.loops.fusion.kernel_draft import KernelDraft
from kiln.loops.fusion.layout import GRAIN_NANOSECONDS, LONGEST_STRIP
from kiln.loops.kernel.atomics import is_atomic
from kiln.loops.kernel.kernel import Phase, Store
from kiln.loops.kernel.occupancy import floor_power
from kiln.loops.program.nodes import Buffer, Scatter
from kiln.support.target import Target
from kiln.symbolic import Symbol, symbol
from kiln.tensor.size_hint import size_hint


def scatter_kernel(node: Scatter, buffers: Mapping[str, Buffer], target: Target) -> KernelCall:
    own = {axis.symbol for axis in node.axes} & set(node.index)
    if target.is_gpu and (node.combine is None or is_atomic(node.combine, node.out.spec.dtype)):
        own = {axis.symbol for axis in node.axes}
    units = tuple(axis for axis in node.axes if axis.symbol in own)
    inner = tuple(axis for axis in node.axes if axis.symbol not in own)
    phase = Phase(inner, node.body, (Store(node.out.name, node.index, 0, node.combine),))
    strip, grain = 0, 1
    if not target.is_gpu:
        strip = LONGEST_STRIP if units and not (inner and _runs_along(node, inner[-1], units[-1], buffers)) else 0
        grain = floor_power(GRAIN_NANOSECONDS // max(size_hint(points(inner)), 1))  # a nanosecond for each value
    draft = KernelDraft("scatter", units, (phase,), (), buffers, strip, grain, node.origin)
    return assemble(draft, opened=not target.is_gpu)


def _runs_along(node: Scatter, axis: Axis, other: Axis, buffers: Mapping[str, Buffer]) -> bool:
    """Are neighbours in memory neighbours along `axis` more often than along `other`?"""
    touched = [(load.buffer, load.index) for load in accesses(node.body)] + [(node.out.name, node.index)]

    def neighbours(symbol: Symbol) -> int:
        return sum(stride_along(buffers[name].spec, index, symbol) == 1 for name, index in touched)

    return neighbours(axis.symbol) > neighbours(other.symbol)


def copy_kernel(source: Buffer, out: Buffer, buffers: Mapping[str, Buffer], target: Target) -> KernelCall:
    """Copies `source` into `out`, before a scatter into it."""
    axes = tuple(Axis(symbol(f"i{dim}"), size) for dim, size in enumerate(out.spec.sizes))
    index = tuple(axis.symbol for axis in axes)
    builder = BodyBuilder()
    body = builder.finish(builder.load(source.name, index, source.spec.dtype))
    phase = Phase((), body, (Store(out.name, index, 0),))
    strip = LONGEST_STRIP if axes and not target.is_gpu else 0
    return assemble(KernelDraft("pointwise", axes, (phase,), (), buffers, strip), opened=not target.is_gpu)
