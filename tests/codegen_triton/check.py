"""Kernels and schedules in Triton's interpreter against the loop interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any, final

import torch

from kiln.loops.body.interpret import number
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.kernel.interpret import run_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram
from kiln.loops.kernel.verify import verify_kernel
from kiln.loops.program.interpret import Memory, run_extern, run_program
from kiln.loops.program.nodes import LoopProgram
from kiln.support.target import cuda_gpu
from kiln.symbolic import Symbol, evaluate
from tests.codegen_triton.interpreter import Interpreter, Job
from tests.fusion.check import arguments, random_tensor, scheduled
from tests.loop_ir.parse import parse_kernel, parse_program

GPU = cuda_gpu((9, 0), 4)
"""A small GPU, so that small problems fill it."""


@final
@dataclass
class Runner:
    """Runs kernels in the interpreter; `used` are those that it ran."""

    interpreter: Interpreter
    used: list[PrintedKernel] = field(default_factory=list)

    def run(self, kernel: KernelIR, tensors: list[torch.Tensor], *sizes: Mapping[str, int]) -> int:
        """One launch over a row for each of `sizes`; its status."""
        written = print_kernel(kernel, GPU, rows=len(sizes))
        self.used.append(written)
        values: list[int] = []
        programs = []
        for row in sizes:
            own = [evaluate(size, row) for size in kernel.ints]
            names = {f"n{place}": value for place, value in enumerate(own)}
            programs.append(prod([evaluate(count, names) for count in written.grid]))
            values += own
        *firsts, count = accumulate(programs)
        return self.interpreter.run(Job(written.kernel, count, tuple(tensors), (*values, *firsts)))

    def launch(self, launch: KernelLaunch, memory: Memory) -> None:
        rows, tensors = [], []
        for row in launch.each_row():
            pairs = zip(row.kernel.ints, row.ints, strict=True)
            sizes = {size: number(value, memory.sizes) for size, value in pairs if isinstance(size, Symbol)}
            inner = Memory(sizes=sizes)
            rows.append({size.name: value for size, value in sizes.items()})
            for param, name in zip(row.kernel.params, row.args, strict=True):
                tensors.append(inner.seen_as(memory.tensors[name], param.spec))
        if self.run(launch.kernel, tensors, *rows):
            memory.faults.report("a fault")

    def program(self, program: KernelProgram, args: list[Any]) -> list[Any]:
        """Loop programs whose outputs are whole buffers."""
        memory = Memory()
        for given, value in zip(program.inputs, args, strict=True):
            memory.bind(given, value)
        for buffer, _ in program.constants:
            memory.tensors[buffer.name] = random_tensor(buffer, {})
        for place, step in enumerate(program.steps):
            for made in program.allocations:
                if made.before == place:
                    memory.allocate(made.buffer)
            if isinstance(step, KernelLaunch):
                self.launch(step, memory)
            else:
                run_extern(step, memory)
        return [memory.tensors[output.buffer] if output.buffer else None for output in program.outputs]


def assert_same_values(
    runner: Runner, text: str | LoopProgram, sizes: Mapping[str, int] | None = None, tolerance: float = 1e-4
) -> KernelProgram:
    """The kernels of a program give what its nodes compute."""
    program = parse_program(text) if isinstance(text, str) else text
    made = scheduled(program, GPU)
    given = arguments(program, sizes or {})
    again = [value.clone() if isinstance(value, torch.Tensor) and value._base is None else value for value in given]
    expected, actual = run_program(program, given), runner.program(made, again)
    for value, other in zip(expected, actual, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(other, value, rtol=tolerance, atol=tolerance, equal_nan=True)
    return made


def check_kernel(
    runner: Runner, text: str, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], tolerance: float = 2e-6
) -> None:
    """A kernel gives what the loop interpreter makes of it."""
    kernel = parse_kernel(text)
    verify_kernel(kernel)
    check_parsed(runner, kernel, tensors, sizes, tolerance)


def check_parsed(
    runner: Runner, kernel: KernelIR, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], tolerance: float
) -> None:

    symbols = {size: sizes[size.name] for size in kernel.ints if isinstance(size, Symbol)}
    memory = Memory({name: tensor.clone() for name, tensor in tensors.items()}, dict(symbols))
    run_kernel(kernel, memory)
    own = {name: tensor.clone(memory_format=torch.preserve_format) for name, tensor in tensors.items()}
    status = runner.run(kernel, [own[param.name] for param in kernel.params], sizes)
    assert (status != 0) == (memory.faults.fault is not None), f"status {status}, {memory.faults.fault}"
    if status:
        return
    for name in kernel.writes:
        torch.testing.assert_close(
            own[name], memory.tensors[name], rtol=tolerance, atol=tolerance, equal_nan=True,
            msg=lambda text: f"{text}\n{runner.used[-1].kernel.source}",
        )  # fmt: skip
