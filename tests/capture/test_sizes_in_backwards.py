"""Numbers that the forward reads from data and the backward needs: as a size, or for what a formula asks of it."""

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


REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(0)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "prod": lambda x: (x.prod(0), x.prod()),
    "std": lambda x: (x.std(0), x.var(1)),
    "norm": lambda x: (x.norm(), torch.linalg.vector_norm(x, dim=1)),
    "amax": lambda x: x.amax(1),
    "logsumexp": lambda x: x.logsumexp(0),
    "distances": lambda x: torch.cdist(x, x),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_selections(name: str) -> None:
    """Formulas of gradients ask whether there is more than one element. Where none is selected, eager runs."""

    def program(x: Tensor, mask: Tensor) -> Any:
        return REDUCTIONS[name](x[mask])

    compiled = kiln.compile(program, options={"cache": False})
    for seed in range(6):
        torch.manual_seed(seed)
        given, mask = torch.randn(7, 4), torch.arange(7) >= 7 - seed
        found = []
        for function in (compiled, program):
            x = given.clone().requires_grad_()
            results = function(x, mask)
            results = results if isinstance(results, tuple) else (results,)
            torch.stack([result.pow(2).sum() for result in results]).sum().backward()
            found.append([*(result.detach() for result in results), x.grad])
        assert_same(found[0], found[1])
    report = compiled.report()
    assert report.compiles == 1 and not report.eager and not report.breaks, report


def test_what_a_backward_assumes_is_checked_before_a_write() -> None:
    def program(x: Tensor, mask: Tensor, count: Tensor) -> Tensor:
        count += 1
        return x[mask].cumsum(0)

    compiled = kiln.compile(program, options={"cache": False})
    counts = torch.zeros(()), torch.zeros(())
    for chosen in (3, 0, 1, 0):
        given, mask = torch.randn(4, 2), torch.arange(4) < chosen
        gradients = []
        for function, count in zip((compiled, program), counts, strict=True):
            x = given.clone().requires_grad_()
            function(x, mask, count).sum().backward()
            gradients.append(x.grad)
        assert_same(*gradients)
    assert counts[0] == counts[1] == 4
    assert compiled.report().compiles == 1 and not compiled.report().eager
