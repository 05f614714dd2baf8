"""Runs each form of a compiled graph by its interpreter: the first whose results differ was made by a wrong stage.

graph, graph after its passes, loops, loops after their passes, kernels, plan step by step, plan

wrong_stage(graph, inputs, options, constants)      StageFault("kernels", "result 0: ...", kernel="exp_sum")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.loops.kernel.launches.interpret import run_kernel_program, run_steps
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram
from kiln.loops.program.interpret import bind_arguments, run_program
from kiln.pipeline.compiled_plan import compile_plan
from kiln.pipeline.differences import differences
from kiln.pipeline.observation import Run, observe
from kiln.pipeline.reproduce import Constants, graph_reference, plain_context, with_tangents, without_sharing
from kiln.pipeline.stages import run_stages
from kiln.plan.plan import Plan
from kiln.plan.reference import PythonExecutor, ReferenceRun
from kiln.plan.steps import LaunchStep
from kiln.runtime.kernels import Libraries
from kiln.support.records import dataclass

Options = Mapping[str, object]


@final
@dataclass(frozen=True)
class StageFault:
    """The stage, how its result differs from that of the graph, and the kernel if it is one."""

    stage: str
    difference: str
    kernel: str = ""


def wrong_stage(graph: Graph, inputs: Sequence[object], options: Options, constants: Constants) -> StageFault | None:
    """The first stage whose program does not compute what the graph computes; None if all do."""
    context = plain_context(options)
    _, passed, loops, rewritten, kernels, plan = run_stages(graph, context)
    given = with_tangents(graph, inputs)
    torch.manual_seed(0)
    with torch.no_grad():
        expected = without_sharing(observe(graph_reference(graph, constants), given))
        compiled = compile_plan(plan, constants, context)
        libraries, tensors = compiled.libraries, [constants[key] for key in plan.constants]
        forms: tuple[tuple[str, Run], ...] = (
            ("passes", graph_reference(passed, constants)),
            ("lowering", lambda *args: run_program(loops, args, constants)),
            ("loop_passes", lambda *args: run_program(rewritten, args, constants)),
            ("schedule", lambda *args: run_kernel_program(kernels, args, constants)),
            ("kernels", PythonExecutor(plan, libraries, tensors)),
            ("executor", compiled.executor()),
        )
        for stage, run in forms:
            found = replace(observe(run, given), shared=())
            difference = differences(found, expected, None)
            if difference:
                kernel = wrong_kernel(kernels, plan, libraries, given, constants) if stage == "kernels" else ""
                return StageFault(stage, difference, kernel)
    return None


def wrong_kernel(
    program: KernelProgram, plan: Plan, libraries: Libraries, inputs: Sequence[object], constants: Constants
) -> str:
    """The name of the first kernel whose code does not do what its interpreter does."""
    tensors = [constants[key] for key in plan.constants]
    native = PythonExecutor(plan, libraries, tensors).start(copied(inputs))
    memory = bind_arguments(program.inputs, program.constants, copied(inputs), constants)
    for step in run_steps(program, memory):
        if not isinstance(step, KernelLaunch):
            continue
        launched = next_launch(native)
        params = step.kernel.params * step.rows
        for param, name, slot in zip(params, step.args, launched.tensors, strict=True):
            if param.name in step.kernel.writes and not alike(native.values[slot], memory.tensors[name]):
                return step.kernel.name
    return ""


def alike(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal but for rounding; the same buffer may be seen under other sizes."""
    if ours.shape != wanted.shape:
        return True
    return torch.allclose(ours, wanted, 1e-3, 1e-5, equal_nan=True)


def next_launch(run: ReferenceRun) -> LaunchStep:
    """Runs up to and including the next launch."""
    while (step := run.step()) is not None:
        if isinstance(step, LaunchStep):
            return step
    raise ValueError("the plan has fewer launches than kernels")


def copied(inputs: Sequence[object]) -> list[object]:
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in inputs]
