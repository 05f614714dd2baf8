"""NumPy's functions of Python numbers that change: as in eager, in two compiles, and scalars of NumPy as results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kiln

Program = Callable[..., Any]
OF_FLOATS = (
    "np.cos(np.pi * n / 10)", "np.sqrt(n)", "np.exp(-n)", "np.log1p(n)", "np.tanh(n) * 3", "2 - np.sin(n)",
    "np.floor(n * 3)", "np.ceil(n * 3)", "np.rint(n * 3)", "np.trunc(n * 3)", "np.square(n)", "np.absolute(n - 5)",
    "np.maximum(n, 2.5)", "np.minimum(n, 4)", "np.clip(n, 1.5, 6)", "np.clip(n, a_min=2, a_max=5.5)", "np.divide(n, 3)",
    "-np.sqrt(n)", "abs(np.sin(n * 4))", "np.power(n, 1.5)", "np.remainder(n * 7, 2)", "math.sqrt(np.exp(n))",
    "int(16 * np.sqrt(n))", "float(np.sqrt(n))", "np.sqrt(n).item()", "np.sqrt(n) ** 2 + np.cos(n) / 2",
)  # fmt: skip
OF_INTEGERS = (
    "np.clip(n, 3, 8)", "np.clip(n - 5, 0, 3)", "np.maximum(n, 4)", "np.minimum(n, 4.5)", "np.add(n, 2)", "np.sqrt(n)",
    "np.floor_divide(n, 3)", "np.divide(n, 4)", "np.clip(n, 1, 5) - np.clip(n, 2, 9)", "np.floor(n)", "np.cos(n)",
)  # fmt: skip


def program(text: str) -> Program:
    return eval(f"lambda x, n: (x * ({text}), {text})", {"np": np, "math": math})  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", OF_FLOATS)
def test_floats(text: str) -> None:
    function = program(text)
    compiled = kiln.compile(function)
    for number in (1.1, 2.25, 3.3, 4.75, 5.9, 7.2):
        x = torch.arange(3.0, dtype=torch.float64)
        left, right = compiled(x, number), function(x, number)
        assert torch.allclose(left[0], right[0], rtol=1e-14) and left[0].dtype is right[0].dtype
        assert type(left[1]) is type(right[1]) and left[1] == pytest.approx(right[1], rel=1e-14)
    assert kiln.report_of(compiled).compiles <= 3, kiln.report_of(compiled)


@pytest.mark.parametrize("text", OF_INTEGERS)
def test_integers(text: str) -> None:
    function = program(text)
    compiled = kiln.compile(function)
    for number in range(2, 11):
        x = torch.arange(3.0)
        left, right = compiled(x, number), function(x, number)
        assert torch.allclose(left[0], right[0]) and left[0].dtype is right[0].dtype
        assert type(left[1]) is type(right[1]) and left[1] == pytest.approx(right[1], rel=1e-14)
    assert kiln.report_of(compiled).compiles <= 3, kiln.report_of(compiled)


@pytest.mark.filterwarnings("ignore:invalid value|divide by zero:RuntimeWarning")
@pytest.mark.parametrize("text", ["np.sqrt(n - 3)", "np.log(n - 3)", "np.divide(1.0, n - 3)", "np.maximum(n, n - 1)"])
def test_outside_of_the_domain(text: str) -> None:
    """NumPy returns NaN and infinities where `math` raises."""
    function = program(text)
    compiled = kiln.compile(function)
    for number in (5.0, 4.0, 3.0, 2.0, math.nan, 6.0, math.inf, 4.5):
        left, right = compiled(torch.ones(2), number)[1], function(torch.ones(2), number)[1]
        assert type(left) is type(right) and left == pytest.approx(right, nan_ok=True)


def test_schedule_of_a_step() -> None:
    def trained(compiled: bool) -> tuple[torch.Tensor, Any]:
        weight = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.AdamW([weight], lr=0.1)

        def step(x: torch.Tensor, number: int) -> torch.Tensor:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 + np.cos(np.pi * number / 20))
            loss: torch.Tensor = (weight * x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run = kiln.compile(step) if compiled else step
        for number in range(12):
            run(torch.full((4,), 1.0 + number), number)
        assert not compiled or kiln.report_of(run).compiles == 2
        return weight.detach(), optimizer.param_groups[0]["lr"]

    (left, left_rate), (right, right_rate) = trained(True), trained(False)
    assert torch.allclose(left, right)
    assert type(left_rate) is type(right_rate) and left_rate == pytest.approx(right_rate, rel=1e-14)


def test_box_of_cutmix() -> None:
    """Sizes of a box that NumPy draws, in a function of its own; results and the generator's state are eager's."""

    def box(size: int, share: float) -> tuple[Any, Any]:
        width, middle = int(size * np.sqrt(1.0 - share)), np.random.randint(size)
        return np.clip(middle - width // 2, 0, size), np.clip(middle + width // 2, 0, size)

    def mixed(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        first, last = box(x.size(1), np.random.beta(1.0, 1.0))
        x = x.clone()
        x[:, first:last] = x[order, first:last]
        mixed_in: torch.Tensor = x * (1 - (last - first) / x.size(1))
        return mixed_in

    compiled = kiln.compile(mixed)
    np.random.seed(0)
    for _ in range(10):
        x, order, before = torch.randn(3, 16), torch.randperm(3), np.random.get_state()
        expected, after = mixed(x, order), np.random.random()
        np.random.set_state(before)
        assert torch.equal(compiled(x, order), expected) and np.random.random() == after
    assert kiln.report_of(compiled).compiles <= 2 and not kiln.report_of(compiled).breaks
