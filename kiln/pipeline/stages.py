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
from kiln.graph.passes.blocks import short_graph
from kiln.loops.codegen.cpp.writer import write_cpp
from kiln.loops.codegen.plan_writer import write_plan
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.codegen.triton.writer import write_triton
from kiln.loops.fusion.schedule import schedule, traffic
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram
from kiln.loops.kernel.launches.text import kernel_program_text
from kiln.loops.kernel.launches.verify import verify_kernel_program
from kiln.loops.lowering import lower
from kiln.loops.program.text import program_text
from kiln.loops.program.verify import verify_program
from kiln.pipeline.blocks import Repeated, with_all_blocks
from kiln.pipeline.context import CompileContext
from kiln.pipeline.targets import kernel_gpu, region_target
from kiln.plan.plan import CallAten, Launch, Plan
from kiln.plan.text import plan_text
from kiln.support.events import EventSink

Executable = Callable[..., tuple[Any, ...]]
"""A compiled region: its inputs -> its outputs."""


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """`run` makes the next form of the program out of the last; `show` prints it; `verify` raises where it is broken.

    Passes verify the graph themselves, an executor its plan. What loops and kernels obey is checked where texts are
    written: that is where faults of the compiler are looked for.
    """

    name: str
    run: Callable[[Any, CompileContext], Any]
    show: Callable[[Any], str]
    verify: Callable[[Any], None] | None = None


def write_kernels(program: KernelProgram, at: CompileContext) -> Plan:
    """Each kernel in the language of the device whose memory it works on."""

    def write(kernel: KernelIR, aligned: tuple[bool, ...]) -> PrintedKernel:
        gpu = kernel_gpu(kernel)
        return write_cpp(kernel, at.host) if gpu is None else write_triton(kernel, gpu, aligned)

    return write_plan(program, write, inputs_aligned=at.target.is_gpu)


# fmt: off
GRAPH_TO_PLAN: tuple[Stage, ...] = (
    Stage("passes",   lambda graph, at: run_passes(graph, at.events, env=at.env),           graph_text),
    Stage("lowering", lambda graph, at: lower(graph, at.target, at.events, at.env),         program_text,
                                                                                            verify_program),
    Stage("schedule", lambda loops, at: schedule(loops, at.target, at.events),              kernel_program_text,
                                                                                            verify_kernel_program),
    Stage("plan",     write_kernels,                                                        plan_text),
)
# fmt: on


def graph_to_plan(graph: Graph, context: CompileContext, label: str = "") -> Plan:
    """Run all stages; `label` tells forward from backward in dumps. Equal blocks go through the stages once."""
    if context.dump.folder is None:
        plan = blocks_to_plan(graph, context)
        if plan is not None:
            return plan
    whole: Plan = run_stages(graph, context, label)[-1]
    return whole


def run_stages(graph: Graph, context: CompileContext, label: str = "") -> list[Any]:
    """The program after each stage, the plan last."""
    context = replace(context, target=region_target(graph, context.host))
    made: list[Any] = [graph]
    prefix = f"{label}_" if label else ""
    context.dump.write(f"{prefix}graph", lambda: graph_text(graph))
    for stage in GRAPH_TO_PLAN:
        with context.events.stage(stage.name):
            made.append(stage.run(made[-1], context))
            if stage.verify is not None and context.dump.folder is not None:
                stage.verify(made[-1])
        context.dump.write(f"{prefix}{stage.name}", lambda stage=stage: stage.show(made[-1]))  # type: ignore[misc]
    return made


def blocks_to_plan(graph: Graph, context: CompileContext) -> Plan | None:
    """The plan of a graph with many equal blocks, of which the stages see a few; None where that cannot be."""
    with context.events.stage("blocks"):
        short = short_graph(graph)
    if short is None:
        return None
    # What the stages say of the few blocks is told when it is known to hold.
    quiet = EventSink()
    *_, scheduled, plan = run_stages(short.graph, replace(context, events=quiet))
    with context.events.stage("blocks"):
        repeated = with_all_blocks(plan, short)
    for event in quiet.events:
        if repeated is not None or event.kind == "stage":
            context.events.record(event)
    if repeated is None:
        return None
    _report_repeated(repeated, plan, scheduled, context)
    return repeated.plan


def _report_repeated(repeated: Repeated, plan: Plan, scheduled: KernelProgram, context: CompileContext) -> None:
    """Launches, calls and traffic of the blocks that no stage saw."""
    steps, times, events = plan.steps, repeated.times, context.events
    before = sum(isinstance(step, Launch) for step in steps[: repeated.first])
    count = sum(isinstance(step, Launch) for step in steps[repeated.first : repeated.end])
    calls = sum(isinstance(step, CallAten) for step in steps[repeated.first : repeated.end])
    launches = [step for step in scheduled.steps if isinstance(step, KernelLaunch)][before : before + count]
    read, written = traffic(launches)
    events.emit("launches", count=times * count)
    events.emit("library_calls", count=times * calls)
    events.emit("traffic", read=read * times, written=written * times)
