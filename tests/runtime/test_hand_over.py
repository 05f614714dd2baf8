"""Plans that hand over results before they end: the steps, the verifier, the executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kiln.api import compile
from kiln.plan.hand_over import with_hand_overs
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref
from kiln.plan.steps import AtenStep, FreeStep, HandOverStep, ViewStep
from kiln.plan.text import plan_text
from kiln.plan.verify import InvalidPlan, verify_plan
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries
from tests.runtime.samples import spec


def call(name: str, out: int, *args: int) -> AtenStep:
    return AtenStep(f"aten.{name}.default", tuple(map(Ref, args)), (), (out,), (spec(4),))


def two_results() -> Plan:
    """Result 1 is ready first; a view of it is read once more."""
    return Plan(
        name="two",
        inputs=(PlanInput("x", spec(4)),),
        symbols=(),
        steps=(call("neg", 1, 0), ViewStep(2, 1, spec(4)), call("exp", 3, 2), FreeStep((2,)), call("abs", 4, 3),
               FreeStep((3,))),
        outputs=(PlanOutput(slot=4), PlanOutput(slot=1)),
        kernels=(),
        num_slots=5,
    )  # fmt: skip


def test_a_part_is_handed_over_behind_the_last_use_of_its_memory() -> None:
    plan = with_hand_overs(two_results(), (1, 0))
    verify_plan(plan)
    lines = [line.strip() for line in plan_text(plan).splitlines()]
    place = lines.index("hand over results 1")
    assert lines[place - 1] == "free %2" and lines[place + 1].startswith("%4 = aten.abs")


def test_one_part_needs_no_step() -> None:
    plan = two_results()
    assert with_hand_overs(plan, (0, 0)) is plan and with_hand_overs(plan, ()) is plan


def test_results_of_different_parts_that_share_memory_stay_together() -> None:
    plan = replace(two_results(), outputs=(PlanOutput(slot=1), PlanOutput(slot=1, alias_output=0)))
    assert with_hand_overs(plan, (0, 1)) is plan


def test_a_part_without_results_is_handed_over_at_once() -> None:
    plan = with_hand_overs(replace(two_results(), outputs=(PlanOutput(slot=4), PlanOutput())), (1, 0))
    assert plan.steps[0] == HandOverStep((1,))


def test_memory_that_was_handed_over_is_not_used() -> None:
    plan = two_results()
    early = replace(plan, steps=(*plan.steps[:2], HandOverStep((1,)), *plan.steps[2:]))
    with pytest.raises(InvalidPlan, match="P8: %2 is used after it is handed over"):
        verify_plan(early)


def test_who_does_not_ask_for_parts_gets_all_at_the_end() -> None:
    plan = with_hand_overs(two_results(), (1, 0))
    x = torch.randn(4)
    first, second = make_executor(plan, Libraries({}, (), {}))(x)
    torch.testing.assert_close((first, second), ((-x).exp().abs(), -x))


def test_a_view_of_a_result_that_left_before_the_end_leaves_with_it() -> None:
    """The gradients of two vectors that were joined are parts of one tensor, large enough for a part of their own."""

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (torch.nn.Parameter(torch.randn(300)) for _ in range(2))
            self.weight = torch.nn.Parameter(torch.randn(600, 300) / 25)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.weight, torch.cat((self.first, self.second))).relu()[:, :300]

    model = torch.nn.Sequential(Joined(), Joined(), Joined())
    x = torch.randn(8, 300)

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor | None]:
        model.zero_grad()
        call(x).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = gradients(model)
    torch.testing.assert_close(gradients(compile(model, fullgraph=True)), expected)
