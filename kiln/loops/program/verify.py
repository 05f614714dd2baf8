"""The verifier of loop programs: what fusion may rely on."""

from __future__ import annotations

from kiln.loops.body.indexing import symbols_of
from kiln.loops.body.verify import InvalidLoops, Problems, Ranks, verify_body
from kiln.loops.program.analyses import node_axes, outs, program_buffers, reads, written
from kiln.loops.program.nodes import (
    LOCAL_SCALAR,
    Buffer,
    Extern,
    LoopNode,
    LoopProgram,
    ReduceOp,
    Reduction,
    Scan,
    Scatter,
)
from kiln.loops.program.text import node_text
from kiln.symbolic import Symbol


def verify_program(program: LoopProgram) -> None:
    """Raise InvalidLoops unless

    P1  every buffer is defined once: input, constant, or result of one node (a scatter may write what it starts from);
    P2  a node reads only what is defined above it;
    P3  reductions over an index have one axis; scans run along an axis they have; scatter indices fit the rank;
    P4  results and writes name buffers that exist;
    and every body is right (B1 to B6).
    """
    ranks = {given.name: given.spec.rank for given in program.inputs if isinstance(given, Buffer)}
    ranks |= {constant.name: constant.spec.rank for constant, _ in program.constants}
    sizes = _size_symbols(program)
    for node in program.nodes:
        for rule, problem in _node_problems(node, ranks):
            raise InvalidLoops(rule=rule, problem=problem, excerpt=node_text(node))
        if isinstance(node, Extern):
            for inner in node.nested:
                verify_program(inner)
        else:
            scope = sizes | {axis.symbol for axis in node_axes(node)}
            verify_body(node.body, scope, ranks, lambda node=node: node_text(node))  # type: ignore[misc]
        for out in outs(node):
            ranks[out.name] = out.spec.rank
    named = [output.buffer for output in program.outputs if output.buffer is not None]
    for name in (*named, *(name for pair in program.writes for name in pair)):
        if name not in ranks:
            raise InvalidLoops(rule="P4", problem=f"{name} is not defined", excerpt=program.name)


def _size_symbols(program: LoopProgram) -> frozenset[Symbol]:
    symbols = frozenset(given for given in program.inputs if isinstance(given, Symbol))
    for buffer in program_buffers(program).values():
        symbols |= symbols_of(*buffer.spec.sizes, *buffer.spec.strides, buffer.spec.offset)
    reads = [node for node in program.nodes if isinstance(node, Extern) and node.target == LOCAL_SCALAR]
    return symbols | symbols_of(*[node.args[2] for node in reads])


def _node_problems(node: LoopNode, ranks: Ranks) -> Problems:
    starts = {node.init, node.out.base} if isinstance(node, Scatter) else set()
    for out in outs(node):
        if out.name in ranks and out.name not in starts:
            yield "P1", f"{out.name} is defined twice"
    for access in reads(node):
        if access.buffer not in ranks:
            yield "P2", f"{access.buffer} is read before it is defined"
    for name in written(node):
        if isinstance(node, Extern) and name in node.mutates and name not in ranks:
            yield "P2", f"{name} is written before it is defined"
    if isinstance(node, Reduction) and node.op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN) and len(node.reduced) != 1:
        yield "P3", "an index reduction has one axis"
    if isinstance(node, Scan) and not 0 <= node.along < len(node.axes):
        yield "P3", "a scan runs along one of its axes"
    if isinstance(node, Scatter) and len(node.index) != node.out.spec.rank:
        yield "P3", "a scatter has one index per dimension"
