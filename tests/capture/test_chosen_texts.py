"""Texts that a number of a tensor chooses: letters of a decoder, names of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor], Any]
NAMES = ["<pad>", "cat", "dog", "<eos>", "cat"]


def letters(x: Tensor) -> Any:
    text = ""
    for row in range(3):
        text += "abcdef"[int(x[row].argmax())]
    return text, x * 2


def answered(x: Tensor) -> Any:
    answer, log = ("no", "yes")[int(x.sum() > 0)], []
    if answer == "yes":
        log.append(answer)
    return answer, log, f"{answer}!"


def decoded(x: Tensor) -> list[str]:
    words = []
    for row in range(3):
        word = NAMES[int(x[row].argmax())]
        if word == "<eos>":
            break
        words.append(word)
    return words


def list_that_is_changed(x: Tensor) -> Any:
    names = ["x", "y", "z"]
    name = names[int(x[0, :3].argmax())]
    names[0] = "changed"
    names.append("w")
    return name, names


@pytest.mark.parametrize("program", [letters, answered, decoded, list_that_is_changed], ids=lambda it: it.__name__)
def test_one_graph(program: Program) -> None:
    report = require_same(program)
    assert report.compiles == 2 and not report.breaks and not report.eager_reasons, str(report)


def out_of_range(x: Tensor) -> Any:
    try:
        return NAMES[int(x[0, 0] * 10)], x + 1
    except IndexError as error:
        return str(error)


def read_at_once(x: Tensor) -> Any:
    name = NAMES[int(x[0].argmax())]
    return {name: 1}, len(name), name in ("dog", "<pad>"), name < "d", name != "bird", name == "cat"


@pytest.mark.parametrize("program", [out_of_range, read_at_once], ids=lambda it: it.__name__)
def test_what_python_needs_is_as_in_eager(program: Program) -> None:
    assert not require_same(program).eager_reasons


def require_same(program: Program) -> Any:
    compiled: Any = kiln.compile(program, options={"cache": False})
    for rows in (4, 4, 6, 7):
        for seed in range(5):
            torch.manual_seed(10 * rows + seed)
            x = torch.randn(rows, 5) * 0.3
            assert str(compiled(x)) == str(program(x))
    return compiled.report()
