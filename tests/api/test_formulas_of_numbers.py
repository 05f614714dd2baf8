"""Formulas on Python numbers that change from call to call, as in schedules and optimizers: one compile for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.capture.interpreter.computed_numbers import ON_REALS
from kiln.graph.ops.emit import CHOICES, REAL_PRIMS
from kiln.graph.prims.rows import PRIMS
from kiln.symbolic.values import IN_FRONT, REAL_OPS


def schedule(x: Tensor, step: int, rate: float) -> Any:
    """Learning rates and bias corrections of programs that are not written with torch.optim."""
    first, second = 1 - 0.9**step, 1 - 0.999**step
    cosine = 0.5 * (1 + math.cos(math.pi * step / 100))
    rates = (
        *(math.sqrt(second) / first, second**0.5, cosine, min(1.0, step / 10), (step + 1) ** -0.5, rate**-1),
        *(math.exp(-rate), math.log(rate), math.log(rate, 2), math.log1p(rate), math.expm1(rate), math.log2(step)),
        *(math.log10(rate), math.sin(rate), math.tan(rate), math.tanh(rate), math.fabs(-rate), abs(rate - 1)),
        *(math.pow(rate, 1.5), max(rate, 1e-5), rate % 0.3, 1.0 / rate),
    )
    return [x * number for number in rates]


def adam(x: Tensor, step: int, rate: float) -> Any:
    return x * math.sqrt(1 - 0.999**step) / (1 - 0.9**step), x * (0.5 * (1 + math.cos(rate)) * math.log(rate))


@pytest.mark.parametrize(("function", "backend"), [(schedule, "eager"), (adam, None)])
def test_one_compile_for_numbers_that_change(function: Callable[..., Any], backend: str | None) -> None:
    compiled, x = kiln.compile(function, backend=backend or "kiln"), torch.randn(3, dtype=torch.float64)
    for step in range(1, 12):
        torch.testing.assert_close(compiled(x, step, step / 7), function(x, step, step / 7))
    assert kiln.report_of(compiled).compiles == 2


def test_every_function_of_numbers_has_a_primitive() -> None:
    assert set(REAL_OPS) - {"float", "given", *(IN_FRONT.keys() - ON_REALS)} == {*REAL_PRIMS, *CHOICES}
    assert set(REAL_PRIMS.values()) <= set(PRIMS.rows)


def branches(x: Tensor, rate: float) -> Any:
    return x + 1 if rate > 0.5 else x - 1


def is_true(x: Tensor, rate: float) -> Any:
    return x + 1 if rate else x - 1


def is_a_number(x: Tensor, rate: float) -> Any:
    return x + 1 if math.isnan(rate) or not math.isfinite(rate) else x * rate


def root(x: Tensor, rate: float) -> Any:
    return x * math.sqrt(rate - 0.5)


def logarithm(x: Tensor, rate: float) -> Any:
    return x * math.log(rate)


def exponential(x: Tensor, rate: float) -> Any:
    return x * math.exp(rate)


def cosine(x: Tensor, rate: float) -> Any:
    return x * math.cos(rate)


def reciprocal(x: Tensor, rate: float) -> Any:
    return x * rate**-2


def half_power(x: Tensor, rate: float) -> Any:
    return (x * (rate - 1) ** 0.5).abs()


def outcome(function: Callable[..., Any], *args: object) -> Any:
    try:
        return function(*args)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "function",
    [branches, is_true, is_a_number, root, logarithm, exponential, cosine, reciprocal, half_power],
    ids=lambda function: function.__name__,
)
@pytest.mark.filterwarnings("ignore::kiln.pipeline.session.KilnWarning")
def test_numbers_at_the_edges_are_as_in_python(function: Callable[..., Any]) -> None:
    compiled, x = kiln.compile(function, backend="eager"), torch.ones(2)
    for rate in (0.7, 0.8, 0.1, 0.9, 0.0, -0.0, -1.5, math.nan, math.inf, -math.inf, 710.0, 0.6, 1.0):
        expected, got = outcome(function, x, rate), outcome(compiled, x, rate)
        if isinstance(expected, Tensor):
            torch.testing.assert_close(got, expected, equal_nan=True)
        else:
            assert got == expected, rate


def test_a_comparison_that_changes_sides_is_compiled_once_for_each() -> None:
    compiled, x = kiln.compile(branches, backend="eager"), torch.ones(2)
    for number in range(20):
        torch.testing.assert_close(compiled(x, number / 19), branches(x, number / 19))
    assert kiln.report_of(compiled).compiles == 3  # the first number, then either side


def test_powers_of_the_library_have_its_errors() -> None:
    def program(x: Tensor, base: float) -> Tensor:
        return x * math.pow(base, 0.5)

    compiled, x = kiln.compile(program, backend="eager"), torch.ones(3)
    for base in (2.0, 3.0, 5.0):
        assert torch.equal(compiled(x, base), program(x, base))
    with pytest.raises(ValueError, match="math domain error"):
        compiled(x, -8.0)
