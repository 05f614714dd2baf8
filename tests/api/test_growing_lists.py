"""Lists of another length in each call: compiled for the first lengths and for those that recur."""

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
