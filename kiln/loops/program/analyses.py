"""Questions about loop nodes and programs: what they read, write and run over, which buffers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace

import torch

from kiln.loops.body.analyses import BufferAccess, accesses
from kiln.loops.body.indexing import Axis
from kiln.loops.program.nodes import LOCAL_SCALAR, Buffer, BufferArg, Extern, LoopNode, LoopProgram, Reduction, Scatter
from kiln.symbolic import Expr, Relation, Symbol


def reads(node: LoopNode) -> tuple[BufferAccess, ...]:
    """What a node loads; an extern call reads whole buffers (index ())."""
    if isinstance(node, Extern):
        return tuple(BufferAccess(arg.name, (), torch.uint8) for arg in buffer_args(node))
    loads = accesses(node.body)
    return (BufferAccess(node.init, (), node.out.spec.dtype), *loads) if isinstance(node, Scatter) else loads


def buffer_args(node: Extern) -> tuple[BufferArg, ...]:
    return tuple(_buffers_in((*node.args, *(value for _, value in node.kwargs))))


def _buffers_in(value: object) -> Iterable[BufferArg]:
    if isinstance(value, BufferArg):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _buffers_in(item)


def symbols_read(node: LoopNode) -> frozenset[Symbol]:
    """The numbers that the host reads at `node`."""
    if not isinstance(node, Extern) or node.target != LOCAL_SCALAR:
        return frozenset()
    _, _, read, _ = node.args
    return frozenset(symbols_used(read))


def symbols_used(value: object) -> Iterator[Symbol]:
    """The symbols anywhere in a node."""
    if isinstance(value, Expr | Relation):
        yield from value.free_symbols()
    elif isinstance(value, list | tuple):
        for part in value:
            yield from symbols_used(part)
    elif is_dataclass(value):
        for part in fields(value):
            yield from symbols_used(getattr(value, part.name))


def written(node: LoopNode) -> tuple[str, ...]:
    if isinstance(node, Extern):
        return (*(out.name for out in node.outs if out is not None), *node.mutates)
    return (node.out.name,)


def node_axes(node: LoopNode) -> tuple[Axis, ...]:
    if isinstance(node, Extern):
        return ()
    return (*node.kept, *node.reduced) if isinstance(node, Reduction) else node.axes


def outs(node: LoopNode) -> tuple[Buffer, ...]:
    """The buffers that a node makes."""
    return tuple(out for out in node.outs if out is not None) if isinstance(node, Extern) else (node.out,)


def with_nested_programs(program: LoopProgram, change: Callable[[LoopProgram], LoopProgram]) -> LoopProgram:
    """The program with `change` applied to those that its calls run."""
    if not any(isinstance(node, Extern) and node.nested for node in program.nodes):
        return program
    nodes = [
        replace(node, nested=tuple(map(change, node.nested))) if isinstance(node, Extern) else node
        for node in program.nodes
    ]
    return replace(program, nodes=tuple(nodes))


def program_buffers(program: LoopProgram) -> dict[str, Buffer]:
    """Every buffer of a program by name."""
    given = [given for given in program.inputs if isinstance(given, Buffer)]
    given += [constant for constant, _ in program.constants]
    return {buffer.name: buffer for buffer in (*given, *(out for node in program.nodes for out in outs(node)))}


def result_buffers(program: LoopProgram) -> frozenset[str]:
    """Buffers that the region gives back, or that are written from or to at its end."""
    returned = {output.buffer for output in program.outputs if output.buffer is not None}
    return frozenset(returned | {name for pair in program.writes for name in pair})


def kept_buffers(program: LoopProgram) -> frozenset[str]:
    """Buffers that are results, or memory of others."""
    shared = {out.base for node in program.nodes for out in outs(node) if out.base is not None}
    shared |= {node.init for node in program.nodes if isinstance(node, Scatter)}
    return result_buffers(program) | shared


def memory_of(name: str, buffers: Mapping[str, Buffer]) -> str:
    """The buffer whose memory the buffer called `name` lies in."""
    buffer = buffers[name]
    while buffer.base is not None:
        buffer = buffers[buffer.base]
    return buffer.name
