"""Tags: plain floats that stand for symbolic numbers."""

from __future__ import annotations

import math

import pytest
import torch

from kiln.symbolic.tags import Tags, UnknownNumber, class_of, in_float32, is_round, same_class
from kiln.symbolic.values import Given, Real

EPS = Real("given", (Given("eps", 0.3),))


def tagged(number: float) -> tuple[Tags, float]:
    tags = Tags()
    tags.begin({0.1234567})
    made = tags.tag(EPS, number)
    assert made is not None
    return tags, made


@pytest.mark.parametrize("number", [0.3, 7.5, -2.0, 1e-5, 0.999])
def test_a_mark_is_near_its_number_and_of_its_class(number: float) -> None:
    tags, made = tagged(number)
    assert made != number and math.isclose(made, number, rel_tol=1e-6) and class_of(made) == class_of(number)
    assert tags.tag(EPS, number) == made and str(tags.find(made)) == str(EPS)


@pytest.mark.parametrize("number", [0.0, 1.0, math.inf, math.nan, 1 - 1e-16])
def test_special_numbers_have_none(number: float) -> None:
    assert Tags().tag(EPS, number) is None


def test_what_is_computed_from_a_mark_is_recognised() -> None:
    tags, made = tagged(0.3)
    for number, text in (
        (1 - made, "sub(1, given(eps))"),
        (1 / (1 - made), "truediv(1, sub(1, given(eps)))"),
        (made * made, "mul(given(eps), given(eps))"),
        (made / 12, "truediv(given(eps), 12)"),
        (-(made / 12), "neg(truediv(given(eps), 12))"),
        (made * 300, "mul(given(eps), 300)"),
    ):
        assert str(tags.find(number)) == text
    assert not tags.end()


def test_other_numbers_are_not_taken_for_constants() -> None:
    tags, made = tagged(0.3)
    with pytest.raises(UnknownNumber):
        tags.find(math.sqrt(made + 1))
    for number in (0.1234567, 1e-8, 2.0, 9.999999960041972e-13, math.inf):
        assert tags.find(number) is None
    assert tags.end()  # the tag has reached nobody
    assert tags.find(math.sqrt(made + 1)) is None  # outside of the call that took the tag


def test_classes() -> None:
    numbers = (-1.0, 0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf)
    assert sorted(map(class_of, numbers)) == list(range(8))
    assert same_class(0.5, class_of(0.7)) and not same_class(1.0, class_of(0.7)) and is_round(1e-5)


@pytest.mark.parametrize("number", [0.1, -3.4028e38, 3.5e38, -3.5e38, math.inf])
def test_single_precision_is_that_of_torch(number: float) -> None:
    assert in_float32(number) == torch.tensor(number, dtype=torch.float64).float().item()


def test_a_number_of_the_call_is_no_multiple_of_a_tag() -> None:
    tags = Tags()
    tag = tags.tag(EPS, 0.37)
    assert tag is not None
    for plain, known in (({3 * tag}, False), (set(), True)):
        tags.begin(plain)
        assert (tags.find_tag(3 * tag) is not None) == known
