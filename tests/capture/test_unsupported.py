"""What is not modelled: right results, and a break or skip with a stable code, the line, a reason and a hint."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from typing import Any

import pytest
import torch

PROGRAMS: list[tuple[Any, list[str]]] = []


def program(*codes: str) -> Any:
    def register(function: Any) -> Any:
        PROGRAMS.append((function, list(codes)))
        return function

    return register


@program("KILN1010")
def waits_in_the_middle(x):
    y = x * 2
    time.sleep(0)
    z = y + 1
    time.sleep(0.001)
    return z


@program("KILN1010")
def warning(x):
    y = x * 2
    warnings.warn("careful", stacklevel=1)
    return y + 1


@program("KILN1005", "KILN1002")
def generator_alive_across_a_break(x):
    g = (x * i for i in range(4))
    a = next(g)
    time.sleep(0)
    return a + sum(g)


@program("KILN1005")
def generator_returned(x):
    g = (x * i for i in range(4))
    next(g)
    return g


@program("KILN1010")
def clock(x):
    return x + (time.time() > 0)


@program("KILN1003")
def attribute_of_torch_written(x):
    y = x * 2
    y.grad = x
    return y + 1


@program("KILN1012")
def deletes_a_global(x):
    global TEMPORARY
    TEMPORARY = 1
    del TEMPORARY
    return x


def run(function: Any) -> tuple[Any, str, list[str]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(torch.arange(6.0).reshape(2, 3))
    result = list(result) if hasattr(result, "__next__") else result
    return result, out.getvalue(), [str(warning.message) for warning in caught]


@pytest.mark.parametrize(("function", "codes"), PROGRAMS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_break_says_where_and_why(lab, equal, function, codes) -> None:
    expected = run(function)
    equal(run(lab.compile(function)), expected)
    stops = [stop for got in lab.captures for stop in (*got.breaks, *([got.skipped] if got.skipped else []))]
    found = {stop.code for stop in stops}
    assert set(codes) <= found and found <= {*codes, "KILN1002", "KILN1010"}, stops
    first = stops[0]
    text = str(first)
    assert first.code == codes[0] and first.reason
    assert first.at is None or "test_unsupported.py" in text
    assert "Try:" in text


def tensor_attributes(x):
    y = x * 2
    y.tag, y.n = "t", 3
    x.seen = y
    z = y.add_(1)
    del y.tag
    return y * z.n, hasattr(y, "tag"), x.seen, y


class Holder:
    pass


def test_attributes_that_are_made_and_deleted(lab) -> None:
    def program(x: Any, holder: Any) -> Any:
        holder.temporary = x + 1
        y = holder.temporary * 2
        del holder.temporary
        return y

    compiled, holder = lab.compile(program), Holder()
    for _ in range(2):
        compiled(torch.ones(2), holder)
        assert not vars(holder)
    holder.temporary = 1
    compiled(torch.ones(2), holder)
    assert not vars(holder)
    assert lab.breaks() == []


def test_plain_attributes_of_tensors(lab, equal) -> None:
    results = []
    for function in (tensor_attributes, lab.compile(tensor_attributes)):
        x = torch.arange(6.0)
        first, has, seen, y = function(x)
        assert x.seen is seen is y and y.n == 3 and not has
        results.append((first, y))
    equal(results[1], results[0])
    assert lab.breaks() == []


def test_a_list_that_grows_is_no_reason_to_compile_again(lab, equal) -> None:
    def program(x: Any, log: list[Any], other: list[Any]) -> Any:
        log.append(x + 1)
        other.append(2)
        log.append(len(other) if x.dim() == 2 else 0)
        return x * 2

    compiled, mine, theirs = lab.compile(program), ([], []), ([], [])
    for _ in range(5):
        equal(compiled(torch.ones(2), *mine), program(torch.ones(2), *theirs))
    equal(mine, theirs)
    assert len(lab.captures) == 1
    equal(compiled(torch.ones(2, 2), *mine), program(torch.ones(2, 2), *theirs))
    one, two = [], []
    equal(compiled(torch.ones(2), one, one), program(torch.ones(2), two, two))
    equal(one, two)
    equal(mine, theirs)
