"""A backward that cannot be compiled: gradients come from eager, and the user is told once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import kiln
from kiln.pipeline import backward_compile
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import InternalFault


def function(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).sum()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("a fault of the compiler")

    monkeypatch.setattr(backward_compile, "backward_for", fail)


@pytest.mark.usefixtures("broken")
def test_gradients_come_from_eager() -> None:
    compiled = kiln.compile(function)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    expected = torch.autograd.grad(function(x, w), [x, w])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for retain in (True, False):
            result = compiled(x, w)
            for ours, theirs in zip(torch.autograd.grad(result, [x, w], retain_graph=retain), expected, strict=True):
                torch.testing.assert_close(ours, theirs)
                assert not ours.requires_grad
        (only,) = torch.autograd.grad(compiled(x, w), [w])
    torch.testing.assert_close(only, expected[1])
    ours = [str(warning.message) for warning in seen if issubclass(warning.category, KilnWarning)]
    assert len(ours) == 1 and "KILN9000" in ours[0] and "a fault of the compiler" in ours[0]
    assert kiln.report_of(compiled).eager >= 1
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, [x])


@pytest.mark.usefixtures("broken")
def test_fullgraph_raises() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2)
    with pytest.raises(InternalFault, match="a fault of the compiler"):
        kiln.compile(function, fullgraph=True)(x, w).backward()


@pytest.mark.usefixtures("broken")
def test_what_cannot_be_run_again_raises() -> None:
    x, w = torch.randn(3, 1, requires_grad=True), torch.ones(100_000)  # more than is kept for a replay
    with pytest.raises(ZeroDivisionError):
        kiln.compile(lambda x, w: (x * w.add_(1)).sum())(x, w).backward()


@pytest.mark.usefixtures("broken")
@pytest.mark.filterwarnings("ignore")
def test_random_numbers_are_those_of_the_forward() -> None:
    x = torch.ones(64, requires_grad=True)
    result = kiln.compile(lambda x: F.dropout(x, 0.5))(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, result.detach())


def test_a_damaged_backward_on_disk_is_compiled_again(tmp_path: Path) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    expected = torch.autograd.grad(function(x, w), [x, w])
    for _ in range(2):
        compiled = kiln.compile(function, options={"cache": True, "cache_dir": str(tmp_path)})
        for ours, theirs in zip(torch.autograd.grad(compiled(x, w), [x, w]), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        files = [path for path in (tmp_path / "backward").rglob("*") if path.is_file()]
        assert len(files) == 1
        files[0].write_bytes(files[0].read_bytes()[:-20])
