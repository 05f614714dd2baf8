"""From loop nodes to kernels: `schedule(program, target, events)`.

LoopProgram      what is computed into each buffer
KernelProgram kernels and calls in order, and the life of each buffer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln.loops.body.indexing import Axis, substituted
from kiln.loops.fusion.fuse import Fused, fuse
from kiln.loops.fusion.group import Group
from kiln.loops.fusion.group_kernel import group_launch
from kiln.loops.fusion.inplace import LastUses
from kiln.loops.fusion.kernel_table import KernelTable
from kiln.loops.fusion.library_calls import library_call
from kiln.loops.fusion.lifetimes import ScheduledStep, allocations, frees, kept_alive
from kiln.loops.fusion.materialise_row_terms import with_row_terms
from kiln.loops.fusion.recompute_at_gather import inline_looked_up
from kiln.loops.fusion.single_kernel import copy_body, single_kernel
from kiln.loops.fusion.sink_column_sums import with_columns_last
from kiln.loops.kernel.analyses import kernel_reads
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram
from kiln.loops.program.nodes import Buffer, Extern, LoopProgram, Pointwise, Scatter
from kiln.support.events import EventSink
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, symbol


def schedule(program: LoopProgram, target: Target, events: EventSink) -> KernelProgram:
    """Kernels, calls and memory for `program` on `target`."""
    program = inline_looked_up(program, program_buffers(program))
    if target.is_gpu:
        program = with_row_terms(program)
        program = with_columns_last(program, program_buffers(program))
    buffers = program_buffers(program)
    table = KernelTable()
    fused = fuse(program, buffers, target)
    lives = LastUses(fused.groups, fused.graph, buffers)
    placed = [one for group in fused.groups for one in _steps(group, fused, lives, buffers, table, target)]
    known = frozenset(one.name for one in program.inputs if isinstance(one, Buffer))
    known |= {buffer.name for buffer, _ in program.constants}
    kept = kept_alive(program.outputs, program.writes) | known
    made = allocations(placed, known, buffers)
    dead = frees(placed, kept, buffers)
    steps = tuple(one.step for one in placed)
    events.emit("fused", rules=fused.applied)
    events.emit("not_fused", refusals=fused.not_fused)
    _report(steps, events)
    return KernelProgram(
        program.name, program.inputs, program.constants, steps, made, dead, program.outputs, program.writes,
        fused.not_fused,
    )  # fmt: skip


def program_buffers(program: LoopProgram) -> dict[str, Buffer]:
    """Every buffer of a program by name."""
    found = {one.name: one for one in program.inputs if isinstance(one, Buffer)}
    found |= {buffer.name: buffer for buffer, _ in program.constants}
    for node in program.nodes:
        outs = node.outs if isinstance(node, Extern) else (node.out,)
        found |= {out.name: out for out in outs if out is not None}
    return found


def _steps(
    group: Group, fused: Fused, lives: LastUses, buffers: dict[str, Buffer], table: KernelTable, target: Target
) -> Iterator[ScheduledStep]:
    node = group.step
    if node is None:
        call = library_call(group, buffers, target)
        if call is not None:
            yield ScheduledStep(call)
            return
        yield group_launch(group, fused, lives.dying(group), buffers, table, target)
    elif isinstance(node, Scatter):
        if node.init not in (node.out.name, node.out.base):
            yield ScheduledStep(table.launch(single_kernel(_copy(buffers[node.init], node.out), buffers, target)))
        yield ScheduledStep(table.launch(single_kernel(node, buffers, target)))
    else:
        assert isinstance(node, Extern)
        yield ScheduledStep(node)


def _copy(source: Buffer, out: Buffer) -> Pointwise:
    """The node that copies `source` into `out`."""
    axes = tuple(Axis(symbol(f"i{place}"), size) for place, size in enumerate(out.spec.sizes))
    return Pointwise(out, axes, copy_body(source, tuple(axis.symbol for axis in axes)))


def _report(steps: Sequence[KernelLaunch | Extern], events: EventSink) -> None:
    launches = [step for step in steps if isinstance(step, KernelLaunch)]
    events.emit("kernels", count=len({id(one.kernel) for one in launches}))
    events.emit("launches", count=len(launches))
    events.emit("library_calls", count=len(steps) - len(launches))
    read, written = traffic(launches)
    events.emit("traffic", read=read, written=written)


def traffic(launches: Sequence[KernelLaunch]) -> tuple[Int, Int]:
    """Bytes that the kernels read and write, each parameter counted once per launch."""
    read: Int = 0
    written: Int = 0
    for launch in launches:
        loaded = kernel_reads(launch.kernel)
        values = {
            own: given for own, given in zip(launch.kernel.ints, launch.ints, strict=True) if isinstance(own, Symbol)
        }
        for param in launch.kernel.params:
            size = substituted(param.spec.numel() * param.spec.dtype.itemsize, values)
            read = read + (size if param.name in loaded else 0)
            written = written + (size if param.name in launch.kernel.writes else 0)
    return read, written
