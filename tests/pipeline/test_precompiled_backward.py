"""A backward whose kernels are compiled before its first call, as on a GPU; here with CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline import backward_compile, differentiable
from kiln.pipeline.backward import BackwardCompiler
from kiln.support.target import cuda_gpu


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[bool, ...], tuple[bool, ...]]]:
    """The masks for which a backward is compiled, in order; forwards count as those of a GPU."""
    made = []
    real = BackwardCompiler.compile

    def compile_(self: BackwardCompiler, needed: Sequence[bool], given: Sequence[bool], context: Any) -> Any:
        made.append((tuple(needed), tuple(given)))
        return real(self, needed, given, context)

    monkeypatch.setattr(BackwardCompiler, "compile", compile_)
    monkeypatch.setattr(differentiable, "region_target", lambda graph, host: cuda_gpu((9, 0), 132))
    monkeypatch.setattr(differentiable, "compiles_elsewhere", lambda workers: True)
    return made


def with_loss(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return y.square().sum(), y


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)


def gradients(function: Callable[..., Any], *, of: int = 0) -> list[Tensor]:
    x, w = leaves()
    return list(torch.autograd.grad(function(x, w)[of].sum(), [w]))


def test_the_backward_of_the_loss(compiles: list[Any], tmp_path: Path) -> None:
    compiled = kiln.compile(with_loss, options={"cache": True, "cache_dir": str(tmp_path)})
    compiled(*leaves())
    assert compiles == [((False, True), (True, False))]
    before = kiln.report_of(compiled).kernels
    torch.testing.assert_close(gradients(compiled), gradients(with_loss))
    assert len(compiles) == 1
    assert kiln.report_of(compiled).kernels > before  # reported on first use
    again = kiln.compile(with_loss, options={"cache": True, "cache_dir": str(tmp_path)})
    torch.testing.assert_close(gradients(again), gradients(with_loss))
    assert (kiln.report_of(again).loaded, len(compiles)) == (1, 1)  # found on disk


def test_another_backward_than_expected(compiles: list[Any]) -> None:
    compiled = kiln.compile(with_loss, options={"cache": False})
    torch.testing.assert_close(gradients(compiled, of=1), gradients(with_loss, of=1))
    assert [given for _, given in compiles] == [(True, False), (False, True)]
    torch.testing.assert_close(gradients(compiled), gradients(with_loss))
    assert len(compiles) == 2


def test_what_fails_ahead_is_told_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, compiles: list[Any]) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("a fault of the compiler")

    monkeypatch.setattr(backward_compile, "backward_for", fail)
    compiled = kiln.compile(with_loss, options={"cache": False})
    loss, _ = compiled(*leaves())
    assert kiln.report_of(compiled).eager == 0
    with pytest.warns(UserWarning, match="a fault of the compiler"):
        loss.backward()
    assert len(compiles) == 2


def test_without_a_gpu_nothing_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch, compiles: list[Any]) -> None:
    monkeypatch.setattr(differentiable, "region_target", lambda graph, host: host)
    compiled = kiln.compile(with_loss, options={"cache": False})
    loss, _ = compiled(*leaves())
    assert compiles == []
    loss.backward()
    assert len(compiles) == 1
