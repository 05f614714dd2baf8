"""`tolist()` of many elements, or of sizes that change: the list is made behind the region, if nothing reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, dict[str, Any]], Any]


def returned(x: Tensor, state: dict[str, Any]) -> Any:
    return x.argmax(1).tolist(), x[:, :1].tolist(), (x > 0).tolist(), x.view(-1, 2, 2).tolist()


def added_to_a_list_from_outside(x: Tensor, state: dict[str, Any]) -> Any:
    state["log"].extend(x.argmax(1).tolist())
    return x + 1


def added_with_other_items(x: Tensor, state: dict[str, Any]) -> Any:
    log = state["log"]
    log.append(x.shape[0])
    log += x[:, 0].tolist()
    log.extend([1, x.sum()])
    return x


def added_to_a_list_made_inside(x: Tensor, state: dict[str, Any]) -> Any:
    found = [0]
    found.extend(x.argmax(1).tolist())
    found.append(9)
    return found, {"found": found}


def added_by_one_side(x: Tensor, state: dict[str, Any]) -> Any:
    if x.mean() > 0:
        state["log"].extend((x * 2).argmax(1).tolist())
        print(x.shape)
    return x


def held_twice(x: Tensor, state: dict[str, Any]) -> Any:
    found = x.argmax(1).tolist()
    state["log"].append(found)
    if x.mean() > 0:
        state["log"].append(found)
    print(found)
    return found


def read(x: Tensor, state: dict[str, Any]) -> Any:
    found = [0]
    found.extend(x.argmax(1).tolist())
    return len(found), sum(found), sorted(set(found))


def changed(x: Tensor, state: dict[str, Any]) -> Any:
    found = x.argmax(1).tolist()
    found.append(3)
    found[0] = 7
    return found


def of_a_tensor_that_changes(x: Tensor, state: dict[str, Any]) -> Any:
    y = x[:, 0] * 2
    state["log"].extend(y.tolist())
    return y.add_(1)


WITHOUT_BREAK: list[Program] = [
    *(returned, added_to_a_list_from_outside, added_with_other_items, added_to_a_list_made_inside, held_twice),
]


def shape_of(value: Any, known: dict[int, int]) -> Any:
    """The value, with a number for each list."""
    if isinstance(value, list):
        return known.setdefault(id(value), len(known)), [shape_of(item, known) for item in value]
    if isinstance(value, tuple | dict):
        return [shape_of(item, known) for item in (value.values() if isinstance(value, dict) else value)]
    return value.tolist() if isinstance(value, Tensor) else (type(value), value)


@pytest.mark.parametrize(
    "program",
    [*WITHOUT_BREAK, added_by_one_side, read, changed, of_a_tensor_that_changes],
    ids=lambda program: program.__name__,
)
def test_lists_are_those_of_eager(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    states: tuple[dict[str, Any], dict[str, Any]] = ({"log": []}, {"log": []})
    for rows in (4, 4, 40, 8, 2):
        for shift in (-20.0, 1.0):
            x = torch.arange(rows * 4.0).remainder(7).view(rows, 4) + shift
            expected = program(x.clone(), states[0]), capsys.readouterr().out
            got = compiled(x.clone(), states[1]), capsys.readouterr().out
            assert shape_of((got[0], states[1]), {}) == shape_of((expected[0], states[0]), {})
            assert got[1] == expected[1]
    report = compiled.report()
    if program in WITHOUT_BREAK:
        assert not report.breaks and not report.eager_reasons
        assert report.compiles <= 4
