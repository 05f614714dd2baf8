"""A side of a branch on data may divide by what its condition keeps from being zero: the other calls do not divide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor], Any]


def counts(x: Tensor) -> tuple[int, int]:
    return int((x > 0).sum()), int((x > 1).sum())


def scores(x: Tensor) -> Any:
    """Precision, recall and their mean, class by class."""
    found = []
    for column in range(3):
        right, extra = counts(x[:, column])
        lost = (x[:, column] < -1).sum().item()
        precision = right / (right + extra) if right + extra > 0 else 0.0
        recall = right / (right + lost) if right + lost > 0 else 0.0
        found.append(2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0)
    return found, sum(found) / len(found)


def wholes(x: Tensor) -> Any:
    some, many = counts(x)
    return some // many if many > 0 else -1, some % many if many else 7


def refused(x: Tensor) -> Any:
    """The condition does not keep it from being zero."""
    some, many = counts(x)
    return some / many if some >= 0 else -1.0


def returned(x: Tensor) -> Any:
    some, many = counts(x)
    if some > 2:
        if many > 0:
            return some / many
        return some / (many + 1)
    return float(many)


def absent(x: Tensor) -> Any:
    some, many = counts(x)
    rate = some / (some + many) if some + many > 0 and some > 1 else None
    return rate, round(some / many, 2) if many else 0, f"{some / many:.2f}" if many else "none"


def scaled(x: Tensor) -> Any:
    some, many = counts(x)
    if many > 1:
        x = x * (some / (many - 1))
        print(f"by {some / (many - 1):.3f}")
    return x + 1


def sized(x: Tensor) -> Any:
    some, many = counts(x)
    return (x[: some // many] if many > 0 else x) * 2


def domains(x: Tensor) -> Any:
    first = x[0, 0].item()
    return math.log(first) if first > 0 else None, math.sqrt(first) if first >= 0 else "none"


def halvings(x: Tensor) -> Any:
    total, turns = x.sum(), 0
    while total > 1:
        total = total * 0.5
        turns += 1
    return total, 10 / turns if turns else 0.0


def result(program: Program, x: Tensor) -> Any:
    try:
        return program(x)
    except ZeroDivisionError as error:
        return type(error), str(error)


PROGRAMS: list[Program] = [scores, wholes, refused, returned, absent, scaled, sized, domains, halvings]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 6, 7, 3):
        for shift in (0.0, -3.0, 2.0, -0.5, -9.0):
            torch.manual_seed(rows)
            x = torch.randn(rows, 3) + shift
            expected, printed = result(program, x), capsys.readouterr().out
            assert str(result(compiled, x)) == str(expected)
            assert capsys.readouterr().out == printed
    report = compiled.report()
    assert report.compiles == 2 and not report.breaks and not report.eager_reasons, str(report)
