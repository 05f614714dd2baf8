"""Numbers that change from call to call as arguments of torch functions: few compiles, eager's results and errors.

What decides a size is computed in front of the region; where the number chooses an algorithm, there is a compile for
each algorithm.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 3, 4, 1])
UP = [1.0 + 0.13 * step for step in range(8)]
COUNTS = list(range(1, 9))
BELOW = [-1, -2, -3, -4, -5, -6]

PROGRAMS: dict[str, tuple[Any, list[Any], int]] = {
    "end of arange": (lambda v: torch.arange(0, v, 0.1) * 2, UP, 2),
    "step of arange": (lambda v: torch.arange(0, 3.0, v / 4) * 2, UP, 2),
    "start of arange": (lambda v: torch.arange(v, -3.0, -0.25, dtype=torch.float64) * 2, UP, 2),
    "arange of both kinds": (lambda v: torch.arange(0, v, 0.5) * 2, COUNTS, 2),
    "steps of linspace": (lambda v: torch.linspace(0, 1, v + 1) * 2, COUNTS, 2),
    "correction of var": (lambda v: X.var(dim=1, correction=v) + 1, COUNTS, 2),
    "correction of std": (lambda v: torch.std(X, correction=v * 0.5, keepdim=True) + 1, COUNTS, 2),
    "classes": (lambda v: F.one_hot(CLASSES, v + 4).float() * 2, COUNTS, 2),
    "order of a norm": (lambda v: X.norm(v, dim=1) + 1, [2.5, 3.0, 3.5, 0.5, 7.0, 1.5], 2),
    "orders with algorithms": (lambda v: X.norm(p=v) + 1, [*COUNTS, float("inf"), -1.0], 6),
    "order of normalize": (lambda v: F.normalize(X, p=v, dim=0) + 1, [2.5, 3.0, 3.5, 0.5, 7.0, 1.5], 2),
    "nearest": (lambda v: F.interpolate(IMAGE, scale_factor=v) * 2, UP, 2),
    "bilinear": (lambda v: F.interpolate(IMAGE, scale_factor=v, mode="bilinear") * 2, UP, 2),
    "two factors": (lambda v: F.interpolate(IMAGE, scale_factor=(v, 2.0), mode="bicubic") * 2, UP, 2),
    "recomputed": (
        lambda v: F.interpolate(IMAGE, scale_factor=v, mode="bilinear", recompute_scale_factor=True) * 2,
        UP,
        2,
    ),
    "decimals": (lambda v: torch.round(X * 100, decimals=v) + 1, COUNTS, 2),
    "rrelu": (lambda v: F.rrelu(X, v / 10, 0.5), UP, 2),
    "cov": (lambda v: torch.cov(X, correction=v), COUNTS[:6], 2),
    "index from the end": (lambda v: X[:, v] * 2, BELOW, 2),
    "slice from the end": (lambda v: X[:, v:] * v, BELOW, 2),
    "arithmetic below zero": (lambda v: (X * (v // 4) + v % 3, v, abs(v), v - 1, f"{v}"), BELOW, 2),
    "diagonal": (lambda v: X.tril(v) + 1, [*BELOW, *COUNTS], 3),
    "roll": (lambda v: X.roll(v, 1) * 2, [*BELOW, *COUNTS], 3),
    "signs": (lambda v: X * v if v < 0 else X - v, [*BELOW, 0, *COUNTS, -3, 5], 4),
    "padding": (lambda v: F.pad(X, (1, v)) + 1, BELOW, 2),
}


def parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_compiles(name: str) -> None:
    program, values, most = PROGRAMS[name]
    compiled = kiln.compile(program, options={"cache": False})
    for value in values:
        for found, expected in zip(parts(compiled(value)), parts(program(value)), strict=True):
            assert type(found) is type(expected)
            if isinstance(expected, Tensor):
                torch.testing.assert_close(found, expected)
            else:
                assert found == expected
    report = kiln.report_of(compiled)
    assert (report.eager, report.breaks) == (0, [])
    assert report.compiles <= most


ERRORS: dict[str, tuple[Any, list[Any], Any]] = {
    "arange that goes nowhere": (lambda v: torch.arange(0, v, 0.5) * 2, [1.0, 1.5, 2.0], -0.25),
    "a step of zero": (lambda v: torch.arange(0, 1.0, v) * 2, [0.1, 0.2, 0.3], 0.0),
    "too few classes": (lambda v: F.one_hot(CLASSES, v) * 2, [5, 6, 7], 3),
    "index out of range": (lambda v: X[:, v] * 2, [-1, -2, -3], -9),
    "a factor of zero": (lambda v: F.interpolate(IMAGE, scale_factor=v) * 2, [1.5, 1.2, 1.3], 0.0),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_eager(name: str) -> None:
    program, values, wrong = ERRORS[name]
    compiled = kiln.compile(program, options={"cache": False})
    for value in values:
        torch.testing.assert_close(compiled(value), program(value))
    with pytest.raises(Exception) as expected:
        program(wrong)
    with pytest.raises(expected.type):
        compiled(wrong)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_gradients_at_scale_factors_that_change(mode: str) -> None:
    def loss(x: Tensor, factor: float) -> Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode).square().sum() * x.var(correction=factor)

    compiled = kiln.compile(loss, options={"cache": False})
    for factor in UP[:5]:
        x, y = IMAGE.clone().requires_grad_(), IMAGE.clone().requires_grad_()
        loss(x, factor).backward()
        compiled(y, factor).backward()
        torch.testing.assert_close(y.grad, x.grad)
    report = kiln.report_of(compiled)
    assert (report.eager, report.breaks) == (0, [])
    assert report.compiles <= 2


def test_an_attribute_below_zero() -> None:
    class Shift(torch.nn.Module):
        step = -1

        def forward(self, x: Tensor) -> Tensor:
            return x[:, self.step] * self.step

    model = Shift()
    compiled = kiln.compile(model, options={"cache": False})
    for step in BELOW:
        model.step = step
        assert torch.equal(compiled(X), X[:, step] * step)
    assert kiln.report_of(compiled).compiles == 2


def test_back_ends_and_second_derivatives_below_zero() -> None:
    """The region takes the number with the other sign, and so do the graph of a back end and the eager replay."""

    def program(x: Tensor, n: int) -> Tensor:
        return (x**3 * n)[:, n:].sum()

    def passed_on(module: Any, inputs: Any) -> Any:
        return module.forward

    for compiled in (kiln.compile(program, backend=passed_on), kiln.compile(program, options={"cache": False})):
        for n in BELOW[:3]:
            seconds = []
            for function in (program, compiled):
                x = X.clone().requires_grad_()
                (first,) = torch.autograd.grad(function(x, n), x, create_graph=True)
                seconds.append(torch.autograd.grad(first.sum(), x)[0])
            torch.testing.assert_close(*seconds)


def test_a_number_that_is_divided_by_a_size() -> None:
    """`cross_entropy` divides its smoothing by the number of classes."""

    def program(x: torch.Tensor, smoothing: float) -> Any:
        loss = torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.long), label_smoothing=smoothing)
        return loss, *torch.autograd.grad(loss, x)

    compiled = kiln.compile(program, dynamic=True, options={"cache": False})
    for classes, smoothing in ((3, 0.15), (4, 0.25), (5, 0.1), (5, 0.0), (3, 0.5)):
        x = torch.randn(4, classes, generator=torch.Generator().manual_seed(classes), requires_grad=True)
        torch.testing.assert_close(compiled(x, smoothing), program(x, smoothing))
    assert kiln.report_of(compiled).compiles <= 3


POWERS: dict[str, Any] = {
    "an exponent": lambda x, n: x**n,
    "an exponent in place": lambda x, n: (x * 1).pow_(n),
    "a base": lambda x, n: n**x,
    "a base of torch.pow": lambda x, n: torch.pow(n, x) + torch.pow(x, n),
    "a power mean": lambda x, n: F.lp_pool1d(x, n, 2),
    "a largest norm": lambda x, n: x.renorm(n, 0, 1.0),
}


@pytest.mark.parametrize("name", POWERS)
def test_gradients_of_powers_that_change(name: str) -> None:
    compiled = kiln.compile(POWERS[name], options={"cache": False})
    for n in (2, 3, 4, 1, 0 if "mean" not in name and "norm" not in name else 5, 2, 2.5, 0.5):
        x, y = X.abs().requires_grad_(), X.abs().requires_grad_()
        expected = POWERS[name](x, n)
        found = compiled(y, n)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert kiln.report_of(compiled).eager == 0
