"""Canonical forms: text in, text out; every rule against Python's own integers."""

from __future__ import annotations

import copy
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.symbolic import (
    Expr,
    Int,
    ceil_div,
    evaluate,
    is_static,
    parse_int,
    product,
    sym_max,
    sym_min,
    symbol,
)
from kiln.symbolic.tables import TABLES, Memo

NAMES = ("s0", "s1", "s2")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("3 + 2*s0 + s1*s0", "s0*s1 + 2*s0 + 3"),
        ("(s0 + 1)*s1 - s1", "s0*s1"),
        ("s0 - s0", "0"),
        ("s10 + s2", "s2 + s10"),
        ("s0*s0*s1", "s0**2*s1"),
        ("-s0 + 3", "-s0 + 3"),
        ("(s0 + 7)//8", "(s0 + 7)//8"),
        ("(8*s0 + 9)//8", "s0 + 1"),
        ("(s0 + 9)//8", "(s0 + 1)//8 + 1"),
        ("-((-s0)//8)", "(s0 + 7)//8"),
        ("(4*s0 + 2)//8", "s0//2"),
        ("(s0//2)//3", "s0//6"),
        ("(s0//2 + 1)//2", "(s0 + 2)//4"),
        ("s0*s1//s1", "s0"),
        ("(s0*s1 + s1)//(s0 + 1)", "s1"),
        ("(6*s0*s1)//(4*s1)", "s0 + s0//2"),
        ("s0//s1", "s0//s1"),
        ("(s0 + 9) % 8", "(s0 + 1)%8"),
        ("(8*s0) % 4", "0"),
        ("(4*s0 + 5) % 8", "4*((s0 + 1)%2) + 1"),
        ("(s0 % 16) % 8", "s0%8"),
        ("(3*(s0 % 8) + s1) % 4", "(3*s0 + s1)%4"),
        ("s0*s1 % s0", "0"),
        ("min(s0, 4, 7)", "min(s0, 4)"),
        ("max(s0 + 1, s0)", "s0 + 1"),
        ("min(4, min(s1, s0))", "min(s0, s1, 4)"),
        ("-(s0//8)", "-(s0//8)"),
        ("2*(s0//8)*s1", "2*s1*(s0//8)"),
        ("7//2", "3"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_int(text)) == canonical


def test_equality_is_identity() -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    assert (s0 + s1) * (s0 - s1) is s0 * s0 - s1 * s1
    assert symbol("s0") is s0
    assert s0 + 1 != s0
    assert (2 * s0).substitute({s0: 4}) == 8
    assert s0 * 0 == 0 and is_static(s0 - s0) and not is_static(s0)


def test_substitution_is_simultaneous() -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    swapped = (s0 - 2 * s1).substitute({s0: s1, s1: s0})
    assert str(swapped) == "-2*s0 + s1"


def test_copies_are_the_object_itself() -> None:
    for text in ("s0 + 1", "s0", "s0//8", "s0%8 - 2", "max(s0, s1, 3)"):
        value = parse_int(text)
        assert copy.deepcopy(value) is value
        assert pickle.loads(pickle.dumps(value)) is value


def test_truth_is_refused() -> None:
    with pytest.raises(TypeError, match="use ShapeEnv"):
        bool(symbol("s0"))


def test_foreign_operands_are_refused() -> None:
    with pytest.raises(TypeError):
        symbol("q0") + 1.5  # type: ignore[operator]


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        symbol("s0") // 0
    with pytest.raises(ZeroDivisionError):
        symbol("s0") % 0


@pytest.mark.parametrize("text", ["s0 < 3", "s0.x", "f(s0)", "1.5", "s0 / 2", "", "True"])
def test_other_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an integer expression"):
        parse_int(text)


def test_results_do_not_depend_on_the_memo() -> None:
    first = parse_int("((s0 + 3)*s1 + 9)//4 % 7")
    for table in TABLES.values():
        if isinstance(table, Memo):
            table.clear()
    assert parse_int("((s0 + 3)*s1 + 9)//4 % 7") is first


constants = st.integers(-12, 12)
leaves = st.one_of(constants.map(str), st.sampled_from(NAMES))


def _grow(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.builds("({} {} {})".format, children, st.sampled_from(["+", "-", "*", "//", "%"]), children)
    divided = st.builds("({} {} {})".format, children, st.sampled_from(["//", "%"]), constants)
    extreme = st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), children, children)
    return st.one_of(binary, divided, extreme)


programs = st.recursive(leaves, _grow, max_leaves=8)


@settings(max_examples=400, deadline=None)
@given(programs, st.lists(st.tuples(*[st.integers(-20, 20)] * 3), min_size=6, max_size=6))
def test_every_form_means_what_python_means(text: str, points: list[tuple[int, ...]]) -> None:
    try:
        value = parse_int(text)
    except ZeroDivisionError:
        return
    for point in points:
        values = dict(zip(NAMES, point, strict=True))
        try:
            expected = eval(text, {"min": min, "max": max}, values)
        except ZeroDivisionError:
            continue
        assert evaluate(value, values) == expected


@settings(max_examples=300, deadline=None)
@given(programs)
def test_text_round_trip(text: str) -> None:
    try:
        value = parse_int(text)
    except ZeroDivisionError:
        return
    assert parse_int(str(value)) == value


def test_brute_force_division_by_constants() -> None:
    generator = random.Random(0)
    for _ in range(300):
        a, b, c = (generator.randint(-30, 30) for _ in range(3))
        by = generator.choice([n for n in range(-9, 10) if n])
        inner = generator.randint(2, 6)
        x: Int = a * (symbol("s0") // inner) + b * (symbol("s0") % inner) + c
        for point in range(-25, 26):
            plain = a * (point // inner) + b * (point % inner) + c
            assert evaluate(x // by, {"s0": point}) == plain // by
            assert evaluate(x % by, {"s0": point}) == plain % by


def test_helpers() -> None:
    s0 = symbol("s0")
    assert product([2, s0, 3]) is 6 * s0
    assert product([]) == 1
    assert str(ceil_div(s0, 8)) == "(s0 + 7)//8"
    assert evaluate(sym_min(s0, 4) + sym_max(s0, 6), {s0: 5}) == 10
    assert isinstance(s0**2, Expr) and s0**0 == 1
