"""Numbers that the forward reads from data and the backward needs, though no saved tensor has them as a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_same


def pooled(x: Tensor, group: Tensor) -> Tensor:
    n = int(group.max()) + 1
    return torch.zeros(n, 4).index_add(0, group, x.sin()) / torch.bincount(group, minlength=n).clamp(min=1)[:, None]


def largest_half(x: Tensor, group: Tensor) -> Tensor:
    k = int((x > 0).sum())
    return x.exp().flatten().topk(max(1, k // 2))[0]


def several_results(x: Tensor, group: Tensor) -> tuple[Tensor, ...]:
    """A backward with some of the tangents has the numbers, too."""
    n = group.max().item() + 1
    return torch.zeros(n, 4).index_add(0, group, x.sin()), x.exp() / n, x[:, group[0]] * n


@pytest.mark.parametrize("program", [pooled, largest_half, several_results])
def test_gradients(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for seed in range(6):
        torch.manual_seed(seed)
        given, group = torch.randn(6, 4), torch.randint(0, 4, (6,))
        found = []
        for function in (compiled, program):
            x = given.clone().requires_grad_()
            results = function(x, group)
            results = results if isinstance(results, tuple) else (results,)
            used = results[seed % len(results) :]
            torch.stack([result.pow(2).sum() for result in used]).sum().backward()
            found.append([*(result.detach() for result in results), x.grad])
        assert_same(found[0], found[1])
    report = compiled.report()
    assert report.compiles == 1 and not report.eager and not report.breaks, report
