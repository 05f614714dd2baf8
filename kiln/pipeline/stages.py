"""The stages from a functional graph to a plan, as a literal list.

    graph --passes--> graph --lowering--> loops --schedule--> kernels --plan--> plan

KILN_DUMP writes the text of each stage. A stage gets what it needs from the context and reports to its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import with_nested
from kiln.graph.ir.text import graph_text
from kiln.graph.offload.part import Direction
from kiln.graph.passes import run_passes
from kiln.graph.passes.equal_sizes import equal_symbols, with_one_symbol
from kiln.graph.passes.repeated_layers import short_graph
from kiln.loops.codegen.plan_writer import write_plan
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.fusion.schedule import schedule, traffic
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram
from kiln.loops.kernel.launches.text import kernel_program_text
from kiln.loops.kernel.launches.verify import verify_kernel_program
from kiln.loops.lowering import lower
from kiln.loops.program.analyses import with_nested_programs
from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.loops.program.text import program_text
from kiln.loops.program.verify import verify_program
from kiln.pipeline.context import CompileContext
from kiln.pipeline.repeated_layers import FullPlan, full_plan
from kiln.pipeline.targets import kernel_gpu, region_target, with_settings
from kiln.plan.plan import Plan
from kiln.plan.steps import AtenStep, LaunchStep
from kiln.plan.text import plan_text
from kiln.support.events import EventSink
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol
from kiln.tensor.size_hint import seen_in, sizes_seen


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """`run` makes the next form of the program from the last, `show` prints it, `verify` raises if it is invalid.

    Passes verify the graph themselves, an executor its plan. Loops and kernels are verified when dumps are written.
    """

    name: str
    run: Callable[[Any, CompileContext], Any]
    show: Callable[[Any], str]
    verify: Callable[[Any], None] | None = None


def schedule_text(program: KernelProgram) -> str:
    """The kernels, then why they are not fewer."""
    return f"{kernel_program_text(program)}\n\n{program.not_fused}".rstrip()


def graph_after_passes(graph: Graph, at: CompileContext) -> Graph:
    graph = with_nested(graph, lambda nested: graph_after_passes(nested, at))
    return run_passes(graph, at.events, env=at.env, without=at.without)


def graph_with_calls(graph: Graph, at: CompileContext) -> Graph:
    assert at.offload is not None
    return at.offload.rewritten(graph, at.env, at.events, at.dump)


def loops_after_passes(loops: LoopProgram, at: CompileContext) -> LoopProgram:
    changed = run_program_passes(loops, at.target, at.events, at.dump)
    return with_nested_programs(changed, lambda nested: loops_after_passes(nested, at))


def write_kernels(program: KernelProgram, at: CompileContext) -> Plan:
    """Each kernel in the language of the device whose memory it works on."""

    def write(kernel: KernelIR, aligned: tuple[bool, ...], rows: int) -> PrintedKernel:
        gpu = kernel_gpu(kernel)
        target = with_settings(gpu, at.host) if gpu else at.host
        return print_kernel(kernel, target, aligned, at.events, at.dump, rows)

    return write_plan(program, write, inputs_aligned=at.target.is_gpu)


OFFLOAD = Stage("offload", graph_with_calls, graph_text)
"""In front of the others, where another compiler gets parts of the graph."""

# fmt: off
GRAPH_TO_PLAN: tuple[Stage, ...] = (
    #     name           run                                                                show, verify
    Stage("passes",      graph_after_passes,                                                graph_text),
    Stage("lowering",    lambda graph, at: lower(graph, at.target, at.events, at.env),      program_text,
                                                                                            verify_program),
    Stage("loop_passes", loops_after_passes,                                                program_text,
                                                                                            verify_program),
    Stage("schedule",    lambda loops, at: schedule(loops, at.target, at.events),           schedule_text,
                                                                                            verify_kernel_program),
    Stage("plan",        write_kernels,                                                     plan_text),
)
# fmt: on


def graph_to_plan(graph: Graph, context: CompileContext, label: Direction = "") -> Plan:
    """Run all stages, on equal layers once; `label`: forward or backward, for dumps."""
    graph = with_one_symbol(graph, other_names(graph, context))
    if context.offload is not None:
        context = replace(context, offload=replace(context.offload, direction=label))
    elif context.dump.folder is None and "repeated-layers" not in context.without:
        plan = repeated_layers_to_plan(graph, context)
        if plan is not None:
            return with_versions(plan, graph)
    *_, plan = run_stages(graph, context, label)
    assert isinstance(plan, Plan)
    return with_versions(plan, graph)


def other_names(graph: Graph, context: CompileContext) -> Mapping[Symbol, Int]:
    """The sizes that the plan of `graph` calls by the name of another one, which is equal, or a number."""
    return {} if context.env is None or "equal-sizes" in context.without else equal_symbols(graph, context.env)


def with_versions(plan: Plan, graph: Graph) -> Plan:
    """`plan`, which raises the versions of what `graph` writes, and of its results, as often as eager."""
    counts = {write.target: write.versions for write in graph.writes}
    bumped = [slot for slot, node in enumerate(graph.inputs) for _ in range(counts.get(node, 0))]
    for made, output in zip(plan.outputs, graph.outputs, strict=False):
        bumped += [made.slot] * output.versions if made.slot is not None else []
    return replace(plan, bumped=tuple(bumped)) if bumped or counts else plan


def run_stages(graph: Graph, context: CompileContext, label: Direction = "") -> list[Any]:
    """The program after each stage, the plan last."""
    context = replace(context, target=region_target(graph, context.host))
    made: list[Any] = [graph]
    prefix = f"{label}_" if label else ""
    context.dump.write(f"{prefix}graph", lambda: graph_text(graph))
    for stage in (OFFLOAD, *GRAPH_TO_PLAN) if context.offload is not None else GRAPH_TO_PLAN:
        context.check_time()
        with context.events.stage(stage.name), sizes_seen(seen_in(context.env)):
            made.append(stage.run(made[-1], context))
            if stage.verify is not None and context.dump.folder is not None:
                stage.verify(made[-1])
        context.dump.write(f"{prefix}{stage.name}", lambda stage=stage: stage.show(made[-1]))  # type: ignore[misc]
    return made


def repeated_layers_to_plan(graph: Graph, context: CompileContext) -> Plan | None:
    """The plan of a graph with many equal layers, of which the stages see a few; None where that is impossible."""
    with context.events.stage("repeated layers"):
        short = short_graph(graph)
    if short is None:
        return None
    # Events of the short graph are deferred until its plan is known to be usable.
    sink = EventSink()
    *_, scheduled, plan = run_stages(short.graph, replace(context, events=sink))
    with context.events.stage("repeated layers"):
        full = full_plan(plan, short)
    for event in sink.events:
        if full is not None or event.kind == "stage":
            context.events.record(event)
    if full is None:
        return None
    _report_repetition(full, plan, scheduled, context)
    return full.plan


def _report_repetition(full: FullPlan, short: Plan, scheduled: KernelProgram, context: CompileContext) -> None:
    """Launches, calls and traffic of the layers that no stage saw."""
    before, repeated, events = short.steps[: full.first], short.steps[full.first : full.end], context.events
    skipped = sum(isinstance(step, LaunchStep) for step in before)
    count = sum(isinstance(step, LaunchStep) for step in repeated)
    calls = sum(isinstance(step, AtenStep) for step in repeated)
    launches = [step for step in scheduled.steps if isinstance(step, KernelLaunch)][skipped : skipped + count]
    read, written = traffic(launches)
    events.emit("launches", count=full.times * count)
    events.emit("library_calls", count=full.times * calls)
    events.emit("traffic", read=read * full.times, written=written * full.times)
