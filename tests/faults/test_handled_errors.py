"""Errors that values cause in a region that changes its inputs, handled by the program or by its caller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from kiln.capture.interpreter.value_checks import checked_values, is_valid
from kiln.graph.ir.parse import parse_graph
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


def around(hits: Tensor, i: Tensor) -> Tensor:
    hits.add_(1)
    y = X[i]
    hits.mul_(2)
    return y + hits


def looked_up(hits: Tensor, i: Tensor) -> Tensor:
    hits[0] = 5
    HANDLED.append("before")
    y = F.embedding(i, X).sum() * hits
    HANDLED.append("behind")
    return y


def quotient(hits: Tensor, i: Tensor) -> Tensor:
    hits.sub_(1)
    return i % (i - 7) + hits[:2].long()


def stored(hits: Tensor, i: Tensor) -> Tensor:
    hits.mul_(3)
    hits[i] = 5.0
    return hits.index_add_(0, i, torch.ones(2))


def dropped(hits: Tensor, i: Tensor) -> Tensor:
    hits.add_(1)
    X.index_select(0, i)
    return hits.add_(1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [around, looked_up, quotient, stored, dropped])
def test_the_caller_finds_what_eager_leaves(program: Callable[..., Any], dynamic: bool | None) -> None:
    """Inputs, lists and versions, where the error leaves the function."""
    compiled = kiln.compile(program, dynamic=dynamic)
    for given in (IN, OUT, IN, OUT):
        left: list[object] = []
        for function in (program, compiled):
            HANDLED.clear()
            hits = torch.ones(3)
            with contextlib.suppress(IndexError, RuntimeError):
                function(hits, given)
            left.append((hits.tolist(), hits._version, list(HANDLED)))
        assert left[0] == left[1]
        assert_like_eager(compiled, program, torch.ones(3), given)
    assert not kiln.report_of(compiled).eager_reasons


def test_what_is_checked() -> None:
    """Indices and divisors from outside, not those that an operator finds or the program says."""
    graph = parse_graph("""
        graph(%0: f32[4, 5] "x", %1: i64[4] "i"):
            %2: i64[4] = iota(length=4, start=0, step=1, dtype=i64, device=cpu)
            %3: i64[4] = argmax(%0, axes=(1,))
            %4: i64[] = constant(value=3, dtype=i64, device=cpu)
            %5: f32[4] = index(%0, %2, %3, axes=(0, 1))
            %6: f32[4] = index(%0, %2, %1, axes=(0, 1))
            %7: i64[4] = remainder(%1, %4)
            %8: i64[4] = remainder(%3, %1)
            return %5, %6, %7, %8
    """)
    i = graph.inputs[1]
    found = [
        (node.op.name, values is i, size)
        for node in graph.nodes
        for values, size in checked_values(node)
        if not is_valid(values)
    ]
    assert found == [("index", True, 5), ("remainder", True, None)]


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
