"""`activation_offload`: saved values wait for the backward in the host's memory.

The CPU stands for the device where values are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

import kiln
from kiln.graph.autograd import partition
from kiln.graph.autograd.partition import Partition
from kiln.graph.ir.flops import target_of
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.verify import verify
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.text import step_text
from kiln.loops.lowering import lower
from kiln.pipeline import offloading
from kiln.plan.text import plan_text
from kiln.plan.transfer_operators import TRANSFER, Transfer
from kiln.runtime.cuda_graphs.facts import graph_facts
from kiln.support.events import EventSink
from kiln.support.host_link import HostLink
from kiln.support.target import cuda_gpu
from tests.graph.autograd.test_memory_budget import attention
from tests.graph.autograd.test_models import grad, joint_of, whole
from tests.graph.passes.graphs import parsed
from tests.loops.compiled_plans import compiled_plans

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
FAST, SLOW = HostLink("cpu", moved=1, least=256), HostLink("cpu", moved=1 << 20, least=256)


def parts_of(budget: float, link: HostLink | None) -> Partition:
    inputs = (grad(4, 16, 8), grad(8, 8))
    return partition(joint_of(whole(attention), inputs), budget=budget, link=link, offload=True)


def num_transfers(graph: Graph) -> int:
    return sum(node.op.name == "aten" and node.attrs["target"] == TRANSFER for node in graph.nodes)


def num_products(graph: Graph) -> int:
    return sum(node.op.name == "aten" and "mm" in target_of(node) for node in graph.nodes)


@pytest.mark.parametrize("budget", BUDGETS)
def test_what_goes_comes_back(budget: float) -> None:
    parts = parts_of(budget, FAST)
    verify(parts.forward, "forward")
    verify(parts.backward, "backward")
    assert num_transfers(parts.forward) == num_transfers(parts.backward) > 0


def test_a_fast_link_saves_products() -> None:
    """Without one they are computed again."""
    assert num_products(parts_of(0.0, FAST).backward) < num_products(parts_of(0.0, None).backward)


def test_a_slow_link_carries_nothing_that_can_be_computed_again() -> None:
    assert num_transfers(parts_of(0.5, SLOW).forward) == 0
    assert num_products(parts_of(0.5, SLOW).backward) == num_products(parts_of(0.5, None).backward)


def test_another_device_and_small_values_stay() -> None:
    assert num_transfers(parts_of(0.0, HostLink("cuda", moved=1, least=256)).forward) == 0
    assert num_transfers(parts_of(0.0, HostLink("cpu", moved=1)).forward) == 0


def test_a_whole_budget_computes_nothing_again() -> None:
    """What the link carries while the forward runs goes to the host anyway, the earliest first."""
    middle = HostLink("cpu", moved=12, least=256)
    moved = [num_transfers(parts_of(1.0, link).forward) for link in (None, SLOW, middle, FAST)]
    assert moved[:2] == [0, 0] and 0 < moved[2] < moved[3]
    assert num_products(parts_of(1.0, FAST).backward) == num_products(parts_of(1.0, None).backward)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("whole_step", [False, True])
def test_gradients_are_those_of_eager(budget: float, whole_step: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Tanh()) for _ in range(3)]
    )
    x = torch.randn(64, 32)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        if whole_step:
            loss.backward()
        return loss

    def gradients(step: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor | None]:
        model.zero_grad()
        loss = step(x)
        if not whole_step:
            loss.backward(retain_graph=True)
            model.zero_grad()
            loss.backward()
        return [loss.detach(), *[parameter.grad for parameter in model.parameters()]]

    wanted = gradients(step)
    options = {"memory_budget": budget, "activation_offload": True, "speed_check": False, "cache": False}
    with mock.patch.object(offloading, "GPU_LINK", FAST):
        compiled = kiln.compile(step, options=options, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(gradients(compiled), wanted)


def test_a_region_that_offloads_is_no_cuda_graph() -> None:

    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = attention(x, w)
        return loss, *torch.autograd.grad(loss, w)

    with mock.patch.object(offloading, "GPU_LINK", FAST):
        plans = compiled_plans(step, grad(4, 16, 8), grad(8, 8), memory_budget=0.25, activation_offload=True)
    assert [plan.name for plan in plans] == ["forward", "step"]
    assert all("moved to the host" in graph_facts(plan).refusal for plan in plans)


def test_what_is_saved_within_save_on_cpu_goes_to_the_host() -> None:
    """Whatever the budget; the rest stays."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(3)])
    x = torch.randn(64, 32)

    def loss(x: torch.Tensor) -> torch.Tensor:
        x = layers[0](x)
        with save_on_cpu():
            x = layers[1](x)
        return layers[2](x).square().mean()

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor | None]:
        layers.zero_grad()
        call(x).backward()
        return [parameter.grad for parameter in layers.parameters()]

    wanted = gradients(loss)
    with mock.patch.object(offloading, "GPU_LINK", FAST):
        texts = [plan_text(plan) for plan in compiled_plans(loss, x)]
        compiled = kiln.compile(loss, options={"speed_check": False, "cache": False}, fullgraph=True)
        torch.testing.assert_close(gradients(compiled), wanted)
    assert texts[0].count(TRANSFER) == 2  # tanh, and the result of the block


# The schedule.

ON_GPU, ON_HOST = "f32[2048, 2048 @cuda:0]", "f32[2048, 2048]"


def order(lines: list[str]) -> list[str]:
    """The steps of a graph: `mm`, and the starts and waits of transfers with the buffers that they fill."""
    target = cuda_gpu((9, 0), 132)
    made = schedule(lower(parsed("\n".join(lines)), target, EventSink()), target, EventSink())
    found: list[str] = []
    for text in map(step_text, made.steps):
        buffer = text.partition(":")[0]
        if "kiln_transfer" in text:
            found.append(f"start {buffer}")
        else:
            found.append(f"wait {text.partition('(')[2].partition(',')[0]}" if "kiln.wait" in text else "mm")
    return found


def chain(first: int, count: int, value: int) -> list[str]:
    """Products with %1, numbered from `first`."""
    return [
        f"    %{number}: {ON_GPU} = aten.mm.default(%{number - 1 if number > first else value}, %1)"
        for number in range(first, first + count)
    ]


def test_a_transfer_to_the_host_is_waited_for_where_it_has_ended() -> None:
    lines = [f'graph forward(%0: {ON_GPU} "x", %1: {ON_GPU} "w"):', *chain(2, 80, 0)]
    lines += [f"    %82: {ON_HOST} = {TRANSFER}(%3, cpu)", f"    %83: {ON_HOST} = wait(%82, %3)"]
    found = order([*lines, "    return %81, %83"])
    start, end = found.index("start b80"), found.index("wait b80")
    assert start == 2  # right behind the product that it copies
    assert start + 4 < end < len(found) - 8
    assert found.count("mm") == 80


def test_a_transfer_back_starts_as_long_before_as_it_takes() -> None:
    lines = [f'graph backward(%0: {ON_GPU} "g", %1: {ON_GPU} "w", %2: {ON_HOST} "saved"):', *chain(3, 80, 0)]
    lines += [f"    %83: {ON_GPU} = {TRANSFER}(%2, cuda:0)", f"    %84: {ON_GPU} = wait(%83, %2)"]
    found = order([*lines, f"    %85: {ON_GPU} = aten.mm.default(%82, %84)", "    return %85"])
    (start,) = [place for place, step in enumerate(found) if step.startswith("start")]
    assert found[-2].startswith("wait") and found[-1] == "mm"
    assert 8 < start < len(found) - 6


def test_few_transfers_are_in_flight() -> None:
    """However slow the link is: the fourth starts behind the wait for the first."""
    count = 8
    lines = [f'graph forward(%0: {ON_GPU} "x", %1: {ON_GPU} "w"):', *chain(2, count, 0)]
    for n in range(count - 1):
        lines += [f"    %{20 + 2 * n}: {ON_HOST} = {TRANSFER}(%{2 + n}, cpu)"]
        lines += [f"    %{21 + 2 * n}: {ON_HOST} = wait(%{20 + 2 * n}, %{2 + n})"]
    found = order([*lines, "    return %9, " + ", ".join(f"%{21 + 2 * n}" for n in range(count - 1))])
    under_way = most = 0
    for step in found:
        under_way += step.startswith("start") - step.startswith("wait")
        most = max(most, under_way)
    assert (under_way, most) == (0, 3)


def test_what_a_hook_gets_is_on_the_host() -> None:
    """It may read it at once; the copy runs on a stream of its own."""
    ended = []

    class Event:
        def synchronize(self) -> None:
            ended.append(True)

    transfer = Transfer(torch.device("cuda", 0), cast(Any, Event()), to_host=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value.clone(), lambda value: value):
        assert transfer.wait()
    assert ended == [True]
