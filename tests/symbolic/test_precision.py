"""How much is known of sizes, as text: intervals, simplified expressions and answers to questions.

`test_env.py` tests that they are true; a bound that becomes looser, or a question without an answer, shows here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from kiln.symbolic import (
    BoundAnalysis,
    DimKind,
    DimMarks,
    DimPolicy,
    Range,
    parse_int,
    parse_relation,
    simplify_in_ranges,
    symbol,
)
from kiln.symbolic.facts import SizeFacts

RANGES = {
    "a": Range(0, 5), "b": Range(2, 3), "c": Range(-4, 7), "d": Range(4, 9), "m": Range(1), "n": Range(0),
}  # fmt: skip
OPERATIONS = (
    "{0} + {1}", "{0} - {1}", "{0}*{1}", "{0}//{1}", "{0} % {1}", "min({0}, {1})", "max({0}, {1})", "3 - 2*{0}*{1}",
    "{0}*{0}", "{0}*{0}*{0} - {1}", "min({0}, {1}, 4)", "{0}//4 + {1} % 4", "({0} + 8*{1})//8", "({0} + 8*{1}) % 8",
)  # fmt: skip
SIDES = (
    "{0}",
    "{0} + {1}",
    "{0}*{1}",
    "2*{0}",
    "{0}//2",
    "8*({0}//8)",
    "{0}%3",
    "min({0}, {1})",
    "max({0}, 2)",
    "1",
    "3",
)
NAMES = ("s0", "s1", "s2")


def test_intervals(golden: Callable[..., None]) -> None:
    bounds = BoundAnalysis({symbol(name): within for name, within in RANGES.items()})
    lines = []
    for operation, (one, other) in itertools.product(OPERATIONS, itertools.permutations(RANGES, 2)):
        if ("//" in operation or "%" in operation) and RANGES[other].lo in (0, -4) and "{1}" in operation[-5:]:
            continue
        value = parse_int(operation.format(one, other))
        interval = bounds.of(value)
        simpler = simplify_in_ranges(value, bounds)
        lines.append(f"{interval.lo} .. {interval.hi}  {value}" + (f" = {simpler}" if simpler != value else ""))
    golden("\n".join(dict.fromkeys(lines)))


def test_answers(golden: Callable[..., None]) -> None:
    """Of questions about three sizes of which some things are known, and how their differences simplify."""
    draw = random.Random(7)

    def side() -> str:
        return draw.choice(SIDES).format(*draw.sample(NAMES, 2))

    def relation() -> str:
        return f"{side()} {draw.choice(['==', '!=', '<', '<=', '>'])} {side()}"

    lines = []
    while len(lines) < 150:
        facts, known = (
            SizeFacts({symbol(name): Range(draw.choice([0, 0, 2]), draw.choice([None, 9])) for name in NAMES}),
            [],
        )
        question, values = relation(), [parse_int(side()) for _ in range(2)]
        try:
            for _ in range(draw.randint(1, 3)):
                fact = relation()
                facts.learn(parse_relation(fact))
                known.append(fact)
        except ValueError:
            continue
        answer = facts.known(parse_relation(question))
        simpler = [f"{value} = {facts.simplify(value)}" for value in values if facts.simplify(value) != value]
        spans = [f"{name} in {facts.interval(symbol(name)).lo} .. {facts.interval(symbol(name)).hi}" for name in NAMES]
        if answer is not None or simpler:
            lines.append("; ".join([f"{question}: {answer}", *simpler, *spans, f"if {', '.join(known)}"]))
    golden("\n".join(lines))


@pytest.mark.parametrize("mark", ["dynamic", "static", "unbacked", "maybe_dynamic"])
@pytest.mark.parametrize("limits", [None, (2, 64), (0, None), (9, 12), (None, 7)])
def test_ranges_of_marked_sizes(mark: str, limits: tuple[int | None, int | None] | None) -> None:
    """A range holds if the size is in it."""
    marks = DimMarks(**{mark: frozenset({0})}, ranges={} if limits is None else {0: limits})
    (choice,) = DimPolicy("always").choose((8,), marks=marks)
    kinds = {"static": DimKind.STATIC, "unbacked": DimKind.UNBACKED}
    assert choice.kind is kinds.get(mark, DimKind.SYMBOL)
    if mark != "static":
        assert (choice.lo, choice.hi) == ((2, 64) if limits == (2, 64) else (0, None))
