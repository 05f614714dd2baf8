"""Recompute at gather: a pointwise value that is looked up at few of its points is computed there instead.

    logp: f32[512, 10000] = log_softmax(x)                 loss = sum of log_softmax(x)[i0, target[i0]]
    loss = sum over i0 of logp[i0, target[i0]]      =>     logp is not made

What else reads the value, point by point, is fused with it: without the look-up it need not be in memory. A value that
is recomputed may itself look up others, so this is repeated until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.body import Check, Index, Indirect, Load
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import points, symbols_of
from kiln.loops.program.analyses import kept_buffers, memory_of, node_axes, program_buffers, reads, written
from kiln.loops.program.nodes import Buffer, Extern, LoopNode, LoopProgram, Pointwise, Reduction, Scan, Scatter
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.tensor.size_hint import size_hint

Loop = Pointwise | Reduction | Scan | Scatter


@final
@dataclass(frozen=True)
class RecomputeAtGather:
    """`fewer`: by so many times fewer points must the readers have."""

    fewer: int = 4
    name = "recompute-at-gather"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        buffers, changes = program_buffers(program), 0
        while found := self._candidates(program, buffers):
            nodes = [node if isinstance(node, Extern) else _recomputing(node, found) for node in program.nodes]
            read = {access.buffer for node in nodes for access in reads(node)}
            program = replace(program, nodes=tuple(_without_unread(nodes, found, read)))
            changes += len(found)
        return program, changes

    def _candidates(self, program: LoopProgram, buffers: Mapping[str, Buffer]) -> dict[str, Pointwise]:
        looked_up = {load.buffer for node in program.nodes if not isinstance(node, Extern) for load in _lookups(node)}
        if not looked_up:
            return {}
        looked_up -= kept_buffers(program)
        found: dict[str, Pointwise] = {}
        for position, node in enumerate(program.nodes):
            if not isinstance(node, Pointwise) or node.out.name not in looked_up or not self._pays(node, program):
                continue
            if _reads_unchanged_memory(node, program.nodes[position + 1 :], buffers):
                found[node.out.name] = node
        return found

    def _pays(self, node: Pointwise, program: LoopProgram) -> bool:
        """Is it looked up at few points, and read by no call? Errors that its points report must not be lost."""
        name, used = node.out.name, 0
        indices = [op for op in node.body.ops if isinstance(op, Indirect)]
        if node.out.base is not None or any(op.check is not Check.IN_RANGE for op in indices):
            return False
        for other in program.nodes:
            if isinstance(other, Extern):
                if any(read.buffer == name for read in reads(other)):
                    return False
                continue
            loads = [load for load in _lookups(other) if load.buffer == name]
            if any(load.mask is not None for load in loads) or (loads and isinstance(other, Scatter)):
                return False
            used += len(loads) * size_hint(points(node_axes(other)))
        return self.fewer * used <= size_hint(points(node.axes))


def _lookups(node: Loop) -> list[Load]:
    """Loads at an index that comes from data."""
    bound = frozenset(op.symbol for op in node.body.ops if isinstance(op, Indirect))
    if not bound:
        return []
    loads = (op for op in node.body.ops if isinstance(op, Load))
    return [load for load in loads if not bound.isdisjoint(symbols_of(*load.index))]


def _reads_unchanged_memory(node: Pointwise, later: Sequence[LoopNode], buffers: Mapping[str, Buffer]) -> bool:
    sources = {memory_of(op.buffer, buffers) for op in node.body.ops if isinstance(op, Load)}
    return all(memory_of(name, buffers) not in sources for other in later for name in written(other))


def _without_unread(nodes: Iterable[LoopNode], found: Mapping[str, Pointwise], read: set[str]) -> Iterable[LoopNode]:
    for node in nodes:
        if isinstance(node, Extern) or node.out.name not in found or node.out.name in read:
            yield node


def _recomputing(node: Loop, found: Mapping[str, Pointwise]) -> Loop:
    """`node` computing the elements of `found` that it looks up."""
    lookups = [load for load in _lookups(node) if load.buffer in found]
    if not lookups:
        return node
    builder = BodyBuilder()
    # Loads come in the order of the body.
    replaced = iter([op in lookups for op in node.body.ops if isinstance(op, Load)])

    def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int | None:
        if not next(replaced):
            return None
        producer = found[buffer]
        values = {axis.symbol: at for axis, at in zip(producer.axes, index, strict=True)}
        (position,) = producer.body.run(Inline(builder, values))
        return builder.convert(position, dtype)

    (result,) = node.body.run(Inline(builder, {}, on_load))
    return replace(node, body=builder.finish(result))
