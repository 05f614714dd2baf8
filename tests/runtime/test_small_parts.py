"""Small functions of the run time and of what it replays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kiln.capture.interpreter.control_flow import cond_operator
from kiln.graph.trace.gradients import accumulated_gradients
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.set_data import set_data
from kiln.pipeline.eager_replay_writer import changes_autograd
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref
from kiln.plan.python_view import plan_python
from kiln.plan.steps import AtenStep
from kiln.runtime.cuda_graphs.device import first_line
from kiln.runtime.eager_replay import ambient, ambient_state
from tests.runtime.samples import spec


@pytest.mark.parametrize(("target", "changes"), [
    *((name, True) for name in ("requires_grad_", "retain_grad", "register_hook")),
    *((name, False) for name in ("add_", "detach_", "zero_", "add", "__add__", torch.add, accumulated_gradients)),
    (set_data, True),
])  # fmt: skip
def test_which_calls_are_not_made_a_second_time(target: Any, changes: bool) -> None:
    call: Any = TorchCall.__new__(TorchCall)
    object.__setattr__(call, "target", target)
    assert changes_autograd(call) == changes


@pytest.mark.parametrize("outer", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [torch.float32, torch.float64])
def test_a_replay_has_the_default_dtype_of_its_capture(inner: torch.dtype, outer: torch.dtype) -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(inner)
        state = ambient_state()
        torch.set_default_dtype(outer)
        with torch.no_grad(), ambient(state):
            assert torch.get_default_dtype() is inner and torch.is_grad_enabled()
        assert torch.get_default_dtype() is outer
    finally:
        torch.set_default_dtype(before)


def test_the_first_line_of_an_error_without_a_text_is_its_class() -> None:
    assert first_line(RuntimeError("  out of memory\nat x")) == "out of memory"
    assert first_line(RuntimeError()) == first_line(RuntimeError(" \n")) == "RuntimeError"


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_python_takes(taken: bool) -> None:
    x = torch.ones(2)
    for pred in (taken, torch.tensor(taken), torch.tensor([taken])):
        assert torch.equal(cond_operator(pred, lambda x: x + 1, lambda x: x - 1, (x,)), x + (1 if taken else -1))  # type: ignore[arg-type]


def test_results_that_an_operator_leaves_out_have_no_name_in_python() -> None:
    step = AtenStep("aten.native_dropout.default", (Ref(0), 0.5, True), (), (1, None), (spec(4), None))
    text = plan_python(Plan("drop", (PlanInput("x", spec(4)),), (), (step,), (PlanOutput(slot=1),), (), num_slots=2))
    lines = [line.strip() for line in text.splitlines() if "native_dropout" in line]
    assert len(lines) == 1 and lines[0].split(" = ")[0].split(", ")[1] == "_" != lines[0][0]
