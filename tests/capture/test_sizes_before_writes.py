"""Regions that change inputs check what they assume of numbers from data before they do: one graph, eager's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager


def written_at_a_tensor(cache: Tensor, t: Tensor) -> Tensor:
    cache[:, t] = 3
    return cache * 2


def written_behind_an_assertion(cache: Tensor, t: Tensor) -> Tensor:
    n = int(t)
    cache.add_(1)
    assert n < 3, "too long"
    return cache + n


def selected_behind_a_mask(cache: Tensor, t: Tensor) -> Tensor:
    chosen = cache[:, cache[0] > -1]
    cache.add_(1)
    return chosen[:, 1] + cache[:, t]


def views_behind_a_write(cache: Tensor, t: Tensor) -> Tensor:
    cache[:, t] = cache[:, t] + 1
    cache[:, t].mul_(3)
    return cache[:, t : t + 2].clone()


PROGRAMS: list[Callable[..., Any]] = [
    written_at_a_tensor, written_behind_an_assertion, selected_behind_a_mask, views_behind_a_write
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_for_all_values(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for t in (0, 1, 2, -1, 5, 4, 1):
        assert_like_eager(compiled, program, torch.arange(10.0).view(2, 5), torch.tensor(t))
    report = compiled.report()
    assert report.compiles == report.regions == 1 and not report.breaks, report


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_failed_check_has_changed_nothing(program: Callable[..., Any]) -> None:
    """Eager changes the input as far as it comes; so does the call whose check failed, once."""
    compiled = kiln.compile(program, options={"cache": False})
    for t in (0, 7):
        changed, expected = torch.arange(10.0).view(2, 5), torch.arange(10.0).view(2, 5)
        for function, cache in ((compiled, changed), (program, expected)):
            try:
                function(cache, torch.tensor(t))
            except (AssertionError, IndexError):
                assert t == 7
        assert torch.equal(changed, expected)
