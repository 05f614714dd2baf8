"""`saved_tensors_hooks` that a frame enters: gradients as in eager; hooks that change values run eager."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.nn.functional import batch_norm

import kiln
from kiln.pipeline.session import KilnWarning

NET = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 3))
OUTSIDE = saved_tensors_hooks(lambda t: t * 2, lambda t: t)
SEEN: list[int] = []


def scaled(x: Tensor) -> Tensor:
    factor = 3.0
    with saved_tensors_hooks(lambda t: (t * 2, factor), lambda packed: packed[0] / packed[1]):
        y = NET(x).softmax(-1) ** 2
    return y.exp() * x


def nested(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t + 1, lambda t: t):
        y = x.sin()
        with saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
            y = y * (x @ x)
        return y * x


def on_cpu(x: Tensor) -> Tensor:
    with save_on_cpu():
        y = x.sin() * x
    with disable_saved_tensors_hooks("none here"):
        return y.exp()


def from_outside(x: Tensor) -> Tensor:
    with OUTSIDE:
        return x.sin()


def in_inference(x: Tensor) -> Tensor:
    with torch.no_grad(), saved_tensors_hooks(lambda t: 1 / 0, lambda t: t):
        return x.sin()


def copied(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: [t.detach().clone(), 1], lambda packed: packed[0].view(packed[0].shape)):
        return (x.t().exp() * x).cpu()


def with_effects(x: Tensor) -> Tensor:
    def pack(t: Tensor) -> Tensor:
        SEEN.append(t.dim())
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        return x.exp() * 2


def outcome(function: Any) -> Any:
    torch.manual_seed(0)
    NET.zero_grad()
    SEEN.clear()
    x = torch.randn(3, 3, requires_grad=True)
    y = function(x)
    if y.requires_grad:
        y.sum().backward()
    gradients = [x.grad, *[parameter.grad for parameter in NET.parameters()]]
    return [None if part is None else part.detach().double().numpy().round(4).tolist() for part in (y, *gradients)]


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_as_eager(backend: str) -> None:
    keywords: Any = {} if backend == "kiln" else {"backend": backend}
    for function in (on_cpu, copied, in_inference):
        compiled = kiln.compile(function, options={"cache": False}, **keywords)
        expected = outcome(function)
        for _ in range(2):
            assert outcome(compiled) == expected, function
        report = compiled.report()
        assert report.regions == 1 and not report.breaks and not report.eager_reasons, (function, report)


def test_formulas_that_read_other_values_than_eager() -> None:
    """A hook that changes values shows which ones the formula of a gradient reads."""

    def program(x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda t: t * 1.5, lambda t: t):
            y = nn.functional.logsigmoid(x) + torch.logit(x, 0.1)
        return y * 2

    assert outcome(kiln.compile(program, options={"cache": False})) == outcome(program)


@pytest.mark.filterwarnings("ignore:.*KILN1092")
def test_hooks_that_change_values_run_eager() -> None:
    for function in (scaled, nested, from_outside):
        compiled = kiln.compile(function, options={"cache": False})
        assert outcome(compiled) == outcome(compiled) == outcome(function), function
        assert {reason.code for reason in compiled.report().eager_reasons} == {"KILN1092"}


def test_effects_break() -> None:
    compiled = kiln.compile(with_effects, backend="eager", options={"cache": False})
    expected, seen = outcome(with_effects), list(SEEN)
    for _ in range(2):
        assert (outcome(compiled), SEEN) == (expected, seen)
    assert compiled.report().breaks


def test_hooks_outside_see_what_eager_saves() -> None:
    """Unless they are torch's own, or say that they preserve values."""

    def program(x: Tensor) -> Tensor:
        return (x.prod(1) + batch_norm(x, None, None, training=True).sum(1)).exp() * 2

    def keep(t: Tensor) -> Tensor:
        return t.clone()

    keep.preserves_values = True  # type: ignore[attr-defined]

    def under(hooks: Any, function: Any) -> Any:
        x = torch.linspace(0.5, 1, 9, dtype=torch.float64).view(3, 3).requires_grad_()
        with hooks:
            y = function(x)
        y.sum().backward()
        assert x.grad is not None
        return x.grad.numpy().round(8).tolist()

    compiled = kiln.compile(program)
    for hooks, runs_eager in (
        (save_on_cpu(), False),
        (saved_tensors_hooks(keep, lambda t: t), False),
        (saved_tensors_hooks(lambda t: t * 2, lambda t: t), True),
    ):
        expected = under(hooks, program)
        with pytest.warns(KilnWarning, match="KILN1092") if runs_eager else nullcontext():
            assert under(hooks, compiled) == expected
    assert under(nullcontext(), compiled) == under(nullcontext(), program)
    assert compiled.report().compiles == 1
