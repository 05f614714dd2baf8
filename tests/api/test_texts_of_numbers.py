"""Texts of numbers that change from call to call are made by transformed code: they fix no number."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

LINES: list[str] = []
LOGGER = logging.getLogger("kiln.tests.texts")


class Named:
    name = ""


NAMED = Named()


def appended(x: Tensor, n: int) -> Tensor:
    LINES.append("step %d of %s" % (n, "x"))  # noqa: UP031
    return x * 2


def attribute(x: Tensor, n: int) -> Tensor:
    NAMED.name = f"n{n:03d}"
    LINES.append(NAMED.name)
    return x * n


def logged(x: Tensor, n: int) -> Tensor:
    LOGGER.info("step %d, rate %.3f", n, n * 0.1)
    LOGGER.info(f"step {n!r:>5}")
    return x + n


KEPT: dict[str, Any] = {
    "f-string": lambda x, n: (x * n, f"step {n}, {n / 3:.2f}, {n!r:>4}, {x.shape[0]}x{n}"),
    "percent": lambda x, n: (x, "%s %5.2f" % (n, n / 3), "%d%%" % n),  # noqa: UP031
    "format": lambda x, n: (x, "{:03d}-{}".format(n, "a"), format(n, "05d")),
    "str": lambda x, n: (x, str(n) + "/" + str(n + 1), repr(n), ",".join([str(n), "b"])),
    "appended": appended,
    "attribute": attribute,
    "logged": logged,
}
READ: dict[str, Any] = {
    "length": lambda x, n: x * len(f"{n}"),
    "key": lambda x, n: x * {"step 3": 1}.get(f"step {n}", 5),
    "comparison": lambda x, n: (x, f"{n}" == "4", "1" in str(n), f"{n}".zfill(3)),
}


def check(program: Any, most: int, caplog: pytest.LogCaptureFixture) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    x = torch.arange(3.0)
    caplog.set_level(logging.INFO, logger=LOGGER.name)
    for n in range(2, 9):
        seen = []
        for function in (program, compiled):
            LINES.clear()
            caplog.clear()
            result = function(x, n)
            parts = result if isinstance(result, tuple) else (result,)
            values = [part.tolist() if isinstance(part, Tensor) else part for part in parts]
            seen.append((values, list(LINES), list(caplog.messages)))
        assert seen[0] == seen[1]
    assert kiln.report_of(compiled).compiles <= most


@pytest.mark.parametrize("name", KEPT)
def test_texts_that_are_kept(name: str, caplog: pytest.LogCaptureFixture) -> None:
    check(KEPT[name], 2, caplog)


@pytest.mark.parametrize("name", READ)
def test_texts_that_are_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    check(READ[name], 8, caplog)


def test_a_format_that_raises() -> None:
    def show(x: Tensor, n: int) -> tuple[Tensor, str]:
        return x, f"{n:s}"

    compiled = kiln.compile(show)
    for n in (2, 3, 4):
        with pytest.raises(ValueError, match="Unknown format code"):
            compiled(torch.zeros(1), n)
