"""What a capture assumes of values is checked by each call, also where the region returns nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline.failed_checks import FEWEST_FAILURES, MOST_CALLS_PER_FAILURE
from kiln.plan.errors import CheckFailed, InputMismatch
from kiln.runtime.checked_region import is_behind_checks, is_of_values
from tests.faults.outcome import assert_like_eager


def returns_a_constant(x: Tensor) -> Any:
    n = x.sum().item()
    if n < 0:
        raise ValueError("negative")
    return 3


def returns_nothing(x: Tensor) -> None:
    if x.sum().item() < 0:
        raise AssertionError("negative")


def of_a_tensor(x: Tensor) -> Any:
    if (x.sum() < 0).any():
        raise ValueError("negative")
    return x.shape[0]


@pytest.mark.parametrize("program", [returns_a_constant, returns_nothing, of_a_tensor])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_an_assumption_is_checked_where_nothing_is_computed(
    program: Callable[[Tensor], Any], dtype: torch.dtype
) -> None:
    compiled = kiln.compile(program, backend="eager")
    good = torch.ones(3, dtype=dtype)
    for x in (good, -good, good):
        try:
            expected = program(x)
        except (ValueError, AssertionError) as error:
            with pytest.raises(type(error), match="negative"):
                compiled(x)
        else:
            assert compiled(x) == expected


def test_a_failed_check_leads_to_eager_and_a_fault_of_the_compiler_does_not() -> None:
    check, operator = CheckFailed(where="n >= 0"), RuntimeError("of an operator")
    fault = InputMismatch(name="x", plan="p", problem="a float")
    assert [is_behind_checks(error) for error in (check, operator, fault, KeyboardInterrupt())] == [
        True,
        True,
        False,
        False,
    ]
    assert [is_of_values(error) for error in (check, operator, fault)] == [True, False, False]


def embedded(i: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.embedding(i, w) + 1


def targets(i: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(w, i)


def scattered(i: Tensor, w: Tensor) -> Tensor:
    return w.scatter_add(0, i[:, None].expand(4, 4), w)


def divided(i: Tensor, w: Tensor) -> Tensor:
    return w + 12 // (i - 9)[:, None]


@pytest.mark.parametrize("program", [embedded, targets, scattered, divided])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_wrong_values_raise_what_eager_raises_at_the_line_of_the_call(program: Any, with_gradients: bool) -> None:
    compiled, w = kiln.compile(program, fullgraph=True), torch.randn(4, 4, requires_grad=with_gradients)
    good, bad = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 9])
    for _ in range(2):
        torch.testing.assert_close(compiled(good, w), program(good, w))
        with pytest.raises((IndexError, RuntimeError)) as expected:
            program(bad, w)
        with pytest.raises(expected.type) as found:
            compiled(bad, w)
        assert str(found.value) == str(expected.value) and found.value.__context__ is None
        assert program.__code__.co_firstlineno in [entry.lineno for entry in found.traceback]


def test_a_check_on_a_size_that_data_decide_in_the_graph_of_a_backend() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        found = (x > n).nonzero()
        torch._check(found.shape[0] >= 2, lambda: "few")
        return found + 1

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for number in (3, 4, 7, 1):
        assert_like_eager(compiled, program, torch.arange(6.0), torch.tensor(number))
    assert kiln.report_of(compiled).eager == 0


def largest(x: Tensor) -> Tensor:
    """Of what is selected; nothing has no largest element, so that the capture assumes there is something."""
    chosen = x[x > 0]
    return chosen.max() if chosen.numel() else chosen.sum() - 1


def test_a_variant_whose_assumption_often_fails_is_given_up(tmp_path: Path) -> None:
    """The region ran each time, in vain, and then the function in eager."""
    full, empty = torch.ones(4), -torch.ones(4)
    for _ in range(2):  # the second variant comes from disk
        compiled: Any = kiln.compile(largest, options={"cache_dir": str(tmp_path)})
        for x in (full, *[empty] * FEWEST_FAILURES):
            assert compiled(x) == largest(x)
        assert not compiled.report().breaks
        for x in (empty, full, empty):
            assert compiled(x) == largest(x)
        assert len(compiled.report().breaks) == 1


def test_a_variant_whose_assumption_seldom_fails_stays() -> None:
    full, empty = torch.ones(4), -torch.ones(4)
    compiled: Any = kiln.compile(largest)
    for _ in range(2 * FEWEST_FAILURES):
        for x in (*[full] * MOST_CALLS_PER_FAILURE, empty):
            assert compiled(x) == largest(x)
    assert not compiled.report().breaks and compiled.report().compiles == 1
