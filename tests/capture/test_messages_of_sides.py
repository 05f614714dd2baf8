"""What one side of an `if` on data prints, logs or warns of is written where that side is taken, without a break."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

LOGGER = logging.getLogger("kiln.tests.sides")
Program = Callable[[Tensor], Any]


def constant_text(x: Tensor) -> Any:
    if x.mean() > 0:
        print("above")
    return x * 2


def both_sides(x: Tensor) -> Any:
    if x.mean() > 0:
        print("above", x.mean(), sep=": ")
    else:
        print("below", x.shape, file=sys.stderr)
    print("behind")
    return x * 2


def values_of_the_side(x: Tensor) -> Any:
    y = x * 2
    if x.mean() > 0:
        total = (y * 4).sum()
        y = y + total
        print(f"{total:.2f} of {total.item() * 2:.2f}", [total.item(), {"rows": y.shape[0]}], y.sum())
    return y


def number_from_before(x: Tensor) -> Any:
    mean = x.mean().item()
    best = 0.0
    if mean > best:
        print(f"improved from {best:.2f} to {mean:.2f}")
        best = mean
    return best


def text_that_other_calls_cannot_have(x: Tensor) -> Any:
    number = x.mean().log().item()
    if number == number:
        print("logarithm %d" % number)  # noqa: UP031 (it raises for NaN)
    return x + 1


def nested(x: Tensor) -> Any:
    mean = x.mean()
    if mean > 0:
        y = x * 2
        if mean > 2:
            print("high", y.sum())
            y = y + 1
        else:
            print("middle", y.shape)
    else:
        y = x - 1
    return y


def in_a_callee_that_returns(x: Tensor) -> Any:
    def checked(y: Tensor) -> Tensor:
        if y.sum() > 3:
            LOGGER.warning("%d rows above: %.2f", y.shape[0], y.sum().item())
            return y / 2
        return y + 1

    return checked(x) * checked(-x)


def in_a_loop(x: Tensor) -> Any:
    for number, row in enumerate(x[:3]):
        if row.sum() > 0:
            print(number, row.sum())
            x = x + 1
    return x


def warnings_of_one_side(x: Tensor) -> Any:
    if x.mean() > 0:
        warnings.warn(f"mean {x.mean().item():.2f}", stacklevel=1)
    return x * 2


def with_an_early_return(x: Tensor) -> Any:
    if x.mean() > 0:
        print("early", x.sum())
        return x + 1
    print("late")
    return x * 2


def list_that_changes_later(x: Tensor) -> Any:
    parts = [1, x.sum()]
    if x.mean() > 0:
        print(parts)
    parts.append(2)
    return parts


def tensor_that_changes_later(x: Tensor) -> Any:
    y = x * 2
    if x.mean() > 0:
        print(y)
    return y.add_(1)


def tensor_that_the_side_changes(x: Tensor) -> Any:
    y = x * 2
    if x.mean() > 0:
        print(y)
        y.add_(1)
        print(y)
    return y


def in_front_of_a_break(x: Tensor) -> Any:
    if x.mean() > 0:
        print("in front", x.sum())
    print("between")
    torch._dynamo.graph_break()
    if x.mean() > 0:
        print("behind", x.sum())
    return x + 1


ONE_GRAPH: list[Program] = [
    *(constant_text, both_sides, values_of_the_side, number_from_before, text_that_other_calls_cannot_have, nested),
    *(in_a_callee_that_returns, in_a_loop, warnings_of_one_side, with_an_early_return, list_that_changes_later),
]
BROKEN: list[Program] = [tensor_that_changes_later, tensor_that_the_side_changes, in_front_of_a_break]


def told(function: Program, x: Tensor) -> tuple[Any, list[str]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    LOGGER.addHandler(handler)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            result = function(x.clone())
    finally:
        LOGGER.removeHandler(handler)
    lines = [*out.getvalue().splitlines(), *[str(warning.message) for warning in caught]]
    return result, [re.sub(r"(\.\d\d)\d+", r"\1", line) for line in lines]


@pytest.mark.parametrize("program", [*ONE_GRAPH, *BROKEN], ids=lambda program: program.__name__)
def test_messages_are_those_of_eager(program: Program) -> None:
    LOGGER.propagate = False
    compiled = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 8, 8):
        for shift in (-1.5, 0.5, 3.0):
            x = torch.arange(rows * 2.0).view(rows, 2) / 8 - 0.75 + shift  # all sums are exact
            expected, got = told(program, x), told(compiled, x)
            torch.testing.assert_close(got[0], expected[0])
            assert got[1] == expected[1]
    report = compiled.report()
    if program in ONE_GRAPH:
        assert not report.breaks and not report.eager_reasons
        assert report.compiles == 2
