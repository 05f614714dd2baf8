"""Plans as text and as Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref, SymbolBinding
from kiln.plan.python_view import plan_python
from kiln.plan.steps import (
    AllocateStep,
    BranchStep,
    CheckStep,
    ConstantStep,
    CopyStep,
    HandOverStep,
    HostReadStep,
    LaunchStep,
    LoopStep,
    RandomSeedStep,
    ViewStep,
    WaitStep,
)
from kiln.plan.text import plan_text
from kiln.plan.verify import InvalidPlan, verify_plan
from kiln.runtime.kernels import Libraries
from kiln.symbolic import rel_lt, symbol
from kiln.tensor.spec import TensorSpec
from tests.runtime.samples import SCALE, add_norm, gather, spec

u0, s0 = symbol("u0"), symbol("s0")


def everything() -> Plan:
    """Every kind of step."""
    inner = Plan(
        "inner", (PlanInput("x", spec(4)),), (), (ViewStep(1, 0, spec(2, 2)),), (PlanOutput(slot=1),), (), num_slots=2
    )
    other = Plan(
        "other", (PlanInput("x", spec(4)),), (), (ViewStep(1, 0, spec(2, 2)),), (PlanOutput(slot=1),), (), num_slots=2
    )
    row = Plan(
        "row", (PlanInput("state", spec(4)), PlanInput("row", spec())), (), (AllocateStep(2, spec()),),
        (PlanOutput(slot=0), PlanOutput(slot=2)), (), num_slots=3,
    )  # fmt: skip
    relation = rel_lt(u0, s0)
    assert not isinstance(relation, bool)
    return Plan(
        name="every thing",
        inputs=(
            PlanInput("x", spec(4)),
            PlanInput("flag", TensorSpec(torch.bool, (), ())),
            PlanInput("count", TensorSpec(torch.int64, (), ())),
            PlanInput("eps", None, "float"),
            PlanInput("n", None, "int"),
        ),
        symbols=(SymbolBinding("s0", "scalar", 4), SymbolBinding("u0", "unbacked", 12)),
        steps=(
            AllocateStep(5, spec(4)),
            LaunchStep("k_scale", (0, 5), (s0 + 1,), (Ref(3),), 4, grain=2, scratch_bytes=64),
            ViewStep(6, 5, spec(2, 2, strides=(1, 2))),
            ConstantStep(7, 0),
            HostReadStep("u0", 2, "int"),
            CheckStep(relation, None, "u0 must be small"),
            CheckStep(None, 1, "flag must be set"),
            RandomSeedStep(8, torch.device("cpu"), 4),
            BranchStep(1, inner, other, (5,), (9,)),
            LoopStep(None, row, 4, (0,), (5,), (), (13, 14), (spec(4), spec(4))),
            CopyStep(0, 5),
            WaitStep(5, (0,)),
            HandOverStep((2,)),
            AllocateStep(11, spec(4)),
            AllocateStep(10, spec(2), reuse=11),
            LaunchStep("k_scale", (0, 10), (0,), (0.5,), 2),
        ),
        outputs=(
            PlanOutput(slot=6), PlanOutput(slot=7), PlanOutput(slot=9), PlanOutput(alias_input=0),
            PlanOutput(alias_input=0, view=spec(2, offset=2)), PlanOutput(alias_output=0, view=spec(4)),
            PlanOutput(value=u0 * 2), PlanOutput(value=None), PlanOutput(slot=10), PlanOutput(slot=12),
        ),
        kernels=(SCALE,),
        num_slots=15,
        constants=("abc",),
        mutated=(0,),
    )  # fmt: skip


def table() -> Plan:
    """A launch over two rows."""
    step = LaunchStep("k_scale", (0, 2, 1, 3), (s0, 7), (0.5,), s0 + 4, grain=2, rows=(s0, 4))
    inputs, outputs = (PlanInput("x", spec(s0)), PlanInput("y", spec(4))), (PlanOutput(slot=2), PlanOutput(slot=3))
    steps = (AllocateStep(2, spec(s0)), AllocateStep(3, spec(4)), step)
    return Plan("table", inputs, (SymbolBinding("s0", "size", 0),), steps, outputs, (SCALE,), num_slots=4)


@pytest.mark.parametrize("make", [add_norm, gather, everything, table])
def test_text(make: Callable[[], Plan], golden: Callable[..., None]) -> None:
    verify_plan(make())
    golden(plan_text(make()))


@pytest.mark.parametrize("make", [add_norm, gather, everything, table])
def test_python(make: Callable[[], Plan], golden: Callable[..., None]) -> None:
    golden(plan_python(make()))


def test_python_text_runs(libraries: Libraries) -> None:
    """The printed program, with plain definitions of its free names, gives the result."""

    def empty(dtype: torch.dtype, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        return torch.empty_strided(sizes, strides, dtype=dtype)

    def launch(symbol: str, tensors: Any, ints: Any, floats: Any, units: int) -> None:
        assert (symbol, ints, floats, units) == ("k_add", (), (), 24)
        torch.add(tensors[0], tensors[1], out=tensors[2])

    scope: dict[str, Any] = {"torch": torch, "empty": empty, "launch": launch, "as_planned": lambda value, *_: value}
    exec(plan_python(add_norm()), scope)
    x, y, w = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, 4)
    assert torch.equal(scope["add_norm"](x, y, w)[0], (x + y) @ w)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (spec(), "f32[]"),
        (spec(s0, 4), "f32[s0, 4]"),
        (spec(4, 1, strides=(1, 7)), "f32[4, 1 | 1, 7]"),
        (spec(4, 2, strides=(1, 4), offset=s0), "f32[4, 2 | 1, 4 at s0]"),
        (TensorSpec(torch.bfloat16, (2,), (1,), 0, torch.device("cuda:0")), "bf16[2 @cuda:0]"),
    ],
)
def test_spec_text(layout: TensorSpec, text: str) -> None:
    assert str(layout) == text


@pytest.mark.parametrize(
    ("steps", "outputs", "rule"),
    [
        ((LaunchStep("k_scale", (0, 3), (0,), (1.0,), 1),), (), "P1"),
        ((ViewStep(1, 0, spec(4)), ViewStep(1, 0, spec(4))), (), "P1"),
        ((AllocateStep(1, spec(s0)),), (), "P2"),
        ((LaunchStep("k_none", (0,), (), (), 1),), (), "P3"),
        ((LaunchStep("k_scale", (0,), (0,), (1.0,), 1),), (), "P3"),
        ((CopyStep(0, 0),), (), "P4"),
        ((AllocateStep(1, spec(4), reuse=0),), (), "P4"),
        ((AllocateStep(1, spec(4)), ViewStep(2, 1, spec(2)), AllocateStep(3, spec(4), reuse=1)), (), "P5"),
        ((), (PlanOutput(slot=1),), "P6"),
        ((), (PlanOutput(alias_output=0),), "P6"),
    ],
)
def test_verifier_names_the_rule(steps: Any, outputs: Any, rule: str) -> None:
    plan = Plan("bad", (PlanInput("x", spec(4)),), (), steps, outputs, (SCALE,), num_slots=4)
    with pytest.raises(InvalidPlan, match=rule):
        verify_plan(plan)
