"""The fast engine against SymPy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.symbolic import DataDependentSize, Range, ShapeEnv, evaluate, parse_int, rel_ge, symbol
from kiln.symbolic.ranges import Interval
from kiln.symbolic.reference import prove, to_sympy

from .test_expr import NAMES, programs

sympy = pytest.importorskip("sympy")


@settings(max_examples=60, deadline=None)
@given(programs, st.tuples(*[st.integers(-9, 9)] * 3))
def test_translation_means_the_same(text: str, point: tuple[int, ...]) -> None:
    values = dict(zip(NAMES, point, strict=True))
    try:
        value = parse_int(text)
        expected = evaluate(value, values)
    except ZeroDivisionError:
        return
    names = {sympy.Symbol(name, integer=True): number for name, number in values.items()}
    assert sympy.simplify(to_sympy(value).xreplace(names)) == expected


leaves = st.one_of(st.integers(-5, 5).map(str), st.sampled_from(NAMES))
polynomials = st.recursive(
    leaves, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner), max_leaves=7
)


@settings(max_examples=60, deadline=None)
@given(polynomials, polynomials)
def test_polynomials_are_equal_exactly_when_sympy_expands_them_equal(a: str, b: str) -> None:
    left, right = parse_int(a), parse_int(b)
    names = {name: sympy.Symbol(name, integer=True) for name in NAMES}
    same = sympy.expand(sympy.sympify(a, names) - sympy.sympify(b, names)) == 0
    assert (left == right) == same


def test_prover_is_the_last_resort() -> None:
    env, plain = ShapeEnv(prover=prove), ShapeEnv()
    for item in (env, plain):
        for _ in range(2):
            item.create_unbacked(lo=-5)
    u0, u1 = symbol("u0"), symbol("u1")
    square = rel_ge(u0 * u0 + 2 * u0 * u1 + u1 * u1, 0)
    assert env.known(square) is None
    with pytest.raises(DataDependentSize):
        plain.decide(square)
    assert env.decide(square) is True and not env.guards
    with pytest.raises(DataDependentSize):
        env.decide(rel_ge(u0, u1))


@pytest.mark.parametrize(
    ("within", "facts"),
    [(None, (None, None)), (Range(-1), (None, None)), (Range(0), (True, None)), (Range(1), (True, True))],
)
def test_sympy_is_told_the_sign_of_a_symbol(within: Range | None, facts: tuple[bool | None, bool | None]) -> None:
    s0 = symbol("s0")
    made = to_sympy(s0, {} if within is None else {s0: Interval(within.lo, within.hi)})
    assert (made.is_nonnegative, made.is_positive) == facts
