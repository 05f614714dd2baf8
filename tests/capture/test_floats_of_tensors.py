"""Tests of Python floats that are taken from tensors: they stay in the graph until Python needs their value."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch

import kiln


def returned(x: torch.Tensor) -> Any:
    return x.sum().item(), x + 1


def scales(x: torch.Tensor) -> Any:
    return x * x.sum().item() + float(x[0])


def arithmetic(x: torch.Tensor) -> Any:
    mean = x.mean().item()
    return mean * 2 - 1, x + mean, -mean


def filled(x: torch.Tensor) -> Any:
    return torch.full((3,), x.sum().item(), dtype=x.dtype)


def scalar_argument(x: torch.Tensor) -> Any:
    return torch.addcdiv(x, x, x + 1, value=x.sum())


def of_a_list(x: torch.Tensor) -> Any:
    return torch._foreach_addcdiv([x, x], [x, x], [x + 1, x + 2], scalars=x[:2])


def branches(x: torch.Tensor) -> Any:
    return x + 1 if x.sum().item() > 1 else x - 1


def divides(x: torch.Tensor) -> Any:
    return x * (1.0 / x.sum().item())


def formatted(x: torch.Tensor) -> Any:
    return f"{x.sum().item():.3f}"


@pytest.mark.parametrize(
    ("function", "breaks"),
    [
        *((returned, 0), (scales, 0), (arithmetic, 0), (filled, 0), (scalar_argument, 0), (of_a_list, 0)),
        *((branches, 0), (divides, 0), (formatted, 0)),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_float_equals_eager(function: Any, breaks: int, backend: str | None) -> None:
    if backend is None and function not in (returned, arithmetic, of_a_list):
        pytest.skip("the kernels of the others are alike")
    arguments = {} if backend is None else {"backend": backend}
    compiled = kiln.compile(function, options={"cache": False}, **arguments)
    for x in (torch.rand(4), -torch.rand(4)):
        torch.testing.assert_close(compiled(x), function(x)) if function is not formatted else None
        assert function is not formatted or compiled(x) == function(x)
    assert len(compiled.report().breaks) == breaks and not compiled.report().eager


def test_a_float_that_a_callee_compares_and_keeps_is_in_the_graph() -> None:
    def kept(loss: torch.Tensor, state: dict[str, float]) -> None:
        value = loss.item()
        if value < state["best"]:
            state["best"], state["bad"] = value, 0
        else:
            state["bad"] += 1

    def program(x: torch.Tensor, state: dict[str, float]) -> torch.Tensor:
        kept(x.double().mean(), state)
        return x * state["bad"]

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    mine, theirs = {"best": 9.0, "bad": 0}, {"best": 9.0, "bad": 0}
    for _ in range(8):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, mine), program(x, theirs))
        assert mine == theirs
    assert compiled.report().compiles == 1


def test_a_division_by_a_zero_from_a_tensor_raises_as_in_eager() -> None:
    with pytest.raises(ZeroDivisionError):
        kiln.compile(divides, backend="eager")(torch.zeros(2))


def test_a_power_of_a_number_is_real_for_positive_bases_only() -> None:
    def power(x: torch.Tensor, step: float) -> Any:
        return x * (1 - 0.9**step) ** 0.5

    compiled = kiln.compile(power, backend="eager", options={"cache": False})
    x = torch.ones(2)
    for step in (1.0, 2.0, 3.0, 4.0, -2.0, 0.0):
        torch.testing.assert_close(compiled(x, step), power(x, step))
    assert compiled.report().compiles <= 5 and not compiled.report().eager


def test_a_counter_in_a_tensor_chooses_a_branch_without_a_break() -> None:
    def warm(x: torch.Tensor, step: torch.Tensor) -> Any:
        return x * 2 if step > 3 else x * 0.5

    compiled = kiln.compile(warm, backend="eager", options={"cache": False})
    for number in range(6):
        x, step = torch.ones(2), torch.tensor(float(number))
        torch.testing.assert_close(compiled(x, step), warm(x, step))
    assert compiled.report().compiles == 2 and not compiled.report().breaks


def test_a_divisor_that_is_also_a_live_value() -> None:
    """The check in front of the region must not read what is loaded behind it."""

    def divided(x: torch.Tensor, scale: float) -> Any:
        inverse = 1.0 / (x.shape[0] * scale)
        size = x.shape[0] * 3
        time.sleep(0)
        return x * inverse, size

    compiled = kiln.compile(divided, backend="eager", dynamic=True, options={"cache": False})
    for size, scale in ((3, 0.5), (4, 0.25), (5, 2.0)):
        torch.testing.assert_close(compiled(torch.ones(size), scale), divided(torch.ones(size), scale))


def whole_numbers(x: torch.Tensor) -> torch.Tensor:
    kept = max(1, int(0.4 * (x > 0).sum()))
    tenths = round((x > 0).float().mean().item() * 10)
    return x.topk(kept).values * tenths + torch.arange(int(x.abs().sum())).sum() + math.ceil(x.max().item())


def test_floats_become_whole_numbers_in_the_graph() -> None:
    compiled = kiln.compile(whole_numbers, fullgraph=True, options={"cache": False})
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(12) + 0.3 * seed
        torch.testing.assert_close(compiled(x), whole_numbers(x))
    assert compiled.report().compiles == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_floats_that_are_no_whole_number_raise_as_in_eager(value: float) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * int(x.sum())

    compiled = kiln.compile(program, options={"cache": False})
    torch.testing.assert_close(compiled(torch.ones(3)), program(torch.ones(3)))
    with pytest.raises((ValueError, OverflowError)) as expected:
        program(torch.tensor([value]))
    with pytest.raises(expected.type, match=str(expected.value)):
        compiled(torch.tensor([value]))
