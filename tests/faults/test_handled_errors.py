"""Errors that values cause, handled by the program in a region that changes its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager

X, OUT, IN = torch.arange(6.0).view(3, 2), torch.tensor([0, 7]), torch.tensor([0, 2])


def cholesky(hits: Tensor, a: Tensor) -> Tensor:
    """With more on the diagonal where it is needed, as in Gaussian processes."""
    hits.add_(1)
    for power in range(3):
        try:
            return torch.linalg.cholesky(a + power * torch.eye(2))
        except torch.linalg.LinAlgError:
            hits.mul_(2)
    return a


def indexed(hits: Tensor, i: Tensor) -> Tensor:
    hits.add_(1)
    try:
        y = X[i]
    except IndexError:
        y = X[0] + hits.sum()
    finally:
        hits.mul_(2)
    return y


def put(hits: Tensor, i: Tensor) -> Tensor:
    try:
        hits[i] = 5.0
    except IndexError:
        hits.fill_(7)
    return hits * 2


def embedded(hits: Tensor, i: Tensor) -> Tensor:
    def rows() -> Tensor:
        hits.add_(1)
        return F.embedding(i, X)

    try:
        return rows()
    except (IndexError, RuntimeError):
        return hits + 1


def suppressed(hits: Tensor, i: Tensor) -> Tensor:
    with contextlib.suppress(IndexError):
        hits.add_(1)
        hits.add_(X[i].sum())
    return hits + 1


@contextlib.contextmanager
def catching() -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        HANDLED.append("division")


HANDLED: list[str] = []


def divided(hits: Tensor, i: Tensor) -> Tensor:
    y = i
    with catching():
        hits.add_(1)
        y = i // (i - 7)
    return y + len(HANDLED[-1:])


def classes(hits: Tensor, i: Tensor) -> Tensor:
    hits.add_(1)
    try:
        return F.one_hot(i, 3)
    except RuntimeError:
        return hits + 2


# fmt: off
CALLS: dict[Callable[..., Any], tuple[Tensor, ...]] = {
    indexed: (IN, OUT), put: (IN, OUT), embedded: (IN, OUT), suppressed: (IN, OUT),
    divided: (IN, OUT), classes: (IN, OUT), cholesky: (torch.eye(2), -torch.eye(2), -0.5 * torch.eye(2)),
}
# fmt: on


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", CALLS)
def test_the_handler_runs(program: Callable[..., Any], dynamic: bool | None) -> None:
    """In the state in which eager raises the error."""
    compiled = kiln.compile(program, dynamic=dynamic)
    for given in (*CALLS[program], *CALLS[program]):
        assert_like_eager(compiled, program, torch.ones(3), given)
    assert not kiln.report_of(compiled).eager_reasons


def test_a_whole_step() -> None:
    """Which the error leaves before the parameters are changed."""

    def step(layer: torch.nn.Embedding, optimizer: torch.optim.Optimizer, i: Tensor) -> Tensor | None:
        optimizer.zero_grad()
        try:
            loss = F.cross_entropy(layer(i), i)
        except IndexError:
            return None
        loss.backward()
        optimizer.step()
        return loss.detach()

    weights = []
    compiled = kiln.compile(step)
    for function in (step, compiled):
        layer = torch.nn.Embedding.from_pretrained(torch.eye(3), freeze=False)
        optimizer = torch.optim.Adam(layer.parameters())
        given = torch.tensor([2, 0]), torch.tensor([9, 0]), torch.tensor([1, 1, 2]), torch.tensor([3, 0, 0])
        results = [function(layer, optimizer, i) for i in given]
        assert [result is None for result in results] == [False, True, False, True]
        weights.append(layer.weight.detach())
    torch.testing.assert_close(*weights)
    assert not kiln.report_of(compiled).eager_reasons and not kiln.report_of(compiled).breaks


def test_random_numbers_are_drawn_again() -> None:
    def program(hits: Tensor, i: Tensor) -> Tensor:
        hits.add_(1)
        noise = torch.rand(2)
        try:
            return X[i] + noise
        except IndexError:
            return noise

    compiled = kiln.compile(program, options={"random": "eager"})
    for given in (IN, OUT):
        assert_like_eager(compiled, program, torch.ones(3), given)
