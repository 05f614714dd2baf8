"""Numbers and lists that a program reads beside numbers that change: each call is like eager's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

CALLS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "equal floats": (lambda x, s, u: x * 2 if s == u else x * 3, [(1.0, 2.0), (1.0, 1.0), (5.0, 1.0), (5.0, 5.0)]),
    "greater floats": (lambda x, s, u: x * 2 if s > u else x * 3, [(3.0, 2.0), (3.0, 1.0), (0.5, 1.0), (5.0, 7.0)]),
    "close floats": (lambda x, s, u: x * 2 if math.isclose(s, u) else x, [(1.0, 2.0), (1.0, 1.0), (5.0, 1.0)]),
    "an integer and its float": (
        lambda x, k, j: (k == float(k), k < float(k), k * 1.0 == k, (k + j) > float(k + j), k == 2.0**53, x),
        [(4, 6), (5, 7), (2**53 + 1, 2), (2**53 + 3, 4), (2**53, 1), (2**60 + 1, 5)],
    ),
    "quotients of large integers": (
        lambda x, k, j: (math.floor(k / 3), math.ceil(k / 2), int(k / 7), round(k / 2), x),
        [(4, 6), (5, 7), (2**60 + 1, 2), (2**61 + 5, 4), (2**53 + 1, 1)],
    ),
    "integers": (lambda x, k, j: (x * math.gcd(k, j), k ^ j), [(4, 6), (5, 6), (6, 6), (6, 7), (6, 8), (9, 3)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_both_sides_are_guarded(name: str) -> None:
    program, calls = CALLS[name]
    compiled, x = kiln.compile(program, backend="eager", options={"cache": False}), torch.ones(2)
    for given in calls:
        torch.testing.assert_close(compiled(x, *given), program(x, *given))


def shuffled(x: Tensor) -> Tensor:
    items = [1, 2, 3, 4, 5]
    random.shuffle(items)
    return x * items[0]


def changes_its_argument(x: Tensor, found: dict[str, float]) -> Tensor:
    found["k"] = random.random()
    return x * found["k"]


def remembers(x: Tensor, found: list[float] = []) -> Tensor:  # noqa: B006 - the default is what is tested
    found.append(random.random())
    return x * len(found)


def twice(x: Tensor) -> tuple[Tensor, list[float], list[float]]:
    first, second = pair()
    first.append(1.0)
    return x, first, second


def pair() -> tuple[list[float], list[float]]:
    made = [random.random()]
    return made, made


def large(x: Tensor) -> tuple[Tensor, int]:
    return x, random.getrandbits(64)


@pytest.mark.parametrize("program", [shuffled, changes_its_argument, remembers, twice, large])
@pytest.mark.filterwarnings("ignore")
def test_random_numbers_in_objects(program: Callable[..., Any]) -> None:
    def run(function: Callable[..., Any]) -> list[Any]:
        random.seed(3)
        remembers.__defaults__[0].clear()  # type: ignore[index]
        found: dict[str, float] = {}
        rest = (found,) if program is changes_its_argument else ()
        return [(function(torch.ones(2), *rest), dict(found)) for _ in range(4)]

    expected = run(program)
    assert str(run(kiln.compile(program, backend="eager", options={"cache": False}))) == str(expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_power_of_a_size_is_compared_exactly(dynamic: bool | None) -> None:
    def program(x: Tensor) -> Any:
        n = x.shape[0]
        return [n**50 == float(n**50), n**50 > float(n**50), float(n * 2**60 + 1) == n * 2**60 + 1, n == float(n)]

    compiled = kiln.compile(program, dynamic=dynamic, backend="eager", options={"cache": False})
    for size in (2, 3, 5, 3, 4, 7):
        assert compiled(torch.ones(size)) == program(torch.ones(size))


def signed(x: torch.Tensor, t: torch.Tensor) -> Any:
    number = t.item()
    return x + 1, math.copysign(1, number), repr(number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", [None, "eager"])
def test_the_sign_of_zero_that_a_variant_assumes(dtype: torch.dtype, backend: str | None) -> None:
    compiled = kiln.compile(signed) if backend is None else kiln.compile(signed, backend=backend)
    for number in (2.5, -0.0, 0.0, -0.0, math.nan, 0.0, math.nan):
        given = torch.tensor(number, dtype=dtype)
        assert repr(compiled(torch.ones(1), given)) == repr(signed(torch.ones(1), given))


@pytest.mark.parametrize("bound", [10**20, -(10**400), 2**53 + 1, 2**63, 2**53])
def test_a_float_of_a_tensor_beside_an_integer_that_is_no_float(bound: int) -> None:
    def program(x: torch.Tensor, t: torch.Tensor) -> Any:
        number = (t * 1).item()
        return x + 1, number <= bound, number == bound, bound < number

    compiled = kiln.compile(program)
    for number in (2.5, 2.0**53, 1e20, 2.0**63, -1e300, math.inf):
        given = torch.tensor(number, dtype=torch.float64)
        assert compiled(torch.ones(1), given)[1:] == program(torch.ones(1), given)[1:]
