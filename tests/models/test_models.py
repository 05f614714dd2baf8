"""The models of the suite `cpu`: one graph without a break, results and gradients as eager's."""

from __future__ import annotations

import pytest
import torch

import kiln
from kiln.api import report_of
from kiln.cli.bench.models import Case, build
from kiln.cli.bench.suite import SuiteRow
from kiln.report import Report

from .tiny import rows, tiny

pytestmark = pytest.mark.models
RUNS = [
    pytest.param(row, train, id=f"{row.title}-{'train' if train else 'infer'}")
    for train in (False, True)
    for row in rows(train)
]
MASKED = [row for row in rows(False) if row.variant == "ones"]


def run_both(row: SuiteRow, train: bool, backend: str) -> Report:
    """Eager and compiled on equal models; equal results, gradients and buffers."""
    eager, mine = build(row, train=train, seed=0), build(row, train=train, seed=0)
    compiled = kiln.compile(mine.model, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, got = eager.run(eager.model), mine.run(compiled)
        assert len(expected) == len(got)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, **tolerance(backend))
    for (name, one), other in zip(mine.model.state_dict().items(), eager.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, msg=name, **tolerance(backend))
    return report_of(compiled)


def tolerance(backend: str) -> dict[str, float]:
    """A user backend gets the program's own torch calls: nothing may differ."""
    return {"rtol": 0.0, "atol": 0.0} if backend == "eager" else {"rtol": 1e-3, "atol": 1e-4}


def check_report(report: Report, row: SuiteRow, train: bool) -> None:
    """One region per compile. A classifier that trains notes the kind of its loss in its config at the first call."""
    assert report.breaks == [] and report.eager == 0
    assert report.compiles == (2 if train and row.data["input"] == "image" else 1)
    assert report.regions == report.compiles


@pytest.mark.parametrize(("row", "train"), RUNS)
def test_capture(row: SuiteRow, train: bool) -> None:
    small = tiny(row)
    check_report(run_both(small, train, "eager"), small, train)


@pytest.mark.parametrize(("row", "train"), RUNS)
def test_compiled(row: SuiteRow, train: bool) -> None:
    """Through every stage; kernels come from the store where an earlier run left them there."""
    small = tiny(row)
    check_report(run_both(small, train, "kiln"), small, train)


@pytest.mark.parametrize("row", MASKED, ids=[row.name for row in MASKED])
def test_masks_may_alternate(row: SuiteRow) -> None:
    """What a mask holds picks a path in eager; whatever it is next, the result is eager's, and variants are few."""
    case = build(tiny(row), train=False, seed=0)
    compiled = kiln.compile(case.model, backend="eager", fullgraph=True)
    ones = case.kwargs["attention_mask"]
    right, left, holes = ones.clone(), ones.clone(), ones.clone()
    right[:, 9:] = 0
    left[:, :3] = 0
    holes[:, ::2] = 0
    for mask in (ones, right, ones, left, holes, right, ones):
        now = Case(case.model, (), {**case.kwargs, "attention_mask": mask}, train=False)
        for got, expected in zip(now.run(compiled), now.run(case.model), strict=True):
            torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0)
    assert report_of(compiled).compiles <= 3


OTHER_SIZES = ((2, 16), (3, 24), (5, 9), (2, 33), (4, 16))
"""Batch and length."""


def run_sizes(row: SuiteRow, train: bool, backend: str, dynamic: bool | None) -> Report:
    """One compiled model under several sizes; a seed for the weights, another for the inputs."""
    eager, mine = build(tiny(row), train=train, seed=0), build(tiny(row), train=train, seed=0)
    compiled = kiln.compile(mine.model, backend=backend, fullgraph=True, dynamic=dynamic)
    for batch, length in OTHER_SIZES:
        given = build(tiny(row, batch, length), train=train, seed=1).kwargs
        mine.kwargs = eager.kwargs = given
        for one, other in zip(mine.run(compiled), eager.run(eager.model), strict=True):
            torch.testing.assert_close(one, other, **tolerance(backend))
    return report_of(compiled)


@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize(("row", "train"), RUNS)
def test_one_compile_for_all_sizes(row: SuiteRow, train: bool, backend: str) -> None:
    check_report(run_sizes(row, train, backend, dynamic=True), row, train)


@pytest.mark.parametrize("row", MASKED, ids=[row.name for row in MASKED])
def test_a_size_that_changed_once_becomes_a_symbol(row: SuiteRow) -> None:
    report = run_sizes(row, False, "eager", dynamic=None)
    assert report.compiles == 2 and report.breaks == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize(("row", "train"), RUNS)
def test_full_size(row: SuiteRow, train: bool, backend: str) -> None:
    check_report(run_both(row, train, backend), row, train)
