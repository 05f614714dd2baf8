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


class Meter:
    """The average of a number over the steps of a training, as many training scripts have it."""

    def __init__(self, name: str, spec: str) -> None:
        self.name, self.spec, self.val, self.avg, self.sum, self.count = name, spec, 0, 0, 0, 0

    def update(self, val: Any, count: int = 1) -> None:
        self.val = val
        self.sum += val * count
        self.count += count
        self.avg = self.sum / self.count  # type: ignore[assignment]

    def __str__(self) -> str:
        return ("{name} {val" + self.spec + "} ({avg" + self.spec + "})").format(**self.__dict__)


class Point:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Point({self.value:.2f})"

    def __format__(self, spec: str) -> str:
        return f"<{self.value:{spec or '.1f'}}>"


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


TEMPLATE = "{n:03d}-{a} {p.real}"
KEPT: dict[str, Any] = {
    "f-string": lambda x, n: (x * n, f"step {n}, {n / 3:.2f}, {n!r:>4}, {x.shape[0]}x{n}"),
    "percent": lambda x, n: (x, "%s %5.2f" % (n, n / 3), "%d%%" % n),  # noqa: UP031
    "format": lambda x, n: (x, "{:03d}-{}".format(n, "a"), format(n, "05d")),
    "str": lambda x, n: (x, str(n) + "/" + str(n + 1), repr(n), ",".join([str(n), "b"])),
    "format by name": lambda x, n: (x, TEMPLATE.format(n=n, a="a", p=n, b=object())),
    "methods": lambda x, n: (x, f"{n}".ljust(4) + str(n).zfill(3), f"a{n}".upper().replace("A", "b")),
    "own texts": lambda x, n: (x, str(Point(n)), repr(Point(n)), f"{Point(n)} {Point(n):.2f} {Point(n)!r}"),
    "appended": appended,
    "attribute": attribute,
    "logged": logged,
}
READ: dict[str, Any] = {
    "length": lambda x, n: x * len(f"{n}"),
    "key": lambda x, n: x * {"step 3": 1}.get(f"step {n}", 5),
    "comparison": lambda x, n: (x, f"{n}" == "4", "1" in str(n), f"{n},1".split(","), f"{Point(n)!r:>20}"),
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


def metered(make: Any) -> tuple[Any, list[object]]:
    loss, part = Meter("loss", ":.3f"), Meter("part", ":6.2f")

    def step(x: Tensor) -> tuple[str, Tensor]:
        loss.update(x.square().mean().item(), x.shape[0])
        part.update((x > 0).float().mean().item() * 100)
        return "\t".join(["[1]", *[str(meter) for meter in (loss, part)]]), x + 1

    compiled = make(step)
    return compiled, [compiled(torch.arange(n) - 2.0)[0] for n in (3, 4, 5, 3)]


def test_meters_of_a_training_are_written_without_a_break() -> None:
    compiled, got = metered(kiln.compile)
    assert got == metered(lambda step: step)[1]
    assert not kiln.report_of(compiled).breaks and kiln.report_of(compiled).compiles <= 3


ROUNDED: dict[str, Any] = {
    "kept": lambda loss: ({"loss": round(loss, 3), "all": [round(loss * 2, 1)]}, f"{round(loss, 2)}", round(loss, -1)),
    "read": lambda loss: (round(loss, 2) + 1, round(loss, 2) > 3, int(round(loss, 1)), {round(loss, 2): 1}),
    "in a tensor": lambda loss: torch.ones(2) * round(loss, 2),
    "in a condition": lambda loss: torch.ones(2) if round(loss, 2) > 4 else torch.zeros(2),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_that_data_decide_are_rounded_where_they_are_kept(name: str) -> None:
    def step(x: Tensor) -> Any:
        return ROUNDED[name](x.square().mean().item())

    compiled = kiln.compile(step)
    for n in (3, 4, 5):
        x = torch.arange(n) - 1.3
        assert str(compiled(x)) == str(step(x))
    assert bool(kiln.report_of(compiled).breaks) is (name != "kept")
