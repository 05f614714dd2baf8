"""From loop nodes to kernels: `schedule(program, target, events)`.

LoopProgram      what is computed into each buffer
ScheduledProgram kernels and calls in order, and the life of each buffer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kiln.loops.ir.analyses import kernel_reads
from kiln.loops.ir.kernel import KernelIR
from kiln.loops.ir.nodes import Axis, Buffer, Extern, LoopNode, LoopProgram, Pointwise, Scatter
from kiln.loops.ir.rename import canonical
from kiln.loops.ir.scheduled import ScheduledProgram
from kiln.loops.schedule.memory import Step, allocations, frees, kept_alive
from kiln.loops.schedule.single import copy_body, single_kernel
from kiln.support.events import EventSink
from kiln.support.target import Target
from kiln.symbolic import Int, symbol


def schedule(program: LoopProgram, target: Target, events: EventSink) -> ScheduledProgram:
    """Kernels, calls and memory for `program` on `target`."""
    with events.stage("schedule"):
        buffers = program_buffers(program)
        steps = tuple(step for node in program.nodes for step in _steps(node, buffers))
        known = frozenset(one.name for one in program.inputs if isinstance(one, Buffer))
        known |= {buffer.name for buffer, _ in program.constants}
        kept = kept_alive(program.outputs, program.writes) | known
        made = allocations(steps, known)
        dead = frees(steps, kept, buffers)
        _report(steps, events)
    return ScheduledProgram(
        program.name, program.inputs, program.constants, steps, made, dead, program.outputs, program.writes
    )


def program_buffers(program: LoopProgram) -> dict[str, Buffer]:
    """Every buffer of a program by name."""
    found = {one.name: one for one in program.inputs if isinstance(one, Buffer)}
    found |= {buffer.name: buffer for buffer, _ in program.constants}
    for node in program.nodes:
        outs = node.outs if isinstance(node, Extern) else (node.out,)
        found |= {out.name: out for out in outs if out is not None}
    return found


def _steps(node: LoopNode, buffers: dict[str, Buffer]) -> Iterator[Step]:
    if isinstance(node, Extern):
        yield node
        return
    if isinstance(node, Scatter) and node.init not in (node.out.name, node.out.base):
        yield single_kernel(_copy(buffers[node.init], node.out), buffers)
    yield single_kernel(node, buffers)


def _copy(source: Buffer, out: Buffer) -> Pointwise:
    """The node that copies `source` into `out`."""
    axes = tuple(Axis(symbol(f"i{place}"), size) for place, size in enumerate(out.spec.sizes))
    return Pointwise(out, axes, copy_body(source, tuple(axis.symbol for axis in axes)))


def _report(steps: Sequence[Step], events: EventSink) -> None:
    kernels = [step for step in steps if isinstance(step, KernelIR)]
    events.emit("kernels", count=len({canonical(replace(one, grain=1))[1] for one in kernels}))
    events.emit("launches", count=len(kernels))
    events.emit("library_calls", count=len(steps) - len(kernels))
    read, written = traffic(kernels)
    events.emit("traffic", read=read, written=written)


def traffic(kernels: Sequence[KernelIR]) -> tuple[Int, Int]:
    """Bytes that the kernels read and write, each parameter counted once per launch."""
    read: Int = 0
    written: Int = 0
    for kernel in kernels:
        loaded = kernel_reads(kernel)
        for param in kernel.params:
            size = param.spec.numel() * param.spec.dtype.itemsize
            read = read + (size if param.name in loaded else 0)
            written = written + (size if param.name in kernel.writes else 0)
    return read, written
