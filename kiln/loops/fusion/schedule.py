"""From loops to kernels: what is fused, in which order it runs, when memory is made and dead.

a: f32[8, 64] = pointwise (i0: 8, i1: 64): exp(load x[i0, i1])                  kernel exp_sum(in0 -> out1) ...
s: f32[8]     = reduction sum over (i1: 64) keeping (i0: 8): load a[i0, i1]     allocate s
return s                                                                        launch exp_sum(x -> s)

schedule(program, target, events)      of a loop program that its passes have rewritten (`program/passes`)

fuse        loops become groups, by rules and vetoes, in a legal order (`fuse.py`)
kernels     a group becomes a kernel, or a call of ATen (`group_kernel.py`, `library_calls.py`)
overlap     collectives start early and are waited for late (`overlap.py`)
transfers   what goes to the host and back does so while kernels run (`transfers.py`)
staging     scalars on the CPU are sent to the GPU, for CUDA graphs (`staged_scalars.py`)
tables      launches of one kernel become one launch (`launch_tables.py`)
lifetimes   memory is made before its first writer and freed after its last reader (`lifetimes.py`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln.loops.fusion.dependencies import host_numbers
from kiln.loops.fusion.fuse import Fused, fuse
from kiln.loops.fusion.group import Group
from kiln.loops.fusion.group_kernel import group_launch
from kiln.loops.fusion.kernel_table import KernelTable
from kiln.loops.fusion.launch_tables import launch_tables
from kiln.loops.fusion.library_calls import library_call
from kiln.loops.fusion.lifetimes import LastUses, ScheduledStep, allocations, frees, named_buffers
from kiln.loops.fusion.overlap import overlapped
from kiln.loops.fusion.scatter_kernel import copy_kernel, scatter_kernel
from kiln.loops.fusion.staged_scalars import staged_scalars
from kiln.loops.fusion.transfers import with_transfers_spread
from kiln.loops.kernel.analyses import kernel_reads
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram, NestedCall
from kiln.loops.program.analyses import memory_of, program_buffers, result_buffers
from kiln.loops.program.nodes import Buffer, Extern, LoopProgram, Scatter
from kiln.support.events import EventSink
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, substituted


def schedule(program: LoopProgram, target: Target, events: EventSink) -> KernelProgram:
    """Kernels, calls and memory for `program` on `target`."""
    buffers = program_buffers(program)
    given = frozenset(buffer.name for buffer in program.inputs if isinstance(buffer, Buffer))
    given |= {buffer.name for buffer, _ in program.constants}
    fused = fuse(program, buffers, target)
    reuse = "memory-reuse" not in target.without
    uses, table = LastUses(fused.groups, fused.graph, buffers, fused.landing, reuse=reuse), KernelTable()
    scheduled = [step for group in fused.groups for step in _steps(group, fused, uses, buffers, table, target, events)]
    if "overlap-collectives" not in target.without:
        scheduled = overlapped(scheduled, buffers)
    scheduled = with_transfers_spread(scheduled, buffers)
    if target.is_gpu and target.graphs:
        scheduled = staged_scalars(scheduled, buffers, table, target)
    if "launch-tables" not in target.without:
        kept = result_buffers(program) | given
        scheduled = launch_tables(scheduled, buffers, kept, host_numbers(program), target)
    steps = tuple(entry.step for entry in scheduled)
    _report(fused, steps, events)
    writes = [(target, target if memory_of(source, buffers) == target else source) for target, source in program.writes]
    results = {output.buffer for output in program.outputs if output.buffer is not None}
    results |= {source for target, source in writes if target != source}
    named = named_buffers(scheduled, results, buffers)
    dead = frees(scheduled, result_buffers(program) | given, named, buffers) if reuse else ((),) * len(scheduled)
    return KernelProgram(
        program.name, program.inputs, program.constants, steps, allocations(scheduled, given, named, buffers),
        dead, program.outputs, tuple(writes), fused.not_fused,
    )  # fmt: skip


def _steps(
    group: Group,
    fused: Fused,
    uses: LastUses,
    buffers: dict[str, Buffer],
    table: KernelTable,
    target: Target,
    events: EventSink,
) -> Iterator[ScheduledStep]:
    node = group.step
    if node is None:
        call = library_call(group, buffers, target)
        yield ScheduledStep(call) if call else group_launch(group, fused, uses, buffers, table, target)
    elif isinstance(node, Scatter):
        if node.init not in (node.out.name, node.out.base):
            yield ScheduledStep(table.launch(copy_kernel(buffers[node.init], node.out, buffers, target)))
        yield ScheduledStep(table.launch(scatter_kernel(node, buffers, target)))
    else:
        assert isinstance(node, Extern)
        programs = tuple([schedule(program, target, events) for program in node.nested])
        yield ScheduledStep(NestedCall(node, programs) if programs else node)


def _report(fused: Fused, steps: Sequence[KernelLaunch | Extern | NestedCall], events: EventSink) -> None:
    launches = [step for step in steps if isinstance(step, KernelLaunch)]
    read, written = traffic(launches)
    events.emit("fused", rules=fused.applied)
    events.emit("not_fused", refusals=fused.not_fused)
    kernels = {id(launch.kernel): f"{launch.kernel.name}: {launch.origin}" for launch in reversed(launches)}
    events.emit("kernels", count=len(kernels), names="; ".join(reversed(kernels.values())))
    events.emit("launches", count=len(launches))
    events.emit("library_calls", count=len(steps) - len(launches))
    events.emit("traffic", read=read, written=written)


def traffic(launches: Sequence[KernelLaunch]) -> tuple[Int, Int]:
    """Bytes that the kernels read and write, each parameter counted once per launch."""
    read: Int = 0
    written: Int = 0
    for row in [row for launch in launches for row in launch.each_row()]:
        kernel, loaded = row.kernel, kernel_reads(row.kernel)
        values = {own: given for own, given in zip(kernel.ints, row.ints, strict=True) if isinstance(own, Symbol)}
        for param in kernel.params:
            size = substituted(param.spec.numel() * param.spec.dtype.itemsize, values)
            read = read + (size if param.name in loaded else 0)
            written = written + (size if param.name in kernel.writes else 0)
    return read, written
