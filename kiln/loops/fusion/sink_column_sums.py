"""Sums of columns come behind the rows that they could share a kernel with, on a GPU.

    dy = mm(...)                                    dy = mm(...)
    dw[i1] = sum over (i0): dy[i0, i1] * x[...]     s[i0] = sum over (i1): dy[i0, i1]
    s[i0]  = sum over (i1): dy[i0, i1]              dx[i0, i1] = dy[i0, i1] - s[i0] ...
    dx[i0, i1] = dy[i0, i1] - s[i0] ...             dw[i1] = sum over (i0): dy[i0, i1] * x[...]

A sum of columns that stands alone is cut into blocks of rows for as many programs as it wants, one for each strip of
columns; these are too few for a kernel of whole rows, which the rows could not join any more. Behind the rows it joins
them, in blocks that suit them. It moves no further than to the next step that nothing fuses with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kiln.loops.body.indexing import points, stride_along
from kiln.loops.fusion.split import SPLITTABLE
from kiln.loops.program.analyses import reads
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, Reduction, Scan
from kiln.tensor.size_hint import size_hint


def with_columns_last(program: LoopProgram, buffers: Mapping[str, Buffer]) -> LoopProgram:
    """`program` in an order in which sums of columns, and what needs them, stand behind the rest of their stretch."""
    return replace(program, nodes=tuple(_in_order(program.nodes, buffers)))


def _in_order(nodes: tuple[LoopNode, ...], buffers: Mapping[str, Buffer]) -> Iterator[LoopNode]:
    waiting: list[LoopNode] = []
    made: set[str | None] = set()
    for node in nodes:
        if not isinstance(node, Pointwise | Reduction | Scan):
            yield from waiting
            waiting, made = [], set()
            yield node
        elif _sums_columns(node, buffers) or any(_touches(one.buffer, made, buffers) for one in reads(node)):
            waiting.append(node)
            made |= {node.out.name, node.out.base}
        else:
            yield node
    yield from waiting


def _touches(name: str, made: set[str | None], buffers: Mapping[str, Buffer]) -> bool:
    """Is the buffer, or what it is a part of, among those that wait?"""
    base = buffers[name].base
    return name in made or (base is not None and base in made)


def _sums_columns(node: LoopNode, buffers: Mapping[str, Buffer]) -> bool:
    """Are neighbours in memory neighbours along what is kept, in what has a number for each point?"""
    if not isinstance(node, Reduction) or node.op not in SPLITTABLE or not node.kept:
        return False
    wanted = size_hint(points((*node.kept, *node.reduced)))
    whole = [one for one in reads(node) if size_hint(buffers[one.buffer].spec.numel()) >= wanted]
    return any(
        stride_along(buffers[one.buffer].spec, one.index, axis.symbol) == 1 for one in whole for axis in node.kept
    )
