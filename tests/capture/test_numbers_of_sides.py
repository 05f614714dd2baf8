"""Numbers that the sides of a branch on data leave are numbers that the region finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.capture.interpreter.joined_values import equal_constants
from kiln.capture.interpreter.variables.constant import Constant


def counts(x: Tensor, y: Tensor) -> Any:
    n, weight = 0, 1.0
    for value in (x, y, x - y):
        if value.mean() > 0:
            n += 1
            weight *= 0.5
        elif value.sum() > -3:
            n += 2
    return x * n * weight, n, weight


def item_in_a_side(x: Tensor, y: Tensor) -> Any:
    low = 0.25
    if x.mean() > 0:
        low = (x * 2).max().item()
    return y.clamp(max=1) * low, low


def a_size(x: Tensor, y: Tensor) -> Any:
    n = 1
    if x.sum() > 0:
        n = x.shape[0]
    return y * n, n + 1


def compared(x: Tensor, y: Tensor) -> Any:
    better = x.mean().item() > y.mean().item()
    if x.sum().item() > 0.5:
        return x * 2 + better, better
    return x * 3 + better, better


def indexes(x: Tensor, y: Tensor) -> Any:
    n = 0
    if x.sum() > 0:
        n = 1
    return x + (1, 2)[n], n


class BestLoss(nn.Module):
    """Early stopping, as training loops keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.best, self.waited = 1e9, 0

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = x.mean()
        if loss < self.best:
            self.best = loss.item()
            self.waited = 0
        else:
            self.waited += 1
        return y * self.waited, self.best


def require_equal(program: Any, compiled: Any) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        given, found = torch.randn(2, 4, 3), []
        for function in (program, compiled):
            x, y = (tensor.clone().requires_grad_() for tensor in given)
            out, *numbers = function(x, y)
            gradients = torch.autograd.grad(out.square().sum(), (x, y), allow_unused=True)
            found.append(([type(number) for number in numbers], numbers, [out, *gradients]))
        assert found[1][0] == found[0][0] and found[1][1] == pytest.approx(found[0][1])
        torch.testing.assert_close(found[1][2], found[0][2])


@pytest.mark.parametrize("program", [counts, item_in_a_side, a_size, indexes], ids=lambda program: program.__name__)
def test_one_graph(program: Any) -> None:
    compiled = kiln.compile(program, fullgraph=True, options={"cache": False})
    require_equal(program, compiled)
    assert compiled.report().compiles == 1


def test_a_best_loss_is_kept_in_the_graph() -> None:
    compiled = kiln.compile(BestLoss(), fullgraph=True, options={"cache": False})
    require_equal(BestLoss(), compiled)
    assert compiled.report().compiles == 1


def test_what_python_needs_breaks() -> None:
    compiled = kiln.compile(compared, options={"cache": False})
    require_equal(compared, compiled)
    assert compiled.report().breaks


def test_a_number_that_each_turn_computes_from_itself_on_both_sides() -> None:
    """Its formula doubles in each turn: compiling it did not end."""

    def collatz(x: Tensor) -> tuple[Any, int]:
        a, n = (x.abs() * 10).long().sum().item() + 1, 0
        while a != 1 and n < 100:
            a = a // 2 if a % 2 == 0 else 3 * a + 1
            n += 1
        return a, n

    compiled = kiln.compile(collatz)
    for number in (0.6, 1.5, 2.7):
        assert compiled(torch.full((2,), number)) == collatz(torch.full((2,), number))


@torch.no_grad()
def scaled_by_norms(weight: Tensor, update: Tensor) -> float:
    """A step of LAMB: no side can change a parameter, so the ratio is chosen in front of that."""
    norm, step = weight.norm().item(), update.norm().item()
    ratio = norm / step if norm > 1 and step > 0 else 1.0
    weight.add_(update, alpha=-ratio)
    return ratio


def test_what_no_side_can_do_follows_where_they_meet_first() -> None:
    compiled = kiln.compile(scaled_by_norms, fullgraph=True, options={"cache": False})
    for scale, factor in ((1.0, 0.5), (0.01, 2.0), (3.0, 0.0)):
        start, update = torch.linspace(-1, 2, 6) * scale, torch.linspace(1, 3, 6) * factor
        weights = [nn.Parameter(start.clone()) for _ in range(2)]
        ratios = [function(w, update) for w, function in zip(weights, (scaled_by_norms, compiled), strict=True)]
        assert ratios[1] == pytest.approx(ratios[0])
        torch.testing.assert_close(*weights)
    assert compiled.report().compiles == 1


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        *((2, 2, True), (2, 3, False), (2, 2.0, False), (1, True, False), (None, None, True), ("a", "a", True)),
        *((0.0, -0.0, False), (0.5, 0.5, True), (float("nan"), float("nan"), True), (torch.int8, torch.int8, False)),
    ],
)
def test_constants_are_equal_as_one_object_may_stand_for_both(left: Any, right: Any, equal: bool) -> None:
    state: Any = SimpleNamespace(policy=SimpleNamespace(varying=frozenset()))
    assert equal_constants(state, Constant(left, None), Constant(right, None)) == equal
    assert not equal_constants(state, Constant(left, None), None)


EMBEDDING, HEAD = nn.Embedding(6, 4), nn.Linear(4, 6)


def generated(x: Tensor) -> list[int]:
    """Greedy decoding up to an end: the number of a token is read twice, the second time on a side."""
    token, found = torch.zeros(1, dtype=torch.int64), []
    for _ in range(4):
        token = HEAD(EMBEDDING(token) + x.mean()).argmax(-1)
        if token.item() == 2:
            break
        found.append(token.item())
    return found


def read_on_both_sides(x: Tensor) -> Any:
    best, some = x.argmax(), (x > 1).any()
    if best.item() > 3:
        return x * best.item(), int(best), float(some)
    return x - best.item(), float(best), some.item()


def changed_between(x: Tensor) -> Any:
    total = x.amax()
    if total.item() > 0:
        total.add_(5)
        return total.item(), x
    return total.item(), x + 1


@pytest.mark.parametrize(("program", "compiles"), [(generated, 2), (read_on_both_sides, 2), (changed_between, 6)])
def test_a_number_that_was_read_is_read_again_on_a_side(program: Any, compiles: int) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 6, 7):
        for shift in (0.0, 3.0, -3.0, 1.0, -1.0):
            torch.manual_seed(rows)
            x = torch.randn(rows, 3) + shift
            assert str(compiled(x)) == str(program(x))
    report = compiled.report()
    assert report.compiles <= compiles and not report.eager_reasons, str(report)
    assert not report.breaks or program is changed_between
