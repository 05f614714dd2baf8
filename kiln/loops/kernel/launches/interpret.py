"""Running kernel programs on real tensors: `run_kernel_program(program, [x, w, 4])` gives the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kiln.loops.body.interpret import number
from kiln.loops.kernel.interpret import run_kernel
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram, NestedCall
from kiln.loops.program.interpret import Memory, bind_arguments, collect_outputs, run_extern
from kiln.loops.program.nodes import Extern
from kiln.symbolic import Symbol


def run_kernel_program(
    program: KernelProgram, args: Sequence[Any], constants: Mapping[str, torch.Tensor] | None = None
) -> list[Any]:
    """The outputs of `program`; allocations and frees are obeyed, reuse shares no memory here."""
    memory = bind_arguments(program.inputs, program.constants, args, constants)
    for position, _ in enumerate(run_steps(program, memory)):
        for name in program.frees[position]:
            del memory.tensors[name]
    return collect_outputs(program.outputs, program.writes, args, memory)


def run_steps(program: KernelProgram, memory: Memory) -> Iterator[KernelLaunch | Extern | NestedCall]:
    """Each step once it has run."""
    for position, step in enumerate(program.steps):
        for made in program.allocations:
            if made.before == position:
                memory.allocate(made.buffer)
        if isinstance(step, KernelLaunch):
            for row in step.each_row():
                run_launch(row, memory)
        else:
            run_extern(step.call if isinstance(step, NestedCall) else step, memory)  # nested programs run as loops
        yield step


def run_launch(launch: KernelLaunch, memory: Memory) -> None:
    """Run a launch of one row."""
    inner = Memory(faults=memory.faults)
    for own, given in zip(launch.kernel.ints, launch.ints, strict=True):
        if not isinstance(own, Symbol):
            raise ValueError(f"the size argument {own} of {launch.kernel.name} is no symbol")
        inner.sizes[own] = number(given, memory.sizes)
    for param, name in zip(launch.kernel.params, launch.args, strict=True):
        inner.tensors[param.name] = inner.seen_as(memory.tensors[name], param.spec)
    run_kernel(launch.kernel, inner)
