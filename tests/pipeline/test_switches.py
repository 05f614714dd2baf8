"""Every pass and rule can be switched off: the results stay right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.graph.ir.parse import parse_graph
from kiln.pipeline.reproduce import graph_plan
from kiln.pipeline.switched_off import COLLECTIVES, NUMERICS, switched_off
from kiln.pipeline.switches import SWITCHES
from kiln.plan.steps import AllocateStep, FreeStep, LaunchStep
from kiln.support.errors import KilnError
from kiln.support.options import Options


def program(x: torch.Tensor, weight: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    y = F.gelu(F.layer_norm(x @ weight + x, (32,))) * 1.0
    return (y.softmax(-1) + y.softmax(-1).sum(0) + weight[at]).relu().sum()


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_no_result(name: str) -> None:
    torch.manual_seed(0)
    x, weight, at = torch.randn(8, 32), nn.Parameter(torch.randn(32, 32)), torch.randint(32, (8,))
    compiled = kiln.compile(program, options={"disable": name, "cache": False}, fullgraph=True)
    results = []
    for function in (program, compiled):
        weight.grad = None
        loss = function(x, weight, at)
        loss.backward()
        results.append([loss.detach(), weight.grad])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


CHAIN = """
graph(%0: f32[64, 32] "x", %1: f32[32, 32] "w"):
    %2: f32[64, 32] = exp(%0)
    %3: f32[64, 32] = aten.mm.default(%2, %1)
    %4: f32[64, 32] = exp(%3)
    %5: f32[64, 32] = aten.mm.default(%4, %1)
    %6: f32[64, 32] = neg(%5)
    %7: f32[64] = sum(%6, axes=(1,))
    %8: f32[64] = exp(%7)
    return %8
"""


def steps(options: dict[str, object], kind: type) -> int:
    plan = graph_plan(parse_graph(CHAIN), options)
    return sum(isinstance(step, kind) for step in plan.steps)


def test_memory_reuse() -> None:
    off: dict[str, object] = {"disable": "memory-reuse"}
    assert steps({}, FreeStep) > 0 == steps(off, FreeStep)
    assert steps(off, AllocateStep) > steps({}, AllocateStep)


def test_fusion_rules() -> None:
    rules = [name for name, kind in SWITCHES.items() if kind == "fusion rule"]
    assert steps({"disable": "+".join(rules)}, LaunchStep) > steps({}, LaunchStep)


def test_unknown_switches_are_refused() -> None:
    with pytest.raises(KilnError, match="KILN5006"):
        kiln.compile(program, options={"disable": "cse+nothing"})


def test_contracts_switch_off_what_exists() -> None:
    assert {name for table in (NUMERICS, COLLECTIVES) for names in table.values() for name in names} <= SWITCHES.keys()
    options = Options(disable="cse", numerics="rounded", collectives="joined")
    assert switched_off(options) == ("cse", "fast-math")
