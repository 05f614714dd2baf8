"""What is said of numbers that are part of compiled code: their values, and advice that fits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from kiln.pipeline.session import KilnWarning

PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "a window": (lambda x, n: x.unfold(0, n, 1).mean(-1), 2),
    "a count of parts": (lambda x, n: [part + 1 for part in x.chunk(n)], 2),
    "a key": (lambda x, n: x * {f"key {number}": number for number in range(20)}[f"key {n}"], 2),
    "a large number": (lambda x, n: x * (n % 7), 2**63),
}


@pytest.mark.parametrize(("program", "first"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_variant_per_value(program: Callable[..., Any], first: int) -> None:
    fast = kiln.compile(program, options={"cache": False, "variants": 3})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KilnWarning)
        for number in range(first, first + 4):
            fast(torch.ones(20), number)
    (text,) = [str(found.message) for found in caught]
    assert "KILN1090" in text and f"n is {first + 3}, and was {first + 2}" in text
    assert "dynamic=True" not in text
    assert ("62 bits" if first > 2 else "takes this number as it is") in text
    recompile = kiln.report_of(fast).recompiles[-1].text()
    assert f"n is {first + 2}, and was {first + 1}" in recompile and "comparison" not in recompile


def test_changing_sizes_keep_their_advice() -> None:
    fast = kiln.compile(lambda x: x * 2, dynamic=False, options={"cache": False, "variants": 2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KilnWarning)
        for size in (2, 3, 4):
            fast(torch.ones(size))
    assert "dynamic=True" in str(caught[0].message)
