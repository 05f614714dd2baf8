"""The Python executor on hand-written plans."""

from __future__ import annotations

import pytest
import torch

from kiln.runtime.errors import CheckFailed, IndexOutOfRange, InputMismatch
from kiln.runtime.libraries import Libraries
from kiln.runtime.plan import CallAten, Plan, PlanInput, PlanOutput, Ref, View
from kiln.runtime.python_executor import PythonExecutor
from tests.runtime.samples import add_norm, gather, spec
from tests.runtime.test_plan_text import everything


def test_runs_for_every_size(libraries: Libraries) -> None:
    run = PythonExecutor(add_norm(), libraries)
    for rows in (1, 3, 7):
        x, y, w = torch.randn(rows, 8), torch.randn(rows, 8), torch.randn(8, 4)
        assert torch.equal(run(x, y, w)[0], (x + y) @ w)


def test_steps_one_at_a_time(libraries: Libraries) -> None:
    x, y, w = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, 4)
    run = PythonExecutor(add_norm(), libraries).start((x, y, w))
    seen = []
    while (step := run.step()) is not None:
        seen.append(type(step).__name__)
        if len(seen) == 2:
            assert torch.equal(run.values[3], x + y)
    assert seen == ["Allocate", "Launch", "CallAten", "Free"]
    assert run.values[3] is None


def test_index_out_of_range_is_reported(libraries: Libraries) -> None:
    run = PythonExecutor(gather(), libraries)
    assert torch.equal(run(torch.arange(5.0), torch.tensor([4, 0, 1]))[0], torch.tensor([4.0, 0.0, 1.0]))
    with pytest.raises(IndexOutOfRange, match=r"KILN4001[\s\S]*user.py:7"):
        run(torch.arange(5.0), torch.tensor([4, 5, 1]))
    with pytest.raises(IndexError):
        run(torch.arange(5.0), torch.tensor([-1, 0, 1]))


def test_every_kind_of_step(libraries: Libraries) -> None:
    constant = torch.tensor([7.0])
    x = torch.arange(4.0)
    old = x.clone()
    version = x._version
    run = PythonExecutor(everything(), libraries, [constant])
    outs = run(x, torch.tensor(True), torch.tensor(2), 3.0, 5)
    new = old * 3.0 + 6.0
    assert torch.equal(x, new) and x._version == version + 1
    assert outs[1] is constant and outs[3] is x and outs[7] is None
    assert torch.equal(outs[0], new.view(2, 2).t()) and torch.equal(outs[2], new.view(2, 2))
    assert torch.equal(outs[4], new[2:]) and outs[4].data_ptr() == x[2:].data_ptr()
    assert outs[5].data_ptr() == outs[0].data_ptr()
    assert outs[6] == 4 and outs[9] == 2
    assert torch.equal(outs[8], x[:2] * 0.5)
    with pytest.raises(CheckFailed, match="u0 must be small"):
        run(x, torch.tensor(True), torch.tensor(5), 3.0, 5)
    with pytest.raises(CheckFailed, match="flag must be set"):
        run(x, torch.tensor(False), torch.tensor(2), 3.0, 5)


def test_wrong_arguments_are_refused(libraries: Libraries) -> None:
    run = PythonExecutor(add_norm(), libraries)
    x, w = torch.randn(3, 8), torch.randn(8, 4)
    for bad in ((x, x), (x, x, 1.0), (x, x[:2], w), (x, x.double(), w), (x, x, torch.randn(4, 8).t())):
        with pytest.raises(InputMismatch, match="KILN4003"):
            run(*bad)


def test_wrong_prediction_is_copied_into_the_planned_layout(libraries: Libraries) -> None:
    """The plan believes that the op returns a contiguous tensor; it returns a transposed view."""
    plan = Plan(
        "wrong",
        (PlanInput("x", spec(2, 3)),),
        (),
        (
            CallAten("aten.t.default", (Ref(0),), (), (1,), (spec(3, 2),)),
            View(2, 1, spec(6)),
        ),
        (PlanOutput(slot=2),),
        (),
        num_slots=3,
    )
    x = torch.randn(2, 3)
    assert torch.equal(PythonExecutor(plan, libraries)(x)[0], x.t().reshape(6))


def test_autograd_and_autocast_do_not_reach_the_steps(libraries: Libraries) -> None:
    run = PythonExecutor(add_norm(), libraries)
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        (out,) = run(x, x, w)
    assert out.dtype == torch.float32 and not out.requires_grad
