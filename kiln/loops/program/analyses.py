"""Questions about loop nodes: what they read, write and run over."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kiln.loops.body.analyses import BufferAccess, accesses
from kiln.loops.body.indexing import Axis
from kiln.loops.program.nodes import BufferArg, Extern, LoopNode, Reduction, Scatter


def reads(node: LoopNode) -> tuple[BufferAccess, ...]:
    """What a node loads; an extern call reads whole buffers (index ())."""
    if isinstance(node, Extern):
        return tuple(BufferAccess(arg.name, (), torch.uint8) for arg in buffer_args(node))
    loads = accesses(node.body)
    return (BufferAccess(node.init, (), node.out.spec.dtype), *loads) if isinstance(node, Scatter) else loads


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
