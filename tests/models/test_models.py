"""The models of the suite `cpu`: one graph without a break, results and gradients as exact as eager's.

A user back end runs the captured graph itself, so its results equal eager's. Compiled results are compared with a
float64 reference, over several seeds, by the rule of the benchmark: at most twice eager's error in each tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln
from kiln.api import report_of
from kiln.report import Report
from kiln_bench.accuracy import Compared, compare, judge
from kiln_bench.models import Case, build, in_float64
from kiln_bench.suite import SuiteRow
from kiln_bench.tiny import rows, tiny

pytestmark = pytest.mark.models
RUNS = [
    pytest.param(row, train, id=f"{row.title}-{'train' if train else 'infer'}")
    for train in (False, True)
    for row in rows(train)
]
MASKED = [row for row in rows(False) if row.variant == "ones"]


SEEDS = 6


def results(case: Case, model: Callable[..., object]) -> list[torch.Tensor]:
    """Outputs, gradients and buffers after a run of `model`, which is the model of `case` or compiled from it."""
    found = [tensor.clone() for tensor in case.run(model)]
    return found + [buffer.clone() for buffer in case.model.buffers()]


def compared(compiled: Callable[..., object], mine: Case, case: Case) -> list[Compared]:
    """Errors on the weights and inputs of `case`; `compiled` is the model of `mine`, compiled."""
    mine.model.load_state_dict(case.model.state_dict())
    mine.args, mine.kwargs = case.args, case.kwargs
    wide = in_float64(case)
    return compare(results(mine, compiled), results(case, case.model), results(wide, wide.model))


def check_errors(draws: list[list[Compared]]) -> None:
    verdict = judge(draws)
    assert verdict.right, f"result {verdict.tensor}: {verdict.ours}, eager {verdict.eager}"


def run_exact(row: SuiteRow, train: bool) -> Report:
    """Eager and captured on equal models: equal results, gradients and buffers."""
    eager, mine = build(row, train=train, seed=0), build(row, train=train, seed=0)
    compiled = kiln.compile(mine.model, backend="eager", fullgraph=True)
    for _ in range(2):
        check_equal(results(mine, compiled), results(eager, eager.model))
    return report_of(compiled)


def check_equal(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    for number, (ours, eagers) in enumerate(zip(got, expected, strict=True)):
        torch.testing.assert_close(ours, eagers, rtol=0.0, atol=0.0, msg=f"result {number}")


def run_compiled(row: SuiteRow, train: bool, seeds: int = SEEDS) -> Report:
    """One compiled model on several weights and inputs."""
    mine = build(row, train=train, seed=0)
    compiled = kiln.compile(mine.model, fullgraph=True)
    check_errors([compared(compiled, mine, build(row, train=train, seed=seed)) for seed in range(seeds)])
    return report_of(compiled)


def check_report(report: Report, row: SuiteRow, train: bool) -> None:
    """One region per compile; a training classifier has two, as its first call sets its config's kind of loss."""
    assert report.breaks == [] and report.eager == 0
    assert report.compiles == (2 if train and row.data["input"] == "image" else 1)
    assert report.regions == report.compiles


@pytest.mark.parametrize(("row", "train"), RUNS)
def test_capture(row: SuiteRow, train: bool) -> None:
    small = tiny(row)
    check_report(run_exact(small, train), small, train)


@pytest.mark.parametrize(("row", "train"), RUNS)
def test_compiled(row: SuiteRow, train: bool) -> None:
    """Through every stage; kernels come from the store where an earlier run left them there."""
    small = tiny(row)
    check_report(run_compiled(small, train), small, train)


@pytest.mark.parametrize("row", MASKED, ids=[row.name for row in MASKED])
def test_masks_may_alternate(row: SuiteRow) -> None:
    """The values of a mask choose a path in eager: results are eager's for all of them, with few variants."""
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
    """One compiled model on several sizes."""
    mine = build(tiny(row), train=train, seed=0)
    compiled = kiln.compile(mine.model, backend=backend, fullgraph=True, dynamic=dynamic)
    draws = []
    for seed, (batch, length) in enumerate(OTHER_SIZES):
        case = build(tiny(row, batch, length), train=train, seed=seed)
        if backend == "kiln":
            draws.append(compared(compiled, mine, case))
        else:
            mine.model.load_state_dict(case.model.state_dict())
            mine.args, mine.kwargs = case.args, case.kwargs
            check_equal(results(mine, compiled), results(case, case.model))
    if draws:
        check_errors(draws)
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
@pytest.mark.parametrize(("row", "train"), RUNS)
def test_full_size(row: SuiteRow, train: bool) -> None:
    check_report(run_exact(row, train), row, train)
    check_report(run_compiled(row, train, seeds=2), row, train)
