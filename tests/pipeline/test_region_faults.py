"""A region that raises where eager does not: the call gets eager's result, and the user is told once."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import InternalFault


def solved(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve(a, b) + 1


def drawn(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve(a, b) + torch.rand(4, 4)


def chosen(a: Tensor, b: Tensor) -> Tensor:
    positive = b[b > 0]
    return torch.linalg.solve(a, a) + (positive.max() if len(positive) else 0)


A, B = torch.eye(4) * 2, torch.ones(4, 4)


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have every region raise `error`; the result is one item longer for each run."""
    runs: list[int] = []

    def fail(*inputs: Any) -> Any:
        runs.append(len(runs))
        raise error

    monkeypatch.setattr("kiln.pipeline.compiled_plan.make_executor", lambda *_: fail)
    return runs


def faults_of(call: Any, count: int) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(count):
            call()
    return [str(warning.message) for warning in seen if issubclass(warning.category, KilnWarning)]


def test_the_fault_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = fail_with(RuntimeError("wrong sizes"), monkeypatch)
    compiled = kiln.compile(solved)
    (text,) = faults_of(lambda: torch.testing.assert_close(compiled(A, B), solved(A, B)), 3)
    assert "KILN9000" in text and "wrong sizes" in text
    assert len(runs) == 1, "the region is given up"
    assert kiln.report_of(compiled).eager == 1


def test_fullgraph_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(RuntimeError("wrong sizes"), monkeypatch)
    with pytest.raises(InternalFault, match="wrong sizes"):
        kiln.compile(solved, fullgraph=True)(A, B)


def test_an_error_that_eager_raises_is_none() -> None:
    compiled = kiln.compile(solved)

    def call() -> None:
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(torch.zeros(4, 4), B)

    assert faults_of(call, 2) == []
    torch.testing.assert_close(compiled(A, B), solved(A, B))


@pytest.mark.parametrize("function", [drawn, chosen])
def test_errors_that_other_numbers_may_cause_are_none(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = fail_with(RuntimeError("of these numbers"), monkeypatch)
    compiled = kiln.compile(function)
    assert faults_of(lambda: compiled(A, B), 2) == []
    assert runs


def test_a_lack_of_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(torch.OutOfMemoryError("full"), monkeypatch)
    compiled = kiln.compile(solved)
    assert faults_of(lambda: compiled(A, B), 2) == []


def handled(a: Tensor, b: Tensor) -> Tensor:
    try:
        return torch.linalg.solve(a, b)
    except RuntimeError:
        return b


def suppressed(a: Tensor, b: Tensor) -> Tensor:
    with contextlib.suppress(RuntimeError):
        b = torch.linalg.solve(a, b)
    return b


@pytest.mark.parametrize("function", [handled, suppressed])
def test_an_error_that_the_program_handles_is_none(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(RuntimeError("of these numbers"), monkeypatch)
    compiled = kiln.compile(function)
    assert faults_of(lambda: compiled(A, B), 2) == []


def test_contexts_of_torch_handle_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(4, 4)

    def without_gradients(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            return layer(torch.linalg.solve(a, b))

    fail_with(RuntimeError("wrong sizes"), monkeypatch)
    (text,) = faults_of(lambda: kiln.compile(without_gradients)(A, B), 1)
    assert "wrong sizes" in text
