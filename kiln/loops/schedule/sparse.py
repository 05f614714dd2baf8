"""Pointwise values that are only looked up at few of their points are computed there instead.

logp: f32[512, 10000] = log_softmax(x)                 loss = sum of log_softmax(x)[i0, target[i0]]
loss = sum over i0 of logp[i0, target[i0]]      =>     logp is not made
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from kiln.loops.ir.analyses import buffer_args, node_axes, points, written
from kiln.loops.ir.body import Index, Indirect, Load
from kiln.loops.ir.builder import BodyBuilder, Inline
from kiln.loops.ir.indexing import symbols_of
from kiln.loops.ir.nodes import Buffer, Extern, LoopNode, LoopProgram, Pointwise, Scatter
from kiln.loops.schedule.affine import guess
from kiln.loops.schedule.graph import memory_of
from kiln.loops.schedule.single import SingleNode, converted

FEWER = 4
"""By so many times fewer points must the readers have."""


def inline_looked_up(program: LoopProgram, buffers: Mapping[str, Buffer]) -> LoopProgram:
    """`program` without pointwise nodes whose values are only picked by data, at far fewer points."""
    wanted = {name for node in program.nodes for name in _looked_up(node)}
    kept = _kept(program) if wanted else set()
    gone: dict[str, Pointwise] = {}
    for place, node in enumerate(program.nodes):
        if not isinstance(node, Pointwise) or node.out.name not in wanted - kept:
            continue
        if _pays(node, program) and _stays(node, program.nodes[place + 1 :], buffers):
            gone[node.out.name] = node
    if not gone:
        return program
    left = (node for node in program.nodes if isinstance(node, Extern) or node.out.name not in gone)
    nodes = (node if isinstance(node, Extern) else _inlined(node, gone) for node in left)
    return replace(program, nodes=tuple(nodes))


def _looked_up(node: LoopNode) -> set[str]:
    """Buffers that a node loads at places that data gives."""
    if isinstance(node, Extern):
        return set()
    bound = frozenset(op.symbol for op in node.body.ops if isinstance(op, Indirect))
    if not bound:
        return set()
    loads = (op for op in node.body.ops if isinstance(op, Load))
    return {load.buffer for load in loads if not bound.isdisjoint(symbols_of(*load.index))}


def _pays(node: Pointwise, program: LoopProgram) -> bool:
    """Is it read at few points of other loops, and by nothing else? Errors that its points report are not lost."""
    name, used = node.out.name, 0
    if node.out.base is not None or any(isinstance(op, Indirect) and op.check for op in node.body.ops):
        return False
    for other in program.nodes:
        if isinstance(other, Extern):
            if any(arg.name == name for arg in buffer_args(other)):
                return False
            continue
        loads = [op for op in other.body.ops if isinstance(op, Load) and op.buffer == name]
        if any(op.mask is not None for op in loads) or (loads and isinstance(other, Scatter)):
            return False
        used += len(loads) * guess(points(node_axes(other)))
    return FEWER * used <= guess(points(node.axes))


def _stays(node: Pointwise, later: Sequence[LoopNode], buffers: Mapping[str, Buffer]) -> bool:
    """Is the memory that it reads not written any more?"""
    sources = {memory_of(op.buffer, buffers) for op in node.body.ops if isinstance(op, Load)}
    return all(memory_of(name, buffers) not in sources for other in later for name in written(other))


def _kept(program: LoopProgram) -> set[str]:
    """Buffers that are results, or memory of others."""
    kept = {one.buffer for one in program.outputs if one.buffer is not None}
    kept |= {name for pair in program.writes for name in pair}
    for node in program.nodes:
        outs = node.outs if isinstance(node, Extern) else (node.out,)
        kept |= {out.base for out in outs if out is not None and out.base is not None}
        if isinstance(node, Scatter):
            kept.add(node.init)
    return kept


def _inlined(node: SingleNode, gone: Mapping[str, Pointwise]) -> SingleNode:
    """`node` computing the elements of `gone` that it needs."""
    if not any(isinstance(op, Load) and op.buffer in gone for op in node.body.ops):
        return node
    builder = BodyBuilder()

    def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int | None:
        maker = gone.get(buffer)
        if maker is None:
            return None
        values = {axis.symbol: at for axis, at in zip(maker.axes, index, strict=True)}
        (place,) = maker.body.run(Inline(builder, values, on_load))
        return converted(builder, place, dtype)

    (result,) = node.body.run(Inline(builder, {}, on_load))
    return replace(node, body=builder.finish(result))
