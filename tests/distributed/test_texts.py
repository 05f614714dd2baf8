"""Collectives in graphs, schedules and plans, as text; in a group of this process alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from kiln.graph.passes.pipeline import run_passes
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.text import step_text
from kiln.loops.lowering import lower
from kiln.plan.text import plan_text
from kiln.runtime.cuda_graphs.facts import graph_facts
from kiln.support.events import EventSink
from kiln.support.target import Target
from tests.graph.passes.graphs import parsed
from tests.loops.compiled_plans import compiled_plans

pytestmark = pytest.mark.unrecorded  # the process that replays plans is in no group


@pytest.fixture(autouse=True, scope="module")
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


REDUCE = "_c10d_functional.all_reduce.default"


def test_a_plan_waits_where_a_result_is_used(golden: Callable[..., None]) -> None:
    """Also for an argument that is overwritten: not before the wait, which holds it."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(4, 4)
        work = dist.all_gather_into_tensor(y, x, async_op=True)
        z = w @ w
        work.wait()
        x.zero_()
        return y @ z

    (plan,) = compiled_plans(program, torch.ones(4, 4), torch.ones(4, 4))
    golden(re.sub(r"k_[0-9a-f]{16}", "k", plan_text(plan)))
    assert "collective" in graph_facts(plan).refusal


def order(text: str, *without: str) -> list[str]:
    """The steps of a graph, by the names of their kernels and calls."""
    target = Target(vector_bytes=32, threads=2, without=without)
    made = schedule(lower(parsed(text), target, EventSink()), target, EventSink())
    return [step_text(step).split("#")[0].strip() for step in made.steps]


SEVERAL = f"""
graph(%0: f32[8, 8] "x", %1: f32[8, 8] "w"):
    %2: f32[8, 8] = aten aten.mm.default(%0, %1)
    %3: f32[8, 8] = aten aten.mm.default(%1, %1)
    %4: f32[8, 8] = opaque {REDUCE}(%2, "sum", "0")
    %5: f32[8, 8] = wait(%4, %2)
    %6: f32[8, 8] = opaque {REDUCE}(%3, "sum", "0")
    %7: f32[8, 8] = wait(%6, %3)
    %8: f32[8, 8] = aten aten.mm.default(%3, %1)
    %9: f32[8, 8] = aten aten.mm.default(%5, %8)
    return %9
"""


def test_collectives_start_early_and_are_waited_for_late(golden: Callable[..., None]) -> None:
    """One whose result nobody reads is waited for at the end: its memory must not be used before."""
    golden("\n".join([*order(SEVERAL, "overlap-collectives"), "", *order(SEVERAL)]))


def test_no_collective_passes_a_number_read_on_the_host() -> None:
    text = f"""
    graph(%0: f32[4] "x", %1: i64[] "n"):
        %2: f32[4] = aten aten.abs.default(%0)
        %3: f32[4] = opaque {REDUCE}(%0, "sum", "0")
        %4: f32[4] = wait(%3, %0)
        %5: b8[] = gt(%1, %1)
        %6: () = assert(%5, message="no")
        %7: f32[4] = opaque {REDUCE}(%0, "max", "0")
        %8: f32[4] = wait(%7, %0)
        return %2, %4, %8
    """
    steps = "\n".join(order(text))
    assert steps.index("'sum'") < steps.index("aten.abs") < steps.index("kiln.assert") < steps.index("'max'")


def two_sums(second: str, result: str) -> str:
    """A graph that sums its argument %0, then `second`, over the ranks."""
    return f"""
    graph(%0: f32[4] "x"):
        %1: f32[4] = opaque {REDUCE}(%0, "sum", "0")
        %2: f32[4] = wait(%1, %0)
        %3: f32[4] = opaque {REDUCE}({second}, "sum", "0")
        %4: f32[4] = wait(%3, {second})
        return {result}
    """


def test_unread_collectives_stay() -> None:
    graph = parsed(two_sums("%0", "%0"))
    kept = run_passes(graph, EventSink())
    assert [node.op.name for node in kept.nodes if node.op.name != "clone"] == ["opaque", "wait"] * 2
