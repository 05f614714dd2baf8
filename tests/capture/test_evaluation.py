"""`exec`, `eval`, `compile` and what looks at frames: interpreted, with eager's results and without a graph break."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln

X = torch.arange(4.0)
OPTIONS = {"cache": False, "progress": False}
SCALE = 3


def variables_of_the_frame(x: torch.Tensor) -> object:
    number, other = 3, [1]

    def inner() -> int:
        return number

    return x * eval("number + SCALE"), sorted(locals()), eval("other") is other, inner(), len(dir())


def globals_given(x: torch.Tensor) -> object:
    space: dict[str, Any] = {"n": 2}
    exec("def scaled(v):\n    return v * n\nclass Point:\n    size = n\nn += 1", space)
    return space["scaled"](x), space["Point"].size, sorted(space), space["scaled"].__module__


def globals_and_locals(x: torch.Tensor) -> object:
    names: dict[str, Any] = {}
    exec("a = len(b)\nglobal c\nc = a + 1", {"b": [1, 2]}, names)
    return x + names["a"], names, "SCALE" in globals(), eval("a * 2", None, names)


def errors(x: torch.Tensor) -> object:
    found = []
    for source, space in (("1 +", {}), ("missing", {}), ("1 / 0", {}), ("n", 3), ("(yield)", {})):
        try:
            eval(source, space)  # type: ignore[arg-type]
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return x + 1, found


def compiled_code(x: torch.Tensor) -> object:
    code = compile("a + b", "<here>", "eval")
    return x + 1, [eval(code, {"a": a, "b": 2}) for a in range(3)], code.co_filename, code.co_names


def frames(x: torch.Tensor) -> object:
    def caller() -> object:
        return sys._getframe(1).f_code.co_name, sys._getframe().f_back.f_globals["SCALE"]  # type: ignore[union-attr]

    return x + 1, caller()


PROGRAMS: tuple[Callable[[torch.Tensor], Any], ...] = (
    variables_of_the_frame, globals_given, globals_and_locals, errors, compiled_code, frames,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_result_is_eagers(program: Callable[[torch.Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True, options=OPTIONS)
    for _ in range(2):
        assert repr(compiled(X)) == repr(program(X))


def test_a_changed_global_is_seen() -> None:
    space: dict[str, Any] = {"n": 2}

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * eval("n", space)

    compiled = kiln.compile(program, backend="eager", options=OPTIONS)
    assert torch.equal(compiled(X), X * 2)
    space["n"] = 5
    assert torch.equal(compiled(X), X * 5)


def test_functions_that_leave_keep_their_globals() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        space: dict[str, Any] = {}
        exec("count = 0\ndef step():\n    global count\n    count += 1\n    return count", space)
        space["step"]()
        return x + 1, space

    _, space = kiln.compile(program, backend="eager", options=OPTIONS)(X)
    assert space["step"]() == 2 and space["count"] == 2 and space["step"].__globals__ is space


def test_variables_after_a_break() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[str], int]:
        first, second = 1, collections.Counter("ab")
        y = x + float(x.sum())
        return y, sorted(locals()), eval("first + len(second)")

    found, expected = kiln.compile(program, backend="eager", options=OPTIONS)(X), program(X)
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
