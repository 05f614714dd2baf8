"""Parts of one buffer: what `cat` writes."""

from __future__ import annotations

from kiln.loops.codegen.plan_writer import write_plan
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.fusion.schedule import schedule
from kiln.plan.steps import AllocateStep, ViewStep
from kiln.support.events import EventSink
from tests.loops.checks import TARGET, lowered
from tests.loops.programs import PROGRAMS


def test_parts_of_a_result_are_views_of_its_memory() -> None:
    program = schedule(lowered(PROGRAMS["cat_output"]()[0]), TARGET, EventSink())
    plan = write_plan(program, lambda kernel, aligned, rows: print_kernel(kernel, TARGET))
    (whole,) = [step for step in plan.steps if isinstance(step, AllocateStep)]
    views = [step for step in plan.steps if isinstance(step, ViewStep)]
    assert [(view.base, view.spec.offset) for view in views] == [(whole.out, 0), (whole.out, 12)]
    assert plan.outputs[0].slot == whole.out
