"""What a program prints, logs and warns of is written behind the region: the same text, in eager's order."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import kiln

X = torch.arange(4.0)
LOGGER = logging.getLogger("kiln.tests.printing")
LINES: list[str] = []


class Loud:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        print("asked", self.name)
        return self.name


class Refusing:
    def __str__(self) -> str:
        raise ValueError("no text")


class Tee:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


def tensors(x: Tensor) -> Tensor:
    y = x + 1
    print("sum", y.sum(), f"mean {y.mean():.3f}", y, {"y": [y[:2], 3]}, "%s" % y[0])  # noqa: UP031
    return y * 2


def numbers(x: Tensor) -> Tensor:
    y = x * 2
    print(y.sum().item(), f"{y.max().item():>8.2f}", y.shape, x.shape[0] + 1, sep="|", end="!\n", flush=True)
    return y


def changed_container(x: Tensor) -> Tensor:
    seen = [x + 1]
    print(seen)
    seen.append(x)
    print(seen, file=sys.stderr)
    return seen[0]


def loop(x: Tensor) -> Tensor:
    for step in range(3):
        x = x * 2
        print(f"step {step}: {x.sum()}")
    return x


def order_of_effects(x: Tensor) -> Tensor:
    print("first", end=" ")
    LINES.append("line")
    print("a", Loud("loud"), "b", Loud("louder"))
    sys.stdout.write("written\n")
    return x + len(LINES)


def exception_between(x: Tensor) -> Tensor:
    try:
        print("before", Refusing(), "after")
    except ValueError as error:
        print("raised", error)
    return x + 1


def to_streams(x: Tensor) -> Any:
    buffer, tee = io.StringIO(), Tee()
    print("buffer", 1, file=buffer)
    print("tee", 2, file=tee)
    return x + 1, buffer.getvalue(), tee.parts


def kept_text(x: Tensor) -> Any:
    y = x.sigmoid()
    LINES.append(f"{y.sum():.4f}")
    return y, str(y), repr(y[0])


WHOLE = [tensors, numbers, changed_container, loop, order_of_effects, exception_between, to_streams, kept_text]


def changed_tensor(x: Tensor) -> Tensor:
    y = x + 1
    print(y)
    y.add_(1)
    return y


def redirected(x: Tensor) -> Any:
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        print("inside", x.sum())
    print("outside")
    return x + 1, buffer.getvalue()


def read_text(x: Tensor) -> Tensor:
    print(text := f"{x.sum()}")
    return x * len(text)


def in_checkpoint(x: Tensor) -> Tensor:
    def body(x: Tensor) -> Tensor:
        print("body")
        return x.sin()

    y = checkpoint(body, x, use_reentrant=False)
    assert isinstance(y, Tensor)
    return y.sum()


def refused(x: Tensor) -> Tensor:
    y = x + 1
    try:
        text = f"{y:.2f}"
    except TypeError:
        text = "refused"
    print(text)
    return y


def outcome(program: Callable[[Tensor], Any], x: Tensor) -> Any:
    LINES.clear()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        result = program(x)
    return result, out.getvalue(), err.getvalue(), list(LINES)


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, list | tuple):
        assert type(got) is type(expected) and len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert got == expected


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_printed_behind_the_region(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X * 3, torch.ones(6)):
        assert_same(outcome(compiled, x), outcome(program, x))
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons


@pytest.mark.parametrize(
    "program", [changed_tensor, redirected, read_text, in_checkpoint, refused], ids=lambda program: program.__name__
)
def test_printed_where_the_program_does(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X * 3):
        assert_same(outcome(compiled, x), outcome(program, x))


def test_kernels_print_the_same() -> None:
    compiled = kiln.compile(loop, options={"cache": False})
    assert_same(outcome(compiled, X), outcome(loop, X))


def logged(x: Tensor) -> Tensor:
    y = x + 1
    logging.getLogger("kiln.tests.printing").warning("sum %s of %s", y.sum(), [y[0], 2])
    LOGGER.info("not wanted %s", y)
    return y


def test_tensors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    compiled = kiln.compile(logged, backend="eager", options={"cache": False})
    with caplog.at_level(logging.WARNING):
        for x in (X, X * 2):
            logged(x)
            compiled(x)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == texts[1] and texts[2] == texts[3] and len(texts) == 4
    assert not kiln.report_of(compiled).breaks


def warning(x: Tensor) -> Tensor:
    warnings.warn(f"{x.shape[0]} rows", DeprecationWarning, stacklevel=1)
    inner()
    return x + 1


def inner() -> None:
    warnings.warn("from the caller", stacklevel=2)


def call(program: Callable[[Tensor], Tensor]) -> None:
    program(X)


def check_warnings(program: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
    """The compiled program, which warns like `program`, `count` times in each call."""
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    found: list[Any] = []
    for each in (program, compiled, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(each)
        found.append([(str(entry.message), entry.category, entry.filename, entry.lineno) for entry in caught])
    assert found[0] == found[1] == found[2] and len(found[0]) == count
    assert not kiln.report_of(compiled).breaks
    return compiled


def test_warnings_have_their_lines() -> None:
    compiled = check_warnings(warning, 2)
    with warnings.catch_warnings(), pytest.raises(DeprecationWarning):
        warnings.simplefilter("error")
        compiled(X)


def outer_warning(x: Tensor) -> Tensor:
    warn_caller()
    return x + 1


def warn_caller() -> None:
    warnings.warn("of who called the compiled function", stacklevel=3)


def test_a_warning_of_the_caller_is_at_its_line() -> None:
    compiled = check_warnings(outer_warning, 1)
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="who called"):
        warnings.simplefilter("error")
        call(compiled)
