"""A list that gets items on one side of an `if` on data is filled behind the region, if the frame does not read it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, list[Any]], Any]


def log_from_outside(x: Tensor, log: list[Any]) -> Any:
    mean = x.sin().mean()
    if mean > 0:
        log.append(mean.detach())
    return x * 2


def several_items_of_both_sides(x: Tensor, log: list[Any]) -> Any:
    y = x * 2
    if x.mean() > 0:
        total = y.sum(0)
        y = y + total
        log.append(total)
        log.append(total.mean().item())
    else:
        log.append("low")
    return y


def one_item_of_each_side(x: Tensor, log: list[Any]) -> Any:
    if x.mean() > 0:
        log.append(x.sum())
    else:
        log.append(x.mean())
    return x


def indices(x: Tensor, log: list[Any]) -> Any:
    found: list[Any] = []
    for index, row in enumerate(x[:4]):
        total = row.sum()
        if total.item() > 3:
            found.append(index)
        elif total < -2:
            found.append(row * 2)
            found.append((index, total))
    found.append("end")
    return found, {"same": found}


def in_nested_branches(x: Tensor, log: list[Any]) -> Any:
    mean = x.mean()
    found: list[Any] = [0]
    if mean > 0:
        found.append(1)
        if mean > 2:
            found.append(mean)
            log.append(f"high {mean.item():.2f}")
    return found


def in_a_closure(x: Tensor, log: list[Any]) -> Any:
    found: list[Tensor] = []

    def add(total: Tensor) -> None:
        if total > 0:
            found.append(total)

    for row in x[:3]:
        add(row.sum())
    return (found,), x + 1


def with_an_early_return(x: Tensor, log: list[Any]) -> Any:
    if x.mean() > 0:
        log.append(x.sum())
        return x + 1
    return x * 2


def extended(x: Tensor, log: list[Any]) -> Any:
    if x.mean() > 0:
        log.extend([1, x.sum()])
    log += [2]
    return x


def the_same_tensor(x: Tensor, log: list[Any]) -> Any:
    y = x * 2
    if x.mean() > 0:
        log.append(y)
    y.add_(1)
    return y


def left_by_a_break(x: Tensor, log: list[Any]) -> Any:
    found: list[Any] = []
    for row in x[:4]:
        total = row.sum()
        if total > 3:
            break
        found.append(total)
    return found


def printed(x: Tensor, log: list[Any]) -> Any:
    found: list[Any] = [1]
    if x.mean() > 0:
        found.append(2)
    print(found)
    return found


def summed(x: Tensor, log: list[Any]) -> Any:
    found: list[Any] = [x]
    if x.mean() > 0:
        found.append(x + 1)
    return sum(found), len(found)


def shares_memory(x: Tensor, log: list[Any]) -> Any:
    y = x * 2
    if x.mean() > 0:
        log.append(y.detach())
    return y


def view_of_a_result(x: Tensor, log: list[Any]) -> Any:
    y = x * 2
    if x.mean() > 0:
        log.append(y[0])
    return y


def read_behind_the_branch(x: Tensor, log: list[Any]) -> Any:
    if x.mean() > 0:
        log.append(x.shape[0])
    return len(log), x


def read_behind_a_loop(x: Tensor, log: list[Any]) -> Any:
    found: list[Any] = []
    for row in x[:4]:
        if row.sum() > 0:
            found.append(row * 2)
    return torch.stack(found) if found else x.new_zeros(0, 2)


def in_front_of_a_break(x: Tensor, log: list[Any]) -> Any:
    found: list[Any] = []
    if x.mean() > 0:
        found.append(x.sum())
        log.append(found)
    torch._dynamo.graph_break()
    found.append(1)
    return found, len(found)


ONE_GRAPH: list[Program] = [
    *(log_from_outside, several_items_of_both_sides, one_item_of_each_side, indices, in_nested_branches, in_a_closure),
    *(with_an_early_return, extended, the_same_tensor, left_by_a_break, printed, summed),
]
BROKEN: list[Program] = [
    *(shares_memory, view_of_a_result, read_behind_the_branch, read_behind_a_loop, in_front_of_a_break),
]


def assert_same(got: Any, expected: Any) -> None:
    """Equal, and the same objects in the same places."""
    names: tuple[dict[int, int], dict[int, int]] = ({}, {})
    waiting = [(got, expected)]
    while waiting:
        a, b = waiting.pop()
        assert type(a) is type(b)
        if isinstance(b, Tensor | list):
            assert names[0].setdefault(id(a), len(names[0])) == names[1].setdefault(id(b), len(names[1]))
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b)
        elif isinstance(b, list | tuple):
            assert len(a) == len(b)
            waiting += zip(a, b, strict=True)
        elif isinstance(b, dict):
            waiting += zip(a.values(), b.values(), strict=True)
        else:
            assert a == b or math.isclose(a, b, rel_tol=1e-6)


@pytest.mark.parametrize("program", [*ONE_GRAPH, *BROKEN], ids=lambda program: program.__name__)
def test_lists_are_those_of_eager(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    logs: tuple[list[Any], list[Any]] = ([], [])
    for rows in (4, 4, 8, 8):
        for shift in (-1.5, 0.5, 3.0, -4.0):
            x = torch.arange(rows * 2.0).view(rows, 2) / 8 - 0.75 + shift
            expected, text = program(x, logs[0]), capsys.readouterr().out
            got = compiled(x, logs[1])
            assert_same((got, logs[1], x), (expected, logs[0], x))
            assert capsys.readouterr().out == text
            if logs[1] and isinstance(got, Tensor) and isinstance(logs[1][-1], Tensor):
                shared = [tensors.untyped_storage().data_ptr() for tensors in (got, logs[1][-1])]
                pair = [tensors.untyped_storage().data_ptr() for tensors in (expected, logs[0][-1])]
                assert (shared[0] == shared[1]) == (pair[0] == pair[1])
    report = compiled.report()
    if program in ONE_GRAPH:
        assert not report.breaks and not report.eager_reasons
        assert report.compiles <= 2


def test_items_have_gradients() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        found: list[Any] = []
        loss = (x * w).sum()
        if loss > 0:
            found.append((x @ w).exp())
            found.append(loss.item())
        return loss * 2, found

    compiled: Any = kiln.compile(program, options={"cache": False})
    for shift in (1.0, -1.0, 2.0):
        x = torch.arange(6.0).view(2, 3) / 8 + shift
        gradients = []
        for function in (program, compiled):
            w = torch.ones(3, requires_grad=True)
            loss, found = function(x, w)
            assert loss.requires_grad and [item.requires_grad for item in found[:1]] == [True] * len(found[:1])
            (loss + sum(item.sum() for item in found[:1])).backward()
            gradients.append(w.grad)
            assert len(found) in (0, 2)
        torch.testing.assert_close(*gradients)
    assert not compiled.report().breaks


def test_a_list_that_is_read_breaks_the_graph_where_it_is_read() -> None:
    compiled: Any = kiln.compile(read_behind_a_loop, options={"cache": False})
    for rows in (4, 4, 8, 8):
        for shift in (0.5, -4.0, -0.5, 3.0):
            x = torch.arange(rows * 2.0).view(rows, 2) / 8 - 0.75 + shift
            torch.testing.assert_close(compiled(x, []), read_behind_a_loop(x, []))
    report = compiled.report()
    assert len({found.where for found in report.breaks}) == 1
    assert report.compiles <= 6
