"""Outcomes of calls, results or errors, compared with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import kiln


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The result on copies of the arguments, and the copies; or the error."""
    arguments = copy.deepcopy(arguments)
    try:
        return function(*arguments), arguments
    except Exception as error:
        return error


def assert_like_eager(compiled: Callable[..., Any], program: Callable[..., Any], *arguments: Any) -> None:
    """Equal results and arguments, or an error that `except` clauses for eager's error catch."""
    torch.manual_seed(0)
    expected = outcome(program, arguments)
    torch.manual_seed(0)
    actual = outcome(compiled, arguments)
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        assert isinstance(expected, Exception), f"compiled raises {actual!r}, eager gives {expected[0]}"
        assert isinstance(actual, Exception), f"eager raises {expected!r}, compiled gives {actual[0]}"
        assert isinstance(actual, type(expected)), f"eager raises {expected!r}, compiled {actual!r}"
        return
    assert_same(actual, expected)


def assert_same(actual: Any, expected: Any) -> None:
    """Equal trees of tensors and plain values; other objects are compared by class."""
    assert type(actual) is type(expected)
    if isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for result, other in zip(actual, expected, strict=True):
            assert_same(result, other)
    elif isinstance(expected, dict):
        assert_same(list(actual.items()), list(expected.items()))
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
    elif type(expected).__module__ == "numpy" and expected.dtype.kind in "biufc":
        assert actual.dtype == expected.dtype and actual.flags.writeable == expected.flags.writeable
        tolerance = 1e-12 if actual.dtype.name == "float64" else 1e-6
        numbers = torch.as_tensor(actual), torch.as_tensor(expected)
        torch.testing.assert_close(*numbers, rtol=tolerance, atol=0, equal_nan=True)
    elif isinstance(expected, str | int | float | complex | bytes):
        assert actual == expected or actual != actual


def assert_like_python(program: Callable[[], Any], breaks: bool = False) -> None:
    """Twice the same text as in Python, with no part that runs eager, and no graph break unless it `breaks`."""
    expected = repr(program())
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert [repr(compiled()) for _ in range(2)] == [expected] * 2
    report = kiln.report_of(compiled)
    assert not report.eager_reasons and (breaks or not report.breaks)
