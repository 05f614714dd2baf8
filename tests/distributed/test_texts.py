"""Collectives in graphs, schedules and plans, as text; in a group of this process alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kiln
from kiln.graph.passes.bucket_all_reduces import WORTH_A_MESSAGE, BucketAllReduces
from kiln.graph.passes.pipeline import run_passes
from kiln.graph.passes.sum_before_reduce import SumBeforeReduce, next_total
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.text import step_text
from kiln.loops.lowering import lower
from kiln.plan.text import plan_text
from kiln.runtime.cuda_graphs.facts import graph_facts
from kiln.support.events import EventSink
from kiln.support.target import Target
from tests.graph.passes.graphs import check_pass, check_unchanged, parsed
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


def test_what_a_start_does_not_need_runs_behind_it() -> None:
    """As the gradients of weights do while those of inputs are reduced, and the rest of a backward."""
    text = f"""
    graph(%0: f32[8, 8] "x", %1: f32[8, 8] "w"):
        %2: f32[8, 8] = aten aten.mm.default(%0, %1)
        %3: f32[8, 8] = aten aten.linalg_inv.default(%2)
        %4: f32[8, 8] = aten aten.linalg_pinv.default(%3)
        %5: f32[8, 8] = aten aten.mm.default(%2, %1)
        %6: f32[8, 8] = opaque {REDUCE}(%5, "sum", "0")
        %7: f32[8, 8] = wait(%6, %5)
        %8: f32[8, 8] = aten aten.mm.default(%3, %1)
        %9: f32[8, 8] = opaque {REDUCE}(%8, "sum", "0")
        %10: f32[8, 8] = wait(%9, %8)
        return %4, %7, %10
    """
    names = ("mm", "linalg_inv", "linalg_pinv", "all_reduce", "wait")
    found = [name for step in order(text) for name in names if f".{name}" in step]
    assert found == ["mm", "mm", "all_reduce", "linalg_inv", "mm", "all_reduce", "linalg_pinv", "wait", "wait"]


def test_a_result_that_nobody_reads_is_waited_for_with_its_call() -> None:
    """Its memory is free from then on. With gloo each wait fills all results: none is used in front of the last."""
    text = """
    graph(%0: f32[8, 8] "x", %1: f32[8, 8] "w"):
        %2: (f32[8, 8], f32[8, 8]) = opaque _c10d_functional.all_reduce_coalesced.default((%0, %1), "sum", "0")
        %3: f32[8, 8] = item(%2, index=0)
        %4: f32[8, 8] = item(%2, index=1)
        %5: f32[8, 8] = wait(%3, %0, %1)
        %6: f32[8, 8] = wait(%4, %0, %1)
        %7: f32[8, 8] = aten aten.mm.default(%5, %1)
        %8: f32[8, 8] = aten aten.linalg_inv.default(%7)
        return %8
    """
    names = ("mm", "linalg_inv", "all_reduce", "wait")
    found = [name for step in order(text) for name in names if f".{name}" in step]
    assert found == ["all_reduce", "wait", "wait", "mm", "linalg_inv"]


class Unsharded(torch.autograd.Function):
    """Whole tensors, which the backward gathers again."""

    @staticmethod
    def forward(ctx: Any, *shards: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.ops.kiln_c10d.unshard.default(shards, 1, dist.group.WORLD.group_name)
        return tuple([torch.ops._c10d_functional.wait_tensor.default(x) for x in made])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grads


def test_a_backward_waits_for_all_that_it_gathers() -> None:
    """Also for a bias, which it does not read: torch keeps a work, and what it fills, until it is waited for."""

    def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        w, b = Unsharded.apply(w, b)
        return torch.addmm(b, x, w).sin()

    count = torch._C._distributed_c10d._get_work_registry_size
    given = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    before = count()
    compiled = kiln.compile(linear, fullgraph=True)
    for _ in range(2):
        compiled(*given).sum().backward()
    assert count() == before


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
    kept = run_passes(graph, EventSink(), without=("bucket-all-reduces",))
    assert [node.op.name for node in kept.nodes if node.op.name != "clone"] == ["opaque", "wait"] * 2


def test_small_all_reduces_share_a_message() -> None:
    """The product of the first result moves behind the bucket; one of another reduction stays alone."""
    check_pass(
        BucketAllReduces(),
        f"""
        graph(%0: f32[4] "x", %1: f32[8] "y"):
            %2: f32[4] = opaque {REDUCE}(%0, "sum", "0")
            %3: f32[4] = wait(%2, %0)
            %4: f32[4] = mul(%3, %0)
            %5: f32[8] = neg(%1)
            %6: f32[8] = opaque {REDUCE}(%5, "sum", "0")
            %7: f32[8] = wait(%6, %5)
            %8: f32[8] = opaque {REDUCE}(%7, "max", "0")
            %9: f32[8] = wait(%8, %7)
            return %4, %9
        """,
        """
        graph(%0: f32[4] "x", %1: f32[8] "y"):
            %2: f32[8] = neg(%1)
            %3: (f32[4], f32[8]) = opaque _c10d_functional.all_reduce_coalesced.default((%0, %2), "sum", "0")
            %4: f32[4] = item(%3, index=0)
            %5: f32[8] = item(%3, index=1)
            %6: f32[4] = wait(%4, %0, %2)
            %7: f32[4] = mul(%6, %0)
            %8: f32[8] = wait(%5, %0, %2)
            %9: f32[8] = opaque _c10d_functional.all_reduce.default(%8, "max", "0")
            %10: f32[8] = wait(%9, %8)
            return %7, %10
        """,
    )


class Copied(torch.autograd.Function):
    """An input that all ranks have: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def copied_thrice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (Copied.apply(x) @ w + Copied.apply(x) @ w.sin() + Copied.apply(x) @ w.cos()).sum().backward()
    assert x.grad is not None
    return x.grad


def test_gradients_are_added_before_they_are_reduced() -> None:
    """One message in place of three, where the user says so; strict numerics keeps eager's order of sums."""
    given = torch.randn(3, 4), torch.randn(4, 5)
    joined = {"collectives": "joined"}
    messages = "= _c10d_functional.all_reduce.default"
    for options, count in ((joined, 1), ({}, 3), ({**joined, "numerics": "strict"}, 0)):
        text = "\n".join(map(plan_text, compiled_plans(copied_thrice, *given, **options)))
        assert text.count(messages) == count
        assert text.count("all_reduce_coalesced") == (count == 0)
        found = kiln.compile(copied_thrice, options=options)(*given)
        torch.testing.assert_close(found, copied_thrice(*given))


def test_results_of_a_forward_are_reduced_as_the_program_says() -> None:
    """Another rank may leave their sum out."""
    text = two_sums("%0", "%5").replace("return", "%5: f32[4] = add(%2, %4)\n        return")
    check_unchanged(SumBeforeReduce(), text)


def test_what_is_not_joined() -> None:
    """A chain, another group, messages that are large alone, another effect in between."""
    large = WORTH_A_MESSAGE["cpu"] // 4 + 1
    check_unchanged(
        BucketAllReduces(),
        two_sums("%2", "%4"),
        f"""
        graph(%0: f32[{large}] "x", %1: f32[{large}] "y"):
            %2: f32[{large}] = opaque {REDUCE}(%0, "sum", "0")
            %3: f32[{large}] = wait(%2, %0)
            %4: f32[{large}] = opaque {REDUCE}(%1, "sum", "0")
            %5: f32[{large}] = wait(%4, %1)
            return %3, %5
        """,
        f"""
        graph(%0: f32[4] "x", %1: b8[] "c"):
            %2: f32[4] = opaque {REDUCE}(%0, "sum", "0")
            %3: f32[4] = wait(%2, %0)
            %4: () = assert(%1, message="no")
            %5: f32[4] = opaque {REDUCE}(%0, "sum", "0")
            %6: f32[4] = wait(%5, %0)
            return %3, %6
        """,
    )


def test_gradients_are_joined_only_where_their_sum_is_all_that_is_read() -> None:
    text = two_sums("%5", "%6").replace('"0")', '"0")  # dist.all_reduce [0] at step.py:1, in step (backward)')
    text = text.replace('"x"):', '"x"):\n        %5: f32[4] = sin(%0)').replace(
        "return", "%6: f32[4] = add(%2, %4)\n        return"
    )
    assert next_total(parsed(text)) is not None
    for read in ("%2", "%4"):
        check_unchanged(SumBeforeReduce(), text.replace("return %6", f"return %6, {read}"))
        more = f"%7: f32[4] = cos({read})\n        return %6, %7"
        check_unchanged(SumBeforeReduce(), text.replace("return %6", more))
