"""Effects of code that the backward runs were lost: writes to memory in it, and those that a checkpoint repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import kiln

Compile = Callable[[Any], Any]
Program = Callable[[Compile], Iterator[Any]]


def statistics(compile: Compile, reentrant: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = torch.randn(5, 3, requires_grad=True)
    compile(lambda x: checkpoint(model, x, use_reentrant=reentrant))(x).square().sum().backward()
    yield from (model[1].num_batches_tracked, model[1].running_mean, x.grad)


def appended(compile: Compile) -> Iterator[Any]:
    seen: list[int] = []

    def layer(x: Tensor) -> Tensor:
        seen.append(1)
        return x.sin()

    def program(x: Tensor) -> Tensor:
        seen.append(0)
        return checkpoint(layer, x, use_reentrant=False).sum()

    compile(program)(torch.randn(3, requires_grad=True)).backward()
    yield seen


class Counted(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        ctx.count.add_(1)
        return gradient * 2, None


def counted(compile: Compile) -> Iterator[Any]:
    count = torch.zeros(())
    loss = compile(lambda x: Counted.apply(x, count).sum())(torch.randn(3, requires_grad=True))
    yield count.clone()
    loss.backward()
    yield count


def counted_inside(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        count = x.detach().sum()
        return Counted.apply(x, count).sum(), count

    loss, count = compile(program)(torch.ones(3, requires_grad=True))
    yield count.clone()
    loss.backward()
    yield count


def changed_gradient(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient.mul_(3))
        return y

    x, gradient = torch.randn(3, requires_grad=True), torch.ones(3)
    compile(program)(x).backward(gradient)
    yield from (x.grad, gradient)


PROGRAMS: dict[str, Program] = {
    "statistics": lambda compile: statistics(compile, False),
    "statistics, reentrant": lambda compile: statistics(compile, True),
    "a list": appended,
    "memory in a backward": counted,
    "memory of a result in a backward": counted_inside,
    "a gradient in a hook": changed_gradient,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_effects(name: str) -> None:
    expected = list(PROGRAMS[name](lambda function: function))
    found = list(PROGRAMS[name](kiln.compile))
    torch.testing.assert_close(found, expected)
