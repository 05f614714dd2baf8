"""Relations, ranges, facts and the shape environment."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.support.location import Location
from kiln.symbolic import (
    BoundAnalysis,
    DataDependentSize,
    FalseAssertion,
    NoHint,
    Range,
    Relation,
    ShapeEnv,
    evaluate,
    parse_int,
    parse_relation,
    rel_eq,
    rel_ge,
    rel_le,
    rel_lt,
    rel_ne,
    simplify_in_ranges,
    sym_min,
    symbol,
)
from kiln.symbolic.facts import SizeFacts

from .test_expr import NAMES, programs

HERE = Location("model.py", 41, "forward")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("3 < s0", "4 <= s0"),
        ("s0 < 5", "s0 <= 4"),
        ("2*s0 == 2*s1 + 4", "s0 == s1 + 2"),
        ("2*s0 == 2*s1 + 1", "False"),
        ("2*s0 != 2*s1 + 1", "True"),
        ("s0 + 1 <= s1", "s0 < s1"),
        ("s1 > s0", "s0 < s1"),
        ("3*s0 <= 10", "s0 <= 3"),
        ("s0 >= s0", "True"),
        ("s1 == s0", "s0 == s1"),
        ("-s0 == 3", "s0 == -3"),
        ("s0*s1 == 8*s1", "s0*s1 == 8*s1"),
        ("s0 % 8 == 0", "s0%8 == 0"),
    ],
)
def test_canonical_relation(text: str, canonical: str) -> None:
    assert str(parse_relation(text)) == canonical


comparisons = st.builds("{} {} {}".format, programs, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), programs)


@settings(max_examples=200, deadline=None)
@given(comparisons, st.lists(st.tuples(*[st.integers(-20, 20)] * 3), min_size=5, max_size=5))
def test_relations_mean_what_python_means(text: str, points: list[tuple[int, ...]]) -> None:
    try:
        relation = parse_relation(text)
    except ZeroDivisionError:
        return
    assert parse_relation(str(relation)) is relation
    if isinstance(relation, Relation):
        assert relation.negate().negate() is relation
        assert pickle.loads(pickle.dumps(relation)) is relation
    for point in points:
        values = dict(zip(NAMES, point, strict=True))
        try:
            expected = eval(text, {"min": min, "max": max}, values)
        except ZeroDivisionError:
            continue
        got = relation if isinstance(relation, bool) else relation.evaluate(values)
        assert got == expected
        if isinstance(relation, Relation):
            assert relation.negate().evaluate(values) != expected


@settings(max_examples=300, deadline=None)
@given(programs, st.tuples(*[st.tuples(st.integers(-3, 4), st.integers(0, 4))] * 3))
def test_bounds_and_simplification_hold_on_every_point(text: str, ends: tuple[tuple[int, int], ...]) -> None:
    try:
        value = parse_int(text)
    except ZeroDivisionError:
        return
    ranges = {symbol(name): Range(lo, lo + width) for name, (lo, width) in zip(NAMES, ends, strict=True)}
    bounds = BoundAnalysis(ranges)
    interval = bounds.of(value)
    try:
        simpler = simplify_in_ranges(value, bounds)
    except ZeroDivisionError:
        simpler = None  # then every point divides by zero
    for point in itertools.product(*[range(lo, lo + width + 1) for lo, width in ends]):
        values = dict(zip(NAMES, point, strict=True))
        try:
            number = eval(text, {"min": min, "max": max}, values)
        except ZeroDivisionError:
            continue
        assert interval.lo is None or interval.lo <= number
        assert interval.hi is None or number <= interval.hi
        assert simpler is not None and evaluate(simpler, values) == number


@pytest.mark.parametrize(
    ("text", "simpler"),
    [
        ("(8*j + i)//8", "j"),
        ("i % 8", "i"),
        ("(64*j + i) % 128", "i + 64*(j%2)"),
        ("(64*j + i)//128", "j//2"),
        ("8*(n//8) + n%8", "n"),
        ("8*((n + 9)//8) + (n + 9)%8", "n + 9"),
        ("min(i, 7)", "i"),
        ("max(i, j + 8)", "j + 8"),
        ("i//(j + 8)", "0"),
    ],
)
def test_simplification_in_ranges(text: str, simpler: str) -> None:
    ranges = {symbol("i"): Range(0, 7), symbol("j"): Range(0, 63)}
    assert str(simplify_in_ranges(parse_int(text), BoundAnalysis(ranges))) == simpler


def known(question: str, *facts: str, lo: int = 0) -> bool | None:
    base = SizeFacts({symbol(name): Range(lo) for name in (*NAMES, "s3")})
    for fact in facts:
        base.learn(parse_relation(fact))
    return base.known(parse_relation(question))


@pytest.mark.parametrize(
    ("answer", "question", "facts"),
    [
        (True, "s0 >= 0", ()),
        (None, "s0 >= 1", ()),
        (None, "s0 == 1", ()),
        (True, "s0*s1 + s2 >= 0", ()),
        (True, "s0*s1 >= s0", ("s1 >= 1",)),
        (True, "s1 >= 1", ("s0 <= s1", "s0 >= 1")),
        (True, "s0 < s2", ("s0 < s1", "s1 < s2")),
        (False, "s0 == s1", ("s0 < s1",)),
        (True, "s0 != s1", ("s1 != s0",)),
        (True, "s0 >= 1", ("s0 != 0",)),
        (True, "8*(s0//8) == s0", ("s0 % 8 == 0",)),
        (True, "8*(s0//8) <= s0", ()),
        (True, "s0 <= 8*((s0 + 7)//8)", ()),
        (True, "s0 % 8 <= 7", ()),
        (True, "s0*s1 == s2*s1", ("s0 == s2",)),
        (True, "s1 == 4", ("s0 == 4", "s0 == s1")),
        (True, "min(s0, s1) <= s0", ()),
        (True, "min(s0, s1) >= 2", ("s0 >= 2", "s1 >= 3")),
        (True, "max(s0, s1) >= s1", ()),
        (True, "s3 == s0*s1 + 2", ("s2 == s0*s1", "s3 == s2 + 2")),
        (False, "2*s0 == 2*s1 + 1", ()),
        (True, "s0 % 8 == s0 - 8*(s0//8)", ()),
        (None, "s0 % 8 == 0", ()),
        (True, "s0 - s0//2 >= 0", ()),
        (True, "s0 >= 2", ("s0 != 1", "s0 != 0")),
        (True, "s0 >= 3", ("s0 != 1", "s0 != 2", "s0 >= 1")),
        (None, "s0 >= 1", ("s0 != 1",)),
    ],
)
def test_known(answer: bool | None, question: str, facts: tuple[str, ...]) -> None:
    assert known(question, *facts) is answer


def test_known_agrees_with_every_small_model() -> None:
    """Whatever is derived from random facts holds in every assignment that fulfils them."""
    generator = random.Random(1)
    points = list(itertools.product(range(5), repeat=3))

    def side() -> str:
        a, b = generator.sample(NAMES, 2)
        return generator.choice(
            [a, f"{a} + {b}", f"{a}*{b}", f"2*{a}", f"{a}//2", f"{a}%3", f"min({a}, {b})", f"max({a}, 2)", "1", "3"]
        )

    def relation() -> str:
        return f"{side()} {generator.choice(['==', '!=', '<', '<=', '>'])} {side()}"

    for _ in range(400):
        facts, used = SizeFacts({symbol(name): Range(0, 4) for name in NAMES}), []
        for _ in range(generator.randint(0, 3)):
            fact = relation()
            try:
                facts.learn(parse_relation(fact))
            except ValueError:
                break
            used.append(fact)
        question = relation()
        answer = facts.known(parse_relation(question))
        if answer is None:
            continue
        for point in points:
            values = dict(zip(NAMES, point, strict=True)) | {"min": min, "max": max}
            if all(eval(fact, {}, values) for fact in used):
                assert eval(question, {}, values) == answer, (question, used, point)


def test_decide_records_one_guard_with_its_line() -> None:
    env = ShapeEnv()
    s0, s1 = env.create_symbol(32), env.create_symbol(32)
    assert (str(s0), str(s1)) == ("s0", "s1")
    assert env.decide(rel_eq(s0, 1), HERE) is False
    assert env.decide(rel_eq(s0, 1), HERE) is False
    assert env.decide(rel_eq(s0, s1), HERE) is True
    assert env.known(rel_eq(s1, 1)) is False
    assert env.simplify(s1 + 1) is s0 + 1
    assert [guard.text() for guard in env.guards] == [
        "s0 != 1  # model.py:41, in forward",
        "s0 == s1  # model.py:41, in forward",
    ]
    assert env.replacements == {s1: s0}


def test_implied_guards_are_left_out() -> None:
    env = ShapeEnv()
    s0 = env.create_symbol(32)
    env.decide(rel_ge(s0, 2))
    env.decide(rel_ge(s0, 16))
    assert [guard.text() for guard in env.guards] == ["16 <= s0"]
    env.decide(rel_eq(s0, 32))
    assert [guard.text() for guard in env.guards] == ["s0 == 32"]
    assert env.simplify(s0 * 2) == 64


def test_declared_ranges_are_guarded() -> None:
    env = ShapeEnv()
    s0 = env.create_symbol(8, lo=2, hi=64)
    assert env.known(rel_ne(s0, 1)) is True
    assert [guard.text() for guard in env.guards] == ["2 <= s0", "s0 <= 64"]
    with pytest.raises(ValueError, match="outside"):
        env.create_symbol(1, lo=2)
    with pytest.raises(ValueError, match="s0 exists already"):
        env.create_symbol(8, name="s0")


def test_unbacked_symbols_are_never_guarded() -> None:
    env = ShapeEnv()
    u0 = env.create_unbacked(hi=10)
    assert env.known(rel_le(u0, 10)) is True and not env.has_hint(u0)
    with pytest.raises(DataDependentSize, match=r"KILN2101  model.py:41.*\n.*u0 == 1"):
        env.decide(rel_eq(u0, 1), HERE)
    with pytest.raises(NoHint, match="KILN2102"):
        env.hint(u0 + 1)
    env.assume(rel_lt(1, u0), HERE)
    assert env.decide(rel_eq(u0, 1)) is False
    assert not env.guards and [check.text() for check in env.checks] == ["2 <= u0  # model.py:41, in forward"]
    with pytest.raises(FalseAssertion, match="KILN2103"):
        env.assume(rel_le(u0, 0))


def test_an_unbacked_symbol_equal_to_a_backed_one_has_its_hint() -> None:
    env = ShapeEnv()
    s0, u0 = env.create_symbol(4), env.create_unbacked()
    env.assume(rel_eq(u0, 2 * s0))
    assert env.hint(u0 + 1) == 9 and env.has_hint(u0)
    assert env.decide(rel_eq(u0, s0 + s0)) is True and not env.guards


def test_min_of_hint() -> None:
    env = ShapeEnv()
    s0 = env.create_symbol(5)
    assert env.hint(sym_min(s0, 4) * 2) == 8
    assert env.specialise(s0) == 5
    assert [guard.text() for guard in env.guards] == ["s0 == 5"]


def test_random_guards_hold_and_imply_what_was_decided() -> None:
    """Every answer of `decide` is true at each point that passes the minimal guards."""
    generator = random.Random(2)
    parts = ["s0", "s1", "s0*s1", "s0 + s1", "2*s0", "s1//2", "s0%3", "min(s0, s1)", "max(s1, 2)", "0", "1", "2", "3"]
    for _ in range(150):
        env = ShapeEnv()
        hints = {name: generator.randint(0, 5) for name in ("s0", "s1")}
        for hint in hints.values():
            env.create_symbol(hint)
        asked = []
        for _ in range(generator.randint(1, 5)):
            left, op, right = (
                generator.choice(parts),
                generator.choice(["==", "<", "<=", "!="]),
                generator.choice(parts),
            )
            text = f"{left} {op} {right}"
            answer = env.decide(parse_relation(text))
            asked.append((text, answer))
            assert eval(text, {"min": min, "max": max}, dict(hints)) == answer
        for point in itertools.product(range(7), repeat=2):
            values = dict(zip(("s0", "s1"), point, strict=True))
            if not all(guard.relation.evaluate(values) for guard in env.guards):
                continue
            for text, answer in asked:
                assert eval(text, {"min": min, "max": max}, dict(values)) == answer, (asked, env.guards, point)
            for value in map(parse_int, parts):
                assert evaluate(env.simplify(value), values) == evaluate(value, values)


def test_sizes_without_a_number_are_named_in_the_order_in_which_they_were_made():
    env = ShapeEnv()
    made = [env.create_unbacked() for _ in range(11)]  # none is called `u8`, which is a dtype in texts
    with pytest.raises(NoHint, match="u2, u11") as caught:
        env.hint(made[10] + made[2])
    assert caught.value.details["unknown"] == (made[2], made[10])
    with pytest.raises(DataDependentSize) as refused:
        env.decide(rel_eq(made[10], made[2]))
    assert refused.value.details["unknown"] == (made[2], made[10])
