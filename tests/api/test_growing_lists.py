"""Lists of another length, or with another item used, in each call: compiled for the first and for those that recur."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.pipeline.session import KilnWarning

X = torch.ones(3)


def added(x: Tensor, items: list[Tensor]) -> Tensor:
    for item in items:
        x = x + item
    return x


def test_a_list_that_grows_up_to_a_length() -> None:
    compiled: Any = kiln.compile(added, backend="eager")
    with pytest.warns(KilnWarning, match="KILN1089"):
        for length in [*range(20), *[20] * 6]:
            assert torch.equal(compiled(X, [X] * length), added(X, [X] * length))
    report = compiled.report()
    assert (report.compiles, report.eager) == (5, 1), str(report)
    compiled(X, [X] * 20)
    assert "many lengths of items" in str(report) and compiled.report().compiles == 5


def test_lengths_that_recur_are_compiled() -> None:
    compiled: Any = kiln.compile(added, backend="eager")
    with pytest.warns(KilnWarning):
        for _ in range(4):
            for length in range(6):
                assert torch.equal(compiled(X, [X] * length), added(X, [X] * length))
    assert compiled.report().compiles == 6


class Optional(nn.Module):
    """Is called with one, two or three arguments."""

    def forward(self, x: Tensor, shift: Tensor | None = None, doubled: bool = False) -> Tensor:
        x = x * 3 if doubled else x + 1
        return x if shift is None else x + shift


def test_a_length_that_has_a_variant_is_no_new_one() -> None:
    module = Optional()
    compiled: Any = kiln.compile(module, backend="eager")
    for given in ((4,), (4, X[:1]), (5,), (5, None, True), (6, X[:1]), (7,), (7, X[:1], True), (8, None)):
        size, *rest = given
        x = torch.ones(size)
        assert torch.equal(compiled(x, *rest), module(x, *rest))
    assert compiled.report().eager == 0, str(compiled.report())


def test_with_fullgraph_each_length_is_compiled() -> None:
    compiled: Any = kiln.compile(added, backend="eager", fullgraph=True)
    for length in range(7):
        compiled(X, [X] * length)
    assert compiled.report().compiles == 7


class Kept(nn.Module):
    """Reads at most the last item of what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.losses: list[Tensor] = []
        self.history: list[Tensor] = []
        self.states: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        y = self.layers[0](x)
        if self.history:
            y = y + self.history[-1]
        self.history.append(y.detach())
        self.losses += [y.mean().detach(), self.history[-1].std()]
        self.states += (y.detach(),)
        more = x, y.detach().sum()
        self.states = self.states + more
        return y * self.states[-2], not self.states


def test_items_that_are_not_read_may_be_many() -> None:
    model = Kept()
    other = copy.deepcopy(model)
    compiled = kiln.compile(model, options={"cache": False})
    for _ in range(8):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), other(x))
    for name in ("losses", "history", "states"):
        torch.testing.assert_close(getattr(model, name), getattr(other, name))
    assert compiled.report().compiles == 2, "with and without items"
    del other.history[1:], model.history[1:]
    torch.testing.assert_close(compiled(x), other(x))
    assert compiled.report().compiles == 2


class Recording(nn.Module):
    """Records the state in front of each layer, with a graph break there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        states: tuple[Tensor, ...] = ()
        for layer in self.layers:
            states += (x,)
            time.sleep(0)
            x = layer(x)
        return (*states, x)


def test_states_of_layers_with_breaks_between() -> None:
    model = Recording()
    compiled = kiln.compile(model, options={"cache": False})
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    report = compiled.report()
    assert report.compiles <= 6 and not report.eager, report


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_is_entered_in_python(kind: Callable[[], AbstractContextManager[object]]) -> None:
    lock = kind()

    def f(x: Tensor) -> Tensor:
        with lock:
            y = x * 2
        return y + 1

    compiled = kiln.compile(f, options={"cache": False})
    for _ in range(9):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
    report = kiln.report_of(compiled)
    assert report.compiles <= 3 and not report.eager, report


class Ring:
    def __init__(self) -> None:
        self.kept: list[Tensor | None] = [None] * 7
        self.at = 0

    def push(self, x: Tensor) -> Tensor:
        y = x * 2
        self.kept[self.at] = y
        self.at = (self.at + 1) % 7
        return y + 1


def test_items_at_a_number_that_changes() -> None:
    """After a variant for each of some items, one that takes the item in Python."""
    batches = [(X * number, X + number) for number in range(12)]
    table = {number: X * number for number in range(12)}

    def step(number: int) -> Tensor:
        x, y = batches[number % len(batches)]
        return x * y + table[number + 1 if number < 11 else 0]

    compiled: Any = kiln.compile(step, backend="eager")
    for number in range(12):
        assert torch.equal(compiled(number), step(number))
    report = compiled.report()
    assert report.eager == 0 and report.compiles <= 9, str(report)
    with pytest.raises(IndexError):
        kiln.compile(lambda number: batches[number][0] + 1, backend="eager")(12)
    whole: Any = kiln.compile(step, backend="eager", fullgraph=True)
    assert all(torch.equal(whole(number), step(number)) for number in range(8))


def test_stores_at_a_number_that_changes() -> None:
    ring, eager = Ring(), Ring()
    compiled: Any = kiln.compile(ring.push, backend="eager")
    for number in range(20):
        assert torch.equal(compiled(X * number), eager.push(X * number))
    assert ring.at == eager.at
    torch.testing.assert_close(ring.kept, eager.kept, rtol=0, atol=0)
    assert compiled.report().eager == 0 and compiled.report().compiles <= 7, str(compiled.report())


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(3, 3) for _ in range(10))

    def forward(self, x: Tensor, first: int, second: int) -> Tensor:
        return self.heads[first](x) * self.heads[second].bias


def test_modules_at_numbers_that_change() -> None:
    """The last variant that a function may have serves all numbers, also if none had many values until then."""
    eager = Heads()
    mine = copy.deepcopy(eager)
    compiled: Any = kiln.compile(mine, backend="eager")
    for first in range(10):
        for second in (first, (first + 1) % 10):
            compiled(X, first, second).sum().backward()
            eager(X, first, second).sum().backward()
    for ours, theirs in zip(mine.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad)
    assert compiled.report().eager == 0, str(compiled.report())


def halved(x: Tensor) -> Tensor:
    out = [x]
    for _ in range(9):
        out.append(out[-1] * 0.5)
        if out[-1].sum() < 1:
            break
    return torch.stack(out)


def test_an_early_exit_of_a_loop_whatever_its_turns() -> None:
    compiled: Any = kiln.compile(halved, options={"cache": False})
    for start in (5.0, 2.0, 9.0, 40.0, 3.0, 90.0, 1e6):
        assert torch.equal(compiled(X * start), halved(X * start))
    report = compiled.report()
    # The call, the body, and behind the loop: a first number of items, then any number, then what follows `stack`.
    assert report.compiles <= 6 and not report.eager, str(report)
    assert {found.code for found in report.breaks} == {"KILN1004", "KILN1007"}, "no break takes an item"


def counted(x: Tensor) -> tuple[Tensor, int]:
    """Python between tensors, on values that data decide."""
    total = 0
    for value in x.tolist():
        total += value if value % 2 else -1
    return x * total, len(x.tolist())


def test_loops_over_lists_that_data_decide() -> None:
    compiled: Any = kiln.compile(counted, backend="eager")
    for length in (5, 3, 7, 4, 9, 2, 0, 12):
        x = torch.arange(length) * 3 + length
        got, want = compiled(x), counted(x)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]
    assert not compiled.report().eager, str(compiled.report())


def test_a_list_from_outside_is_guarded_as_far_as_its_items_are_read() -> None:
    def first_large(items: list[Tensor]) -> tuple[int, Tensor]:
        with torch.no_grad():
            for item in items:
                if item.sum() > 2:
                    break
        return len(item), item

    compiled: Any = kiln.compile(first_large, backend="eager")
    for length in range(1, 9):
        items = [X * (index + 1) / length for index in range(length)]
        assert compiled(items)[0] == first_large(items)[0]
    with pytest.raises(UnboundLocalError):
        compiled([])
    assert compiled.report().compiles <= 6, str(compiled.report())


@pytest.mark.parametrize("lengths", [(3, 0), (0, 3), (2, 1, 0)])
def test_a_loop_that_is_left_before_it_reads_its_item(lengths: tuple[int, ...]) -> None:
    def position(x: Tensor, items: list[int]) -> Tensor:
        for index, _ in enumerate(items):
            return x + index
        return x - 1

    compiled: Any = kiln.compile(position, backend="eager")
    for length in lengths:
        assert torch.equal(compiled(X, [0] * length), position(X, [0] * length))


@torch.compiler.disable
def read_in_python(number: int) -> set[object]:
    return {number, number + 1, "a" * number}


def test_sets_of_other_items_in_each_call_are_read_in_python() -> None:
    def program(x: Tensor, number: int) -> Tensor:
        y = x * 2
        items = read_in_python(number)
        return y * sum(item for item in items if isinstance(item, int)) + len(items)

    compiled: Any = kiln.compile(program, options={"cache": False, "speed_check": False})
    for number in range(12):
        assert torch.equal(compiled(X, number), program(X, number))
    assert compiled.report().eager == 0, str(compiled.report())


def every_tenth(x: Tensor, losses: list[float]) -> Tensor:
    loss = (x * 2).sum()
    losses.append(loss.item())
    return loss * 2 if len(losses) % 10 == 0 else loss


def mean_of_the_last(x: Tensor, losses: list[float]) -> Tensor:
    loss = (x * 2).sum()
    losses.append(loss.item())
    return loss + sum(losses[-5:]) / 5


def best_so_far(x: Tensor, losses: list[float]) -> Tensor:
    loss = (x * 2).sum()
    losses.append(loss.item())
    if len(losses) > 6:
        losses.pop(0)
    return loss + max(losses)


@pytest.mark.parametrize(("step", "most"), [(every_tenth, 5), (mean_of_the_last, 7), (best_so_far, 10)])
def test_a_history_of_floats_that_is_read(step: Callable[[Tensor, list[float]], Tensor], most: int) -> None:
    compiled: Any = kiln.compile(step, options={"cache": False, "speed_check": False})
    found, expected = list[float](), list[float]()
    for number in range(40):
        x = X * (number % 7)
        assert torch.equal(compiled(x, found), step(x, expected))
        assert found == expected
        if number == 19:
            compiles = compiled.report().compiles
    report = compiled.report()
    assert report.eager == 0 and report.compiles == compiles <= most, str(report)
