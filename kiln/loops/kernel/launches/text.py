"""Kernel programs as text: kernels, then allocations, launches, calls and frees in order.

launch norm(x, w -> out; s0)
launch step(g0, m0 -> p0; 768), (g1, m1 -> p1; 3072)
"""

from __future__ import annotations

from dataclasses import replace

from kiln.loops.body.text import INDENT
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram, NestedCall, distinct_kernels
from kiln.loops.kernel.text import kernel_text
from kiln.loops.program.nodes import Extern
from kiln.loops.program.text import arguments_text, buffer_text, node_text, origin_comment, results_text


def kernel_program_text(program: KernelProgram) -> str:
    lines = [line for kernel in distinct_kernels(program) for line in kernel_text(kernel).split("\n")]
    lines += arguments_text(program.inputs, program.constants)
    for position, step in enumerate(program.steps):
        for made in program.allocations:
            if made.before == position:
                reuse = "" if made.reuse is None else f" reusing {made.reuse}"
                lines.append(f"allocate {buffer_text(made.buffer)}{reuse}")
        lines += step_text(step).split("\n")
        if program.frees[position]:
            lines.append(f"free {', '.join(program.frees[position])}")
    lines += results_text(program.writes, program.outputs)
    return "\n".join([f"schedule {program.name}", *(INDENT + line for line in lines)])


def step_text(step: KernelLaunch | Extern | NestedCall) -> str:
    if isinstance(step, KernelLaunch):
        return launch_text(step)
    if isinstance(step, Extern):
        return node_text(step)
    nested = [INDENT + line for program in step.programs for line in kernel_program_text(program).split("\n")]
    return "\n".join([node_text(replace(step.call, nested=())), *nested])


def launch_text(launch: KernelLaunch) -> str:
    """`launch norm(x, w -> out; s0)`."""
    return f"launch {launch.kernel.name}{', '.join(map(_row_text, launch.each_row()))}" + origin_comment(launch.origin)


def _row_text(row: KernelLaunch) -> str:
    writes = row.kernel.writes
    pairs = [(name, param.name in writes) for param, name in zip(row.kernel.params, row.args, strict=True)]
    read, written = (", ".join(name for name, is_written in pairs if is_written is side) for side in (False, True))
    ints = f"; {', '.join(map(str, row.ints))}" if row.ints else ""
    return f"({read} -> {written}{ints})"
