"""Loops of training programs that compare a metric with the best one: counts and flags of one side, in one graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, dict[str, Any]], Any]


def flag_in_a_nested_if(x: Tensor, state: dict[str, Any]) -> Any:
    loss = x.mean().item()
    if loss < state["best"] - 1e-3:
        state["best"] = loss
        state["bad"] = 0
    else:
        state["bad"] += 1
        if state["bad"] > 1:
            state["stop"] = True
    return x * 2


def message_in_a_nested_if(x: Tensor, state: dict[str, Any]) -> Any:
    loss = x.mean()
    if loss < state["best"] - 1e-3:
        state["best"] = loss.item()
        state["bad"] = 0
    else:
        state["bad"] += 1
        if state["bad"] > 1:
            print("stopping")
            state["stop"] = True
    return x * 2


def returns_the_flag(x: Tensor, state: dict[str, Any]) -> Any:
    loss = x.mean().item()
    if loss < state["best"]:
        state["best"] = loss
        state["bad"] = 0
        return False
    state["bad"] += 1
    return state["bad"] >= 2


def window_of_losses(x: Tensor, state: dict[str, Any]) -> Any:
    state["window"].append(x.mean().item())
    return x * 2


def window_that_one_side_fills(x: Tensor, state: dict[str, Any]) -> Any:
    y = x * 2
    loss = y.mean().item()
    if loss > 0:
        state["window"].append(loss / 2)
        state["window"].extend((y.sum(0), x.shape[0]))
        y = y + 1
    return y


def window_from_the_left(x: Tensor, state: dict[str, Any]) -> Any:
    push = state["window"].appendleft
    push(x.sum(0))
    push(x.shape[0])
    return x + 1


def window_that_is_read(x: Tensor, state: dict[str, Any]) -> Any:
    state["window"].append(x.sum().item())
    length = len(state["window"])
    state["window"].append(length)
    return sum(state["window"]) / length


ONE_GRAPH: dict[Program, int] = {
    flag_in_a_nested_if: 4,
    message_in_a_nested_if: 4,
    returns_the_flag: 3,
    window_of_losses: 2,
    window_that_one_side_fills: 2,
    window_from_the_left: 2,
}
"""Programs without a break, and how often they are compiled at most."""


@pytest.mark.parametrize("program", [*ONE_GRAPH, window_that_is_read], ids=lambda program: program.__name__)
def test_state_is_that_of_eager(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    states: list[dict[str, Any]]
    states = [{"best": 1e9, "bad": 0, "stop": False, "window": deque[Any](maxlen=4)} for _ in range(2)]
    windows = [state["window"] for state in states]
    for rows in (4, 4, 8, 8):
        for shift in (3.0, -0.5, 0.5, 0.5, -2.0):
            x = torch.arange(rows * 2.0).view(rows, 2) / 8 + shift  # all sums are exact
            expected = program(x, states[0]), capsys.readouterr().out
            got = compiled(x, states[1]), capsys.readouterr().out
            torch.testing.assert_close(got[0], expected[0], rtol=0, atol=0)
            assert got[1] == expected[1] and type(got[0]) is type(expected[0])
            for name in ("best", "bad", "stop"):
                assert type(states[1][name]) is type(states[0][name]) and states[1][name] == states[0][name]
            assert states[1]["window"] is windows[1]
            torch.testing.assert_close(list(windows[1]), list(windows[0]), rtol=0, atol=0)
            assert [type(item) for item in windows[1]] == [type(item) for item in windows[0]]
    report = compiled.report()
    if program in ONE_GRAPH:
        assert not report.breaks and not report.eager_reasons
        assert report.compiles <= ONE_GRAPH[program]


def test_a_deque_of_a_derived_class_runs_its_own_method() -> None:
    class Counted(deque[Any]):
        appended = 0

        def append(self, item: Any) -> None:
            self.appended += 1
            super().append(item)

    def program(x: Tensor, window: Counted) -> Tensor:
        window.append(x.shape[0])
        return x + 1

    window = Counted()
    compiled = kiln.compile(program, options={"cache": False})
    for _ in range(3):
        compiled(torch.ones(3), window)
    assert window.appended == 3 and list(window) == [3, 3, 3]
