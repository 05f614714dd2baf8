"""Pointwise values that are looked up at few of their points are computed there instead.

logp: f32[512, 10000] = log_softmax(x)                 loss = sum of log_softmax(x)[i0, target[i0]]
loss = sum over i0 of logp[i0, target[i0]]      =>     logp is not made

What else reads the value, point by point, is fused with it: without the look-up it need not be in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from kiln.loops.body.body import Index, Indirect, Load
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import points, symbols_of
from kiln.loops.fusion.dependencies import memory_of
from kiln.loops.fusion.single_kernel import SingleNode, converted
from kiln.loops.program.analyses import buffer_args, node_axes, reads, written
from kiln.loops.program.nodes import Buffer, Extern, LoopNode, LoopProgram, Pointwise, Scatter
from kiln.tensor.size_hint import size_hint

FEWER = 4
"""By so many times fewer points must the readers have."""


def inline_looked_up(program: LoopProgram, buffers: Mapping[str, Buffer]) -> LoopProgram:
    """`program` whose look-ups at far fewer points than the value has compute it; values that nothing else reads are
    not made. A value that is computed at a place may itself read others there, so this is done until nothing changes.
    """
    while True:
        changed = _inlined_once(program, buffers)
        if changed is program:
            return program
        program = changed


def _inlined_once(program: LoopProgram, buffers: Mapping[str, Buffer]) -> LoopProgram:
    wanted = {name for node in program.nodes for name in _looked_up(node)}
    kept = _kept(program) if wanted else set()
    made: dict[str, Pointwise] = {}
    for place, node in enumerate(program.nodes):
        if not isinstance(node, Pointwise) or node.out.name not in wanted - kept:
            continue
        if _pays(node, program) and _stays(node, program.nodes[place + 1 :], buffers):
            made[node.out.name] = node
    if not made:
        return program
    nodes = [node if isinstance(node, Extern) else _inlined(node, made) for node in program.nodes]
    read = {name for node in nodes for name in _read(node)}
    left = (node for node in nodes if isinstance(node, Extern) or node.out.name not in made or node.out.name in read)
    return replace(program, nodes=tuple(left))


def _read(node: LoopNode) -> set[str]:
    return {access.buffer for access in reads(node)}


def _looked_up(node: LoopNode) -> set[str]:
    """Buffers that a node loads at places that data gives."""
    return set() if isinstance(node, Extern) else {load.buffer for load in _lookups(node)}


def _lookups(node: SingleNode) -> list[Load]:
    bound = frozenset(op.symbol for op in node.body.ops if isinstance(op, Indirect))
    if not bound:
        return []
    loads = (op for op in node.body.ops if isinstance(op, Load))
    return [load for load in loads if not bound.isdisjoint(symbols_of(*load.index))]


def _pays(node: Pointwise, program: LoopProgram) -> bool:
    """Is it looked up at few points, and read by no call? Errors that its points report are not lost."""
    name, used = node.out.name, 0
    if node.out.base is not None or any(isinstance(op, Indirect) and op.check for op in node.body.ops):
        return False
    for other in program.nodes:
        if isinstance(other, Extern):
            if any(arg.name == name for arg in buffer_args(other)):
                return False
            continue
        loads = [op for op in _lookups(other) if op.buffer == name]
        if any(op.mask is not None for op in loads) or (loads and isinstance(other, Scatter)):
            return False
        used += len(loads) * size_hint(points(node_axes(other)))
    return FEWER * used <= size_hint(points(node.axes))


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


def _inlined(node: SingleNode, made: Mapping[str, Pointwise]) -> SingleNode:
    """`node` computing the elements of `made` that it looks up."""
    found = [load for load in _lookups(node) if load.buffer in made]
    if not found:
        return node
    builder = BodyBuilder()
    # Loads come in the order of the body.
    picked = iter([op in found for op in node.body.ops if isinstance(op, Load)])

    def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int | None:
        if not next(picked):
            return None
        maker = made[buffer]
        values = {axis.symbol: at for axis, at in zip(maker.axes, index, strict=True)}
        (place,) = maker.body.run(Inline(builder, values))
        return converted(builder, place, dtype)

    (result,) = node.body.run(Inline(builder, {}, on_load))
    return replace(node, body=builder.finish(result))
