"""The stages from a functional graph to a plan, as a literal list.

    graph --passes--> graph --lowering--> loops --schedule--> kernels --plan--> plan

Each stage has a text form, which KILN_DUMP writes and tests read. A stage gets what it needs from the context and
reports to its events; it neither prints nor reads options of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.text import graph_text
from kiln.graph.passes import run_passes
from kiln.loops.codegen.cpp.writer import write_cpp
from kiln.loops.codegen.plan_writer import PrintedKernel, write_plan
from kiln.loops.codegen.triton.writer import write_triton
from kiln.loops.ir.kernel import KernelIR
from kiln.loops.ir.scheduled import ScheduledProgram
from kiln.loops.ir.text import program_text, scheduled_text
from kiln.loops.lowering import lower
from kiln.loops.schedule.schedule import schedule
from kiln.pipeline.context import CompileContext
from kiln.pipeline.targets import region_target, runs_on_gpu
from kiln.runtime.plan import Plan
from kiln.runtime.plan_text import plan_text

Executable = Callable[..., tuple[Any, ...]]
"""A compiled region: its inputs -> its outputs."""


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """`run` makes the next form of the program out of the last; `show` prints it."""

    name: str
    run: Callable[[Any, CompileContext], Any]
    show: Callable[[Any], str]


def write_kernels(program: ScheduledProgram, at: CompileContext) -> Plan:
    """Each kernel in the language of the device whose memory it works on."""

    def write(kernel: KernelIR, aligned: tuple[bool, ...]) -> PrintedKernel:
        return write_triton(kernel, at.target, aligned) if runs_on_gpu(kernel) else write_cpp(kernel, at.host)

    return write_plan(program, write, inputs_aligned=at.target.device == "cuda")


# fmt: off
GRAPH_TO_PLAN: tuple[Stage, ...] = (
    Stage("passes",   lambda graph, at: run_passes(graph, at.events, env=at.env),           graph_text),
    Stage("lowering", lambda graph, at: lower(graph, at.target, at.events, at.env),         program_text),
    Stage("schedule", lambda loops, at: schedule(loops, at.target, at.events),              scheduled_text),
    Stage("plan",     write_kernels,                                                        plan_text),
)
# fmt: on


def graph_to_plan(graph: Graph, context: CompileContext, label: str = "") -> Plan:
    """Run all stages; `label` tells forward from backward in dumps."""
    context = replace(context, target=region_target(graph, context.host))
    value: Any = graph
    prefix = f"{label}_" if label else ""
    context.dump.write(f"{prefix}graph", lambda: graph_text(graph))
    for stage in GRAPH_TO_PLAN:
        with context.events.stage(stage.name):
            value = stage.run(value, context)
        made = value
        context.dump.write(f"{prefix}{stage.name}", lambda stage=stage, made=made: stage.show(made))  # type: ignore[misc]
    assert isinstance(value, Plan)
    return value
