"""Sink column sums: sums of columns move behind the loops over rows that they could share a kernel with, on a GPU.

    dy = mm(...)                                    dy = mm(...)
    dw[i1] = sum over (i0): dy[i0, i1] * x[...]     s[i0] = sum over (i1): dy[i0, i1]
    s[i0]  = sum over (i1): dy[i0, i1]              dx[i0, i1] = dy[i0, i1] - s[i0] ...
    dx[i0, i1] = dy[i0, i1] - s[i0] ...             dw[i1] = sum over (i0): dy[i0, i1] * x[...]

A column sum that comes first is split into the blocks of rows that suit it alone, which are too few for a kernel of
whole rows, and the rows cannot join it any more. Coming last it joins them, in blocks that suit them. It moves no
further than to the next call or scatter, or the next loop that writes memory which what moves reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import final

from kiln.loops.body.indexing import points, stride_along
from kiln.loops.program.analyses import memory_of, program_buffers, reads, written
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, Reduction, Scan
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.tensor.size_hint import size_hint


@final
@dataclass(frozen=True)
class SinkColumnSums:
    """Sums of columns, and what needs them, come last between two nodes that nothing fuses with."""

    name = "sink-column-sums"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        nodes = tuple(_reordered(program.nodes, program_buffers(program)))
        moved = sum(old is not new for old, new in zip(program.nodes, nodes, strict=True))
        return replace(program, nodes=nodes) if moved else program, moved


def _reordered(nodes: tuple[LoopNode, ...], buffers: Mapping[str, Buffer]) -> Iterator[LoopNode]:
    sinking: list[LoopNode] = []
    made: set[str] = set()
    """Memory that the sinking nodes write."""
    used: set[str] = set()
    """Memory that they read or write."""
    for node in nodes:
        moves = isinstance(node, Pointwise | Reduction | Scan)
        written_now = {memory_of(name, buffers) for name in written(node)}
        read_now = {memory_of(access.buffer, buffers) for access in reads(node)}
        if moves and (_sums_columns(node, buffers) or not made.isdisjoint(read_now)):
            sinking.append(node)
            made |= written_now
            used |= written_now | read_now
            continue
        if not moves or not used.isdisjoint(written_now):
            yield from sinking
            sinking, made, used = [], set(), set()
        yield node
    yield from sinking


def _sums_columns(node: LoopNode, buffers: Mapping[str, Buffer]) -> bool:
    """Is the innermost dimension kept, in a tensor that has an element for each point?"""
    if not isinstance(node, Reduction) or not node.op.is_splittable or not node.kept:
        return False
    wanted = size_hint(points((*node.kept, *node.reduced)))
    full = [load for load in reads(node) if size_hint(buffers[load.buffer].spec.numel()) >= wanted]
    layouts = [(buffers[load.buffer].spec, load.index) for load in full]
    return any(stride_along(*layout, axis.symbol) == 1 for layout in layouts for axis in node.kept)
