"""A graph break in a loop: right for any number of iterations, with a bounded number of compiles."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

SEEN: list[int] = []


@kiln.disable
def note(i: int) -> None:
    SEEN.append(i)


def counted(x: Tensor, rounds: int) -> Tensor:
    for i in range(rounds):
        x = x + i
        note(i)
        x = x * 0.5
    return x


def conditional(x: Tensor, rounds: int) -> Tensor:
    while x.sum() < rounds:
        x = x + 1
    return x


def eager_backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
    return module.forward


def with_iterators(x: Tensor, rounds: int) -> Tensor:
    numbers = [float(number) for number in range(rounds)]
    for position, (first, second) in enumerate(zip(numbers, reversed(numbers), strict=True)):
        note(position)
        x = x + first - second
    return x


def with_handlers(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        try:
            with torch.no_grad():
                if x.sum() > 9:
                    raise ValueError
                x = x + 1
        except ValueError:
            x = x * 0.5
    return x


def step(x: Tensor, limit: int) -> Tensor:
    if x.sum() > limit:
        return x * 0.5
    return x + 1


def with_calls(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        x = step(x, 9) + 0.25
    return x


def chained(x: Tensor, rounds: int) -> Tensor:
    for number in itertools.chain(range(rounds - 1), [rounds - 1]):
        note(number)
        x = x + number
    return x


def until(x: Tensor, rounds: int) -> Tensor:
    numbers = iter(range(rounds))
    for number in iter(lambda: next(numbers), rounds - 1):
        note(number)
        x = x * 0.5 + 1
    note(rounds - 1)
    return x


def read_as_a_number(x: Tensor, rounds: int) -> Tensor:
    while x.sum().item() < rounds - 0.5:
        x = x + 0.5
    return x


LOOPS = [counted, conditional, with_iterators, with_handlers, with_calls, chained, until, read_as_a_number]


@pytest.mark.parametrize("function", LOOPS)
def test_the_body_is_compiled_for_every_iteration(function: Any) -> None:
    compiled = kiln.compile(function, backend=eager_backend)
    for rounds in (3, 600):
        SEEN.clear()
        torch.testing.assert_close(compiled(torch.zeros(2), rounds), function(torch.zeros(2), rounds))
        assert SEEN in ([], [*range(rounds), *range(rounds)])
    report = kiln.report_of(compiled)
    assert report.eager == 0 and report.compiles <= 14, report
    compiled(torch.zeros(2), 600)
    assert kiln.report_of(compiled).compiles == report.compiles


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for position, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            note(position)
        return x


class Named(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict({f"layer{number}": nn.Linear(2, 2) for number in range(count)})

    def forward(self, x: Tensor) -> Tensor:
        for layer, (_, other) in zip(self.layers.values(), self.layers.items(), strict=True):
            x = other(layer(x))
            if x.sum() > 100:
                x = x / 2
        return x


@pytest.mark.parametrize("kind", [Layers, Named])
def test_a_loop_in_an_inlined_forward(kind: Any) -> None:
    SEEN.clear()
    for count in (4, 24):
        module, x = kind(count), torch.ones(2)
        compiled = kiln.compile(lambda x, module=module: module(x) + 1, backend=eager_backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x) + 1)
        report = kiln.report_of(compiled)
        assert report.eager == 0 and report.compiles <= 4, report
    assert SEEN in ([], [*range(4)] * 4 + [*range(24)] * 4)


def shown(x: Tensor, number: int) -> Tensor:
    note(number)
    return x * number


def list_of(x: Tensor, rounds: int) -> Tensor:
    return sum([shown(x, number) + 1 for number in range(rounds)])  # type: ignore[return-value]


def list_with_condition(x: Tensor, rounds: int) -> Tensor:
    rows = [x * number for number in range(rounds)]
    return x + len([row for row in rows if row.sum() > 3])


@pytest.mark.parametrize("function", [list_of, list_with_condition])
def test_a_comprehension(function: Any) -> None:
    compiled = kiln.compile(function, backend=eager_backend)
    SEEN.clear()
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2), 24), function(torch.ones(2), 24))
    assert SEEN in ([], [*range(24)] * 4)
    report = kiln.report_of(compiled)
    assert report.eager == 0 and report.compiles <= 8, report


def test_one_helper_at_many_places_is_no_loop() -> None:
    def shown(x: Tensor) -> Tensor:
        time.sleep(0)
        return x * 2

    def function(x: Tensor) -> Tensor:
        x = shown(x + 1)
        x = shown(x + 2)
        x = shown(x + 3)
        x = shown(x + 4)
        x = shown(x + 5)
        x = shown(x + 6)
        return x - 1

    compiled, x = kiln.compile(function), torch.ones(2)
    torch.testing.assert_close(compiled(x), function(x))
    assert kiln.report_of(compiled).eager == 0


def test_many_breaks_on_one_line_are_no_loop() -> None:
    def s(x: Tensor) -> Tensor:
        note(0)
        return x + 1

    def function(x: Tensor) -> Tensor:
        return s(s(s(s(s(s(s(s(s(s(s(s(s(s(s(s(s(s(s(s(x))))))))))))))))))))

    compiled, x = kiln.compile(function, backend="eager", options={"cache": False}), torch.ones(2)
    torch.testing.assert_close(compiled(x), function(x))
    assert kiln.report_of(compiled).eager == 0


def breaks_in_a_handler(x: Tensor) -> Tensor:
    note(0)
    try:
        raise ValueError
    except ValueError:
        note(1)
    if x.sum() > 100:
        raise KeyError("large")
    return x + 1


class Holder:
    def __init__(self, x: Tensor) -> None:
        self.content = breaks_in_a_handler(x)
        note(2)


def caught(x: Tensor) -> Tensor:
    try:
        return breaks_in_a_handler(x) * 2
    except KeyError:
        return x * 5


def held(x: Tensor) -> Tensor:
    return Holder(x).content * 3


@pytest.mark.filterwarnings("ignore::kiln.pipeline.session.KilnWarning")
@pytest.mark.parametrize("function", [caught, held])
@pytest.mark.parametrize("size", [1.0, 90.0])
def test_a_callee_that_cannot_be_resumed_again_runs_in_python(function: Any, size: float) -> None:
    def outcome(called: Any) -> tuple[object, list[int]]:
        SEEN.clear()
        try:
            return called(torch.full((2,), size)).tolist(), list(SEEN)
        except KeyError as error:
            return repr(error), list(SEEN)

    compiled = kiln.compile(function, backend=eager_backend)
    assert outcome(compiled) == outcome(compiled) == outcome(function)


def test_a_traceback_shows_a_function_once_that_raises_behind_a_break() -> None:
    def function(x: Tensor) -> object:
        note(0)
        return [1, 2][int(x.sum().item())]

    compiled = kiln.compile(function, backend=eager_backend)
    with pytest.raises(IndexError) as raised:
        compiled(torch.full((2,), 5.0))
    assert [frame.name for frame in raised.traceback][-1] == "function"
    assert sum(frame.name == "function" for frame in raised.traceback) == 1  # not also its part before the break


def test_explain_prints_what_a_break_costs() -> None:
    def function(x: Tensor) -> Tensor:
        note(0)
        return x + 1

    report = kiln.explain(function, backend=eager_backend)(torch.ones(2))
    assert report.break_seconds is not None and 0 < report.break_seconds < 1e-3
    assert report.text().endswith(f"a break costs about {report.break_seconds * 1e6:.1f} us whenever it is reached")
    whole = kiln.explain(lambda x: x + 1, backend=eager_backend)(torch.ones(2))
    assert whole.break_seconds is None and "us whenever" not in whole.text()
