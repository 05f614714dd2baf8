"""Resume functions without a region run in Python, up to where the program computes with tensors again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.capture.bytecode.decode import DecodedCode, decode
from kiln.capture.bytecode.resume import Entry, ResumeOrigin
from kiln.capture.bytecode.stretch import exits
from tests.capture.idioms.outcome import same

torch.manual_seed(0)
EMBEDDING, CELL = nn.Embedding(8, 4), nn.GRUCell(4, 4)


def lines_left(function: Callable[..., object], start: str, computing: Sequence[str]) -> list[int] | None:
    """The lines, counted from `def`, in front of which a stretch from the store to `start` on is left. The names that
    compute are called."""
    decoded = decode(function.__code__)
    first = function.__code__.co_firstlineno
    target = next(index for index in range(len(decoded)) if stores(decoded, index, start)) + 1
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    entry = Entry(target, (*names, start), (), ())

    def computes(index: int) -> bool:
        loaded = decoded.instruction(index)
        return loaded.name.startswith("LOAD_GLOBAL") and loaded.arg in computing

    found = exits(decoded, ResumeOrigin(decoded.code, entry, None), computes, lambda entry: False)
    return None if found is None else sorted(decoded.line(at.target) - first for at in found)


def stores(decoded: DecodedCode, index: int, name: str) -> bool:
    found = decoded.instruction(index)
    return found.name == "STORE_FAST" and found.arg == name


def in_a_loop(x: Any, items: Any) -> Any:
    begin = x
    for item in items:
        with nullcontext():
            begin = begin + CELL(
                item,
            )
    return EMBEDDING(begin)


def in_an_operand(x: Any, items: Any) -> Any:
    begin = x
    return [begin, *items, EMBEDDING(x)]


def without_a_value(x: Any, items: Any) -> Any:
    begin = x
    for item in items:
        last = item
    x = CELL(begin)
    return last, x


def in_a_handler(x: Any, items: Any) -> Any:
    begin = x
    try:
        items.pop()
    except IndexError:
        x = CELL(begin)
    return x


@pytest.mark.parametrize(
    ("function", "computing", "expected"),
    [
        (in_a_loop, ["CELL"], [4]),
        (in_a_loop, ["EMBEDDING"], [7]),
        (in_a_loop, ["CELL", "EMBEDDING"], [4, 7]),
        (in_a_loop, [], []),
        (in_an_operand, ["EMBEDDING"], []),  # it is in the statement in which the stretch begins
        (without_a_value, ["CELL"], None),  # `last` may have no value
        (in_a_handler, ["CELL"], None),  # the stack has the exception
    ],
)
def test_where_a_stretch_is_left(
    function: Callable[..., object], computing: list[str], expected: list[int] | None
) -> None:
    assert lines_left(function, "begin", computing) == expected


def collapsed(scores: Tensor) -> list[list[int]]:
    out = []
    for row in scores.argmax(-1):
        last, kept = 0, list[int]()
        for t in row.tolist():
            if t not in (last, 0):
                kept.append(t)
            last = t
        out.append(kept)
    return out


def decoded_words(scores: Tensor) -> list[Tensor]:
    """Computes in a loop of Python, under `with` and `try`, and through an inlined call."""
    found = []
    with torch.no_grad():
        for row in collapsed(scores):
            h = torch.zeros(4)
            for token in row:
                try:
                    if token == 1:
                        raise KeyError(token)
                except KeyError as error:
                    found.append(h * error.args[0])
                    continue
                h = CELL(EMBEDDING(torch.tensor(token)), h)
            found.append(h)
    return found


def counted(scores: Tensor) -> tuple[dict[int, int], list[str], Tensor]:
    """Cells, a comprehension, a handler that ends, a variable that is deleted."""
    counts, names = dict[int, int](), list[str]()

    def count(key: int) -> None:
        counts[key] = counts.get(key, 0) + 1

    for key in scores.argmax(-1).flatten().tolist():
        count(key)
        try:
            names.append(["a", "b"][key])
        except IndexError:
            names.append("?" * len([name for name in names if name == "a"]))
        finally:
            del key
    return counts, names, scores * len(names)


def with_comprehensions(scores: Tensor) -> list[int]:
    """From CPython 3.12 on `n` is a variable of this function, which has no value between two comprehensions."""
    kept = list[int]()
    for t in scores.argmax(-1).flatten().tolist():
        odd = [n for n in range(t) if n % 2]
        kept += [n + t for n in odd]
    return kept


@pytest.mark.parametrize(
    ("function", "most"),
    [(collapsed, 9), (decoded_words, 28), (counted, 11), (with_comprehensions, 30)],
    ids=["collapsed", "words", "counted", "comprehensions"],
)
def test_loops_over_numbers_of_tensors(function: Callable[[Tensor], object], most: int) -> None:
    torch.manual_seed(1)
    compiled: Any = kiln.compile(function, backend="eager")
    for length in (5, 5, 6, 7, 8, 9, 10, 11):
        scores = torch.randn(2, length, 5)
        got, expected = compiled(scores), function(scores)
        assert same(got, expected)
    report = compiled.report()
    assert report.compiles <= most and not report.eager, str(report)


def test_exceptions_of_a_stretch_leave_it() -> None:
    def checked(scores: Tensor, most: int) -> list[int]:
        found = list[int]()
        for t in scores.argmax(-1).tolist():
            if len(found) >= most:
                raise ValueError(f"{found}")
            found.append(t)
        return found

    compiled: Any = kiln.compile(checked, backend="eager")
    for length, most in ((3, 4), (4, 4), (5, 6), (6, 7), (7, 3)):
        scores = torch.randn(length, 3)
        if length <= most:
            assert compiled(scores, most) == checked(scores, most)
            continue
        with pytest.raises(ValueError, match=r"\[\d, \d, \d\]") as error:
            compiled(scores, most)
        assert [entry.name for entry in error.traceback].count("checked") == 1


def test_what_was_not_reached_before_is_compiled() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.seen = list[float]()
            self.net = nn.Linear(3, 3)

        def evaluate(self, x: Tensor) -> Tensor:
            return self.net(x).relu().sum()

        def run(self, batches: list[Tensor]) -> list[float]:
            for count, batch in enumerate(batches):
                loss = (self.net(batch) * 2).mean()
                self.seen.append(loss.item())
                if len(self.seen) % 7 == 0:
                    total = self.evaluate(batch)
                    self.seen.append(count + total.item())
            return self.seen

    trainer = Trainer()
    same = copy.deepcopy(trainer)
    compiled: Any = kiln.compile(trainer.run, backend="eager")
    for length in (3, 4, 5, 6, 3):
        batches = [torch.randn(2, 3) for _ in range(length)]
        assert compiled(batches) == pytest.approx(same.run(batches))
    regions = compiled.report().regions
    with kiln_counts(compiled) as compiles:
        batches = [torch.randn(2, 3) for _ in range(4)]
        assert compiled(batches) == pytest.approx(same.run(batches))
    assert regions >= 3 and compiles() <= 2, str(compiled.report())


class kiln_counts:
    """How many compiles there were inside."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled

    def __enter__(self) -> Callable[[], int]:
        before = self.compiled.report().compiles
        return lambda: self.compiled.report().compiles - before

    def __exit__(self, *error: object) -> None:
        pass
