# ruff: noqa: UP031, UP032
"""Metrics of numbers that were read of tensors: NumPy on lists of them, bounds, and texts, in one graph."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor], Any]


def numbers(x: Tensor) -> list[float]:
    return [x.mean().item(), x.amax().item(), x.sum().item()]


def mean_of_losses(x: Tensor) -> Any:
    losses = []
    for factor in range(4):
        losses.append((x * factor).pow(2).mean().item())
    return np.mean(losses)


def statistics_of_a_list(x: Tensor) -> Any:
    found = numbers(x)
    return np.mean(found), np.std(found), np.sum(found), np.max(found), np.median(found), np.min(tuple(found))


def arrays_of_lists(x: Tensor) -> Any:
    nested = [numbers(x), [1.0, 2, x.sum().item()]]
    return np.array(numbers(x)), np.asarray(nested), np.array(nested).mean(0), np.mean([x.sum().item(), 1, 2.5])


def of_integers(x: Tensor) -> Any:
    found = [int(index) for index in x.argmax(1)[:3]]
    return np.array(found), np.sum(found), np.mean(found), np.max(found)


def texts_of_scalars(x: Tensor) -> Any:
    mean = np.mean(numbers(x))
    print("mean", mean, f"{mean:.2f}")
    return f"{mean!s:.6} {mean:.3f} of {np.sum([1, x.argmax().item()])}"


def texts_of_float32(x: Tensor) -> Any:
    array = x.numpy()
    top, count = array.max(), (array > 0).sum()
    print("top", top, [top])
    return (
        "%.2f of %d" % (top, array.size),
        "{:.3f} {}".format(top, count),
        str(top),
        f"{top!r} {top:5.1f}",
        repr(count),
    )


def lines_of_json(x: Tensor) -> Any:
    top = x.amax().item()
    line = {"top": round(top, 3), "rows": x.shape[0], "best": [x.argmax().item(), {"of": (1, None)}], "ok": True}
    first = json.dumps(line)
    line["top"] = "changed"
    return first, json.dumps(line, indent=1, sort_keys=True), json.dumps({"known": 1}) + "\n"


def rounded_scalars(x: Tensor) -> Any:
    top = x.numpy().max() / 7
    return (
        round(top, 2),
        round(top.astype(np.float64) * 100, -1),
        round(float(top), 2),
        [round(n, 1) for n in x.numpy()[0]],
    )


def rounded_to_integers(x: Tensor) -> Any:
    return round(np.nan_to_num(x.numpy()).max() * 10), x + 1


def side_by_a_scalar(x: Tensor) -> Any:
    if np.mean(numbers(x)) > 2:
        return x * 2
    return x - 1


def clipped(x: Tensor) -> Any:
    mean = x.mean().item()
    return np.clip(mean / 4, -0.25, 0.25), np.maximum(mean, 0.0), np.minimum(1.0, mean)


def perplexity(x: Tensor) -> Any:
    return math.exp(min(x.mean().item(), 2)), math.exp(min(100, x.mean().item()))


def bounds_of_other_types(x: Tensor) -> Any:
    return max(0, x.mean().item()), min(x.mean().item(), 1), max(1, x.mean().item(), 0)


def divided_by_a_bound(x: Tensor) -> Any:
    return x.sum().item() / max(x.mean().item(), 1)


PROGRAMS: list[Program] = [
    *(mean_of_losses, statistics_of_a_list, arrays_of_lists, of_integers, texts_of_scalars, side_by_a_scalar, clipped),
    *(
        perplexity,
        bounds_of_other_types,
        divided_by_a_bound,
        texts_of_float32,
        lines_of_json,
        rounded_scalars,
        rounded_to_integers,
    ),
]


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, tuple):
        assert len(got) == len(expected)
        for both in zip(got, expected, strict=True):
            assert_same(*both)
    elif isinstance(expected, str):
        assert got == expected
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
    else:
        assert np.asarray(got).dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_metrics_are_those_of_eager(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 8, 8):
        for shift in (-1.5, 0.5, 3.0, math.nan):
            x = torch.arange(rows * 2.0).view(rows, 2) / 8 + shift
            expected, printed = program(x), capsys.readouterr().out
            assert_same(compiled(x), expected)
            assert re.sub(r"(\.\d{6})\d+", r"\1", capsys.readouterr().out) == re.sub(r"(\.\d{6})\d+", r"\1", printed)
    report = compiled.report()
    assert not report.breaks and not report.eager_reasons
    assert report.compiles == 2


def test_json_that_the_program_reads_or_that_json_refuses() -> None:
    def program(x: Tensor) -> Any:
        line = json.dumps({"sum": x.sum().item()})
        try:
            json.dumps({"x": x, "sum": x.sum().item()})
        except TypeError as error:
            return line.upper(), len(line), str(error)

    compiled: Any = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 8):
        x = torch.arange(rows * 2.0).view(rows, 2)
        assert compiled(x) == program(x)


def test_arrays_that_python_needs_break_the_graph_once() -> None:
    def program(x: Tensor) -> Any:
        losses = [(x * factor).sum().item() for factor in range(5)]
        return np.array(losses).argsort(), x + 1

    compiled: Any = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 8):
        x = torch.arange(rows * 2.0).view(rows, 2)
        got, expected = compiled(x), program(x)
        assert got[0].tolist() == expected[0].tolist()
        torch.testing.assert_close(got[1], expected[1])


def test_a_list_that_grows_from_call_to_call_breaks_the_graph_once() -> None:
    def program(x: Tensor, losses: list[float]) -> Any:
        loss = (x * 2).pow(2).mean()
        losses.append(loss.item())
        return x + float(np.mean(losses))

    compiled: Any = kiln.compile(program, options={"cache": False})
    lists: tuple[list[float], list[float]] = ([], [])
    for rows in (4, 4, 8, 8, 4, 8):
        x = torch.arange(rows * 2.0).view(rows, 2)
        torch.testing.assert_close(compiled(x, lists[1]), program(x, lists[0]))
        assert [type(loss) for loss in lists[1]] == [float] * len(lists[0])
    report = compiled.report()
    assert {found.code for found in report.breaks} == {"KILN1002"}
    assert report.compiles <= 4 and not report.eager_reasons


def test_a_text_that_refuses_nan_is_made_where_it_may_be_caught() -> None:
    def line(x: torch.Tensor) -> str:
        try:
            return json.dumps({"loss": x.sum().item()}, allow_nan=False)
        except ValueError:
            return "no number"

    compiled = kiln.compile(line)
    for value in (1.0, float("nan"), 2.0):
        x = torch.full((2,), value)
        assert compiled(x) == line(x)
