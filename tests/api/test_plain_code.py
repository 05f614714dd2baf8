# ruff: noqa: RUF005
"""Code that touches plain data only is not captured: it runs in Python, up to where the program computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.capture.bytecode.decode import decode
from kiln.pipeline.plain_code import State, is_plain, kind_of_object, plain_code
from tests.capture.idioms.outcome import same

torch.manual_seed(0)
EMBEDDING, HEAD = nn.Embedding(20, 8), nn.Linear(8, 20)


def lines_that_may_compute(function: Callable[..., object], *arguments: object) -> list[int]:
    """Those of the instructions that are reached first, counted from `def`."""
    code = function.__code__
    names = dict(zip(code.co_varnames, arguments, strict=False))
    kinds = {name: kind_of_object(value, name) for name, value in names.items()}
    decoded = decode(code)
    found = plain_code(decoded, 0, State((), kinds), function.__globals__)
    return sorted({decoded.line(index) - code.co_firstlineno for index in found.computing | found.reads})


def discounted(rewards: Any, by: Any) -> Any:
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + by * total
        returns.insert(0, total)
    return torch.tensor(returns)


def sorted_texts(words: Any, most: Any) -> Any:
    words = sorted(words, key=lambda word: (len(word), word), reverse=True)
    kept = {word: math.sqrt(len(word)) for word in words[:most] if word and word not in ("a", "b")}
    first, *rest = [*kept, f"{most:03d}"]
    return first, rest, max(kept.values(), default=0.0) ** 2 if kept else None


def unknown_key(words: Any, key: Any) -> Any:
    words = words[1:]
    return sorted(words, key=lambda word: key(word))


def appended(found: Any, x: Any) -> Any:
    count = len(found) + x.shape[0]
    found.append(x)
    return count


def of_mode(numbers: Any, x: Any) -> Any:
    with torch.no_grad():
        for number in numbers:
            if number > 2 and x.numel() > 2:
                return x.tolist()
    return x * 2


def compared(x: Any, seen: Any) -> Any:
    last = None
    for row in x:
        if row != 0 and (last is None or row != last):
            seen.append(int(row))
        last = row
    return x * 2


def chosen(x: Any, at: Any) -> Any:
    part = x[at]
    at += 1
    return part * at


@pytest.mark.parametrize(
    ("function", "arguments", "lines"),
    [
        (compared, (torch.ones(3), []), [6]),
        (chosen, (torch.ones(3), 1), [1]),  # where `part` is made that is computed with
        (discounted, ([1.0, 2.0], 0.9), [5]),
        (discounted, ([torch.ones(1)], 0.9), [2]),
        (discounted, ([], object()), [3, 5]),
        (sorted_texts, (["a", "bc"], 3), []),
        (sorted_texts, (["a", "bc"], torch.tensor(3)), [2]),
        (unknown_key, (["a"], len), [2]),
        (appended, ([1], torch.ones(2)), [2]),
        (appended, ([torch.ones(1)], torch.ones(2)), [1]),
        (of_mode, ([1, 2], torch.ones(3)), [4, 5]),
    ],
)
def test_which_lines_may_compute(function: Callable[..., object], arguments: tuple[Any, ...], lines: list[int]) -> None:
    if function is of_mode and "LOAD_SPECIAL" in [decode(of_mode.__code__).instruction(4).name]:
        pytest.skip("from CPython 3.14 on a `with` is written otherwise")
    assert lines_that_may_compute(function, *arguments) == lines


def test_iterators_over_plain_data_are_plain() -> None:
    pairs = zip([1, 2], "ab", strict=False)
    next(pairs)
    assert is_plain(pairs) and is_plain(iter({1, 2})) and is_plain({"a": [(1, None)]}) and is_plain(enumerate([1]))
    assert not is_plain(iter([object()])) and not is_plain(n for n in (1, 2)) and not is_plain([[torch.ones(1)]])
    assert next(pairs) == (2, "b"), "it was not advanced"


def beam_search(start: int, beams: int, most: int, end: int) -> Any:
    with torch.no_grad():
        running, done = [([start], 0.0)], []
        for _ in range(most):
            found = []
            for tokens, score in running:
                top, index = HEAD(EMBEDDING(torch.tensor(tokens)).mean(0)).log_softmax(-1).topk(beams)
                for by, token in zip(top.tolist(), index.tolist(), strict=True):
                    found.append((tokens + [token], score + by))
            found.sort(key=lambda one: one[1] / len(one[0]), reverse=True)
            running = []
            for tokens, score in found:
                (done if tokens[-1] == end else running).append((tokens, score))
                if len(running) == beams:
                    break
            if len(done) >= beams:
                break
        return sorted(done + running, key=lambda one: one[1], reverse=True)[0]


def repetition_penalty(ids: Tensor, most: int, penalty: float, end: int) -> Any:
    tokens = ids.tolist()
    for _ in range(most):
        logits = HEAD(EMBEDDING(torch.tensor(tokens)).mean(0))
        for token in set(tokens):
            if logits[token] > 0:
                logits[token] = logits[token] / penalty
            else:
                logits[token] = logits[token] * penalty
        chosen = logits.argmax().item()
        tokens.append(chosen)
        if chosen == end:
            break
    return tokens


def returns_of(rewards: list[float], values: Tensor, by: float) -> Any:
    total, returns = 0.0, list[float]()
    for reward in reversed(rewards):
        total = reward + by * total
        returns.insert(0, total)
    target = torch.tensor(returns)
    return ((target - target.mean()) * values).sum()


def kept_boxes(order: Tensor, limit: int) -> list[int]:
    kept = []
    while order.numel() > 0:
        kept.append(order[0].item())
        order = order[1:][order[1:] % kept[-1] != 0]
        if len(kept) == limit:
            break
    return kept


CLASSES = nn.Linear(8, 4)
TOTALS: dict[str, Any] = {"good": 0, "wrong": []}


class Meter:
    def __init__(self) -> None:
        self.good, self.wrong = 0, list[tuple[int, int]]()


def attacked(x: Tensor) -> Any:
    """Counts in a dict from outside, and keeps some numbers."""
    TOTALS.update(good=0, wrong=[])
    before, after = CLASSES(x).argmax(1), CLASSES(x * 1.5 + 0.3).argmax(1)
    for i in range(x.shape[0]):
        if before[i].item() == after[i].item():
            TOTALS["good"] += 1
        elif len(TOTALS["wrong"]) < 3:
            TOTALS["wrong"].append((before[i].item(), int(after[i])))
    return x * 2, dict(TOTALS)


def metered(x: Tensor) -> Any:
    """The same in an object, in a loop that computes in its turns, too."""
    meter, total = Meter(), x.new_zeros(())
    before, after = CLASSES(x).argmax(1), CLASSES(x * 1.5 + 0.3).argmax(1)
    for i in range(x.shape[0]):
        if after[i] == before[i]:
            meter.good += 1
        else:
            meter.wrong.append((int(before[i]), after[i].tolist()))
    return x * 2 + total, meter.good, meter.wrong


def collapsed_texts(x: Tensor) -> Any:
    """Elements choose letters, and are compared with the last one."""
    best, text, last = CLASSES(x).argmax(1), "", None
    for letter in best:
        if letter != 0 and (last is None or letter != last):
            text += "-abc"[letter]
        last = letter
    return text, best.sum()


def rows(*lengths: int) -> list[tuple[Tensor]]:
    return [(torch.randn(length, 8),) for length in lengths]


def numbers(*lengths: int) -> list[tuple[Tensor, int, float, int]]:
    return [(torch.randint(0, 20, (length,)), 3 + length % 3, 1.2, 3) for length in lengths]


def rewards(*lengths: int) -> list[tuple[list[float], Tensor, float]]:
    return [([float(i % 3) for i in range(length)], torch.randn(length), 0.9) for length in lengths]


@pytest.mark.parametrize(
    ("program", "calls", "compiles"),
    [
        (beam_search, [(start, 3, 5, 7) for start in range(1, 7)] + [(1, 2, 4, 7), (2, 4, 6, 3)], 3),
        (repetition_penalty, numbers(3, 4, 5, 2, 6, 3, 7), 7),
        (returns_of, rewards(5, 9, 7, 12, 6, 10, 9, 11), 3),
        (attacked, rows(6, 6, 9, 7, 12, 5), 4),
        (metered, rows(6, 6, 9, 7, 12, 5), 4),
        (collapsed_texts, rows(6, 6, 6, 6, 6), 3),
        (kept_boxes, [(torch.arange(2, count), 9) for count in (8, 12, 30, 5, 40)], 6),
    ],
)
def test_loops_over_plain_data_are_not_compiled(program: Any, calls: list[Any], compiles: int) -> None:
    compiled = kiln.compile(program, options={"speed_check": False})
    for arguments in calls:
        assert same(compiled(*arguments), program(*arguments))
    report = kiln.report_of(compiled)
    assert report.compiles <= compiles and not report.eager, str(report)


@kiln.disable
def note(value: object) -> None:
    pass


def lists_behind_a_break(x: Tensor, numbers: Any, kind: int) -> Any:
    """What becomes of a list that a resume function gets."""
    note(kind)
    if kind == 0:
        return torch.tensor(numbers) + x, numbers
    if kind == 1:
        return torch.tensor(numbers, dtype=torch.float64).sum() + x
    if kind == 2:
        longer = numbers + [x.sum().item()]
        numbers.append(5)
        return longer, numbers, longer is numbers
    if kind == 3:
        longer = numbers + [1]
        longer += [x]
        return longer, numbers, [*numbers, 2] + longer
    if kind == 6:
        longer = [*numbers, 1, x]
        shared = [longer, [*numbers]]
        numbers.clear()
        return longer, shared, numbers
    if kind == 4:
        made = torch.tensor(numbers)
        made += 1
        return made, torch.tensor(numbers), len(numbers + [1])
    numbers.append(7)
    return torch.tensor(numbers) + x, (numbers + [1])[-1]


@pytest.mark.parametrize("kind", range(7))
@pytest.mark.parametrize(
    "given", [[1, 2, 3], [1.5, 2.5], [True, False], [1, 2.5], [3], [], [2**70], [1, None]], ids=str
)
def test_lists_of_numbers_behind_a_break(given: list[Any], kind: int) -> None:
    def outcome(run: Any, numbers: list[Any]) -> Any:
        try:
            return run(torch.ones(1), numbers, kind), numbers
        except (TypeError, RuntimeError, OverflowError, ValueError) as error:
            return type(error), numbers

    compiled = kiln.compile(lists_behind_a_break)
    for numbers in (given, given * 2, [4, 5, 6, 7], [0.5], [], given):
        assert same(outcome(compiled, list(numbers)), outcome(lists_behind_a_break, list(numbers)))


def summed(x: Tensor, values: Any) -> Any:
    note(1)
    total = 0.0
    for value in values:
        total = total + value
    return x * total, total


def test_what_was_plain_data_and_is_not_any_more_is_compiled() -> None:
    compiled = kiln.compile(summed, options={"speed_check": False})
    for values in ([1.0, 2.0], [3], [], [torch.ones(2), torch.ones(2)], [4.0, 2], (torch.ones(2),), [2.0]):
        assert same(compiled(torch.ones(2), values), summed(torch.ones(2), values))
    report = kiln.report_of(compiled)
    assert report.regions >= 3 and not report.eager, f"sums of tensors are in regions: {report}"
