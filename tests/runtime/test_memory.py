"""Memory of a plan: which buffers reuse that of dead inputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import kiln
from kiln.plan.arena import plan_memory, with_donations
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref
from kiln.plan.steps import AllocateStep, AtenStep, LaunchStep, ViewStep
from kiln.plan.text import plan_text
from kiln.plan.verify import verify_plan
from tests.runtime.samples import SCALE, spec


def backward() -> Plan:
    """Two saved tensors, one of them seen through a view, and a tangent; a buffer that only kernels touch."""
    size = spec(128, 128)
    return Plan(
        "backward",
        (PlanInput("saved", size), PlanInput("other", size), PlanInput("tangent", size)),
        (),
        (
            ViewStep(3, 0, spec(16384)),
            AtenStep("aten.mul.Tensor", (Ref(2), Ref(1)), (), (4,), (size,)),
            AtenStep("aten.neg.default", (Ref(3),), (), (5,), (spec(16384),)),
            AllocateStep(6, size),
            LaunchStep("k_scale", (4, 6), (0,), (2.0,), 4),
            AllocateStep(7, size),
            LaunchStep("k_scale", (6, 7), (0,), (2.0,), 4),
            AtenStep("aten.neg.default", (Ref(1),), (), (8,), (size,)),
        ),
        (PlanOutput(slot=5), PlanOutput(slot=7), PlanOutput(slot=8)),
        (SCALE,),
        num_slots=9,
    )


def test_buffers_take_the_memory_of_dead_inputs() -> None:
    plan = backward()
    assert [buffer.slot for buffer in plan_memory(plan).buffers] == [6]
    given = with_donations(plan, (0, 1))
    verify_plan(given)
    assert given.donated == (0,) and "%6 = allocate f32[128, 128] in memory of %0" in plan_text(given)
    assert "free %3" in plan_text(given)  # the view goes first
    assert plan_memory(given).buffers == ()
    assert with_donations(plan, ()) == plan


def test_what_leaves_the_plan_is_not_given_away() -> None:
    plan = backward()
    returned = replace(plan, outputs=(*plan.outputs, PlanOutput(alias_input=0)))
    assert with_donations(returned, (0, 1)).donated == ()
    view_returned = replace(plan, outputs=(*plan.outputs, PlanOutput(slot=3)))
    assert with_donations(view_returned, (0, 1)).donated == ()
    small = replace(plan, inputs=(PlanInput("saved", spec(4)), *plan.inputs[1:]))
    assert with_donations(small, (0,)).donated == ()


def test_a_raw_buffer_lives_as_long_as_its_views() -> None:
    """%1 is read through %3, a view of its view %2, when %4 is written: they must not share memory."""
    size, flat = spec(128, 128), spec(16384)
    plan = Plan(
        "views",
        (PlanInput("x", size),),
        (),
        (
            AllocateStep(1, size),
            LaunchStep("k_scale", (0, 1), (0,), (2.0,), 4),
            ViewStep(2, 1, flat),
            ViewStep(3, 2, size),
            AllocateStep(4, size),
            LaunchStep("k_scale", (0, 4), (0,), (2.0,), 4),
            AllocateStep(5, size),
            LaunchStep("k_scale", (3, 5), (0,), (2.0,), 4),
            AtenStep("aten.add.Tensor", (Ref(4), Ref(5)), (), (6,), (size,)),
        ),
        (PlanOutput(slot=6),),
        (SCALE,),
        num_slots=7,
    )
    planned = plan_memory(plan)
    assert planned.views == {2, 3}
    assert [(buffer.slot, buffer.first, buffer.last) for buffer in planned.buffers] == [(1, 0, 7)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def test_gradients_with_and_without_the_graph_retained() -> None:
    model = nn.Sequential(Block(), Block())
    parameters, x = list(model.parameters()), torch.randn(512, 64)
    wanted = torch.autograd.grad(model(x).square().mean(), parameters)
    loss = kiln.compile(model, fullgraph=True)(x).square().mean()
    for retain in (True, True, False):
        for ours, theirs in zip(torch.autograd.grad(loss, parameters, retain_graph=retain), wanted, strict=True):
            torch.testing.assert_close(ours, theirs)
