"""Comparisons of real numbers of sizes: which relation of integers they are, and that it is Python's answer."""

from __future__ import annotations

import operator
import random

import pytest

from kiln.symbolic import ShapeEnv, Symbol
from kiln.symbolic.comparisons import compare_reals, number_at
from kiln.symbolic.values import Real, truth_for

OPERATORS = {"lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne}
TEXTS = [
    ("n/3 > 1.5", lambda n, m: ("lt", 1.5, n / 3)),
    ("0.5*n <= 100", lambda n, m: ("le", n * 0.5, 100.0)),
    ("n/2 == 4.5", lambda n, m: ("eq", n / 2, 4.5)),
    ("n/m > 1.5", lambda n, m: ("lt", 1.5, n / m)),
    ("0.7*n < 2.1", lambda n, m: ("lt", n * 0.7, 2.1)),
    ("sqrt(n) < 2.5", lambda n, m: ("lt", Real("sqrt", (n,)), 2.5)),
    ("n**0.5 <= 3", lambda n, m: ("le", Real("pow", (n, 0.5)), 3)),
    ("log2(n) >= 3", lambda n, m: ("le", 3, Real("log2", (n,)))),
    ("10/n > 3", lambda n, m: ("lt", 3, Real("truediv", (10.0, n)))),
    ("-n*0.1 > -0.35", lambda n, m: ("lt", -0.35, -(n * 0.1))),
    ("0.1*n == 0.7", lambda n, m: ("eq", n * 0.1, 0.7)),
    ("always", lambda n, m: ("lt", -1.0, n * 0.1)),
    ("sin(n) < 0.5", lambda n, m: ("lt", Real("sin", (n,)), 0.5)),
    ("n/m < 0.7", lambda n, m: ("lt", n / m, 0.7)),
]  # fmt: skip


def sizes() -> tuple[ShapeEnv, Symbol, Real, Real]:
    env = ShapeEnv()
    n, m = env.create_symbol(6, lo=1), env.create_symbol(4, lo=1)
    return env, n, Real("float", (n,)), Real("float", (m,))


def test_relations_of_integers(golden) -> None:
    env, _, n, m = sizes()
    golden("\n".join(f"{text:<16} {compare_reals(env, *make(n, m))}" for text, make in TEXTS))


def random_number(rng: random.Random, n: Real) -> Real:
    """A chain of functions of `n` and constants."""
    value = n
    for _ in range(rng.randint(1, 4)):
        constant = rng.choice([0.1, 0.7, 1.5, 3.0, 7.0, -2.0, rng.uniform(0.01, 9.0)])
        value = rng.choice([
            value + constant, constant - value, value * constant, value / constant, constant / value, -value,
            Real("min", (value, constant)), Real("max", (constant, value)), Real("floordiv", (value, abs(constant))),
            Real("sqrt", (Real("abs", (value,)),)), Real("sqrt", (value,)), Real("log2", (value,)),
            Real("pow", (value, constant)), Real("sin", (value,)),
        ])  # fmt: skip
    return value


@pytest.mark.parametrize("seed", range(40))
def test_the_relation_is_pythons_answer_for_each_size(seed: int) -> None:
    rng = random.Random(3170000 + seed)
    found = 0
    for _ in range(60):
        env, symbol, n, _ = sizes()
        value = random_number(rng, n)
        try:
            numbers = {size: number_at(value, size) for size in (*range(1, 60), 997, 4096)}
        except (ArithmeticError, ValueError, TypeError):
            continue
        if any(isinstance(number, complex) for number in numbers.values()):
            continue
        constant = rng.choice([*numbers.values(), rng.uniform(-3.0, 9.0)])
        op = rng.choice([*OPERATORS])
        left, right = rng.choice([(value, constant), (constant, value)])
        truth = compare_reals(env, op, left, right)
        if truth is None:
            continue
        found += 1
        for size, number in numbers.items():
            sides = (number, constant) if left is value else (constant, number)
            assert truth_for(truth, {symbol: size}.__getitem__) == OPERATORS[op](*sides), (
                str(value),
                constant,
                op,
                size,
            )
    assert found
