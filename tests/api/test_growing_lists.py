"""Lists of another length in each call: compiled for the first lengths and for those that recur."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline.session import KilnWarning

X = torch.ones(3)


def added(x: Tensor, items: list[Tensor]) -> Tensor:
    for item in items:
        x = x + item
    return x


def test_a_list_that_grows_up_to_a_length() -> None:
    compiled: Any = kiln.compile(added, backend="eager")
    with pytest.warns(KilnWarning, match="KILN1089"):
        for length in [*range(20), *[20] * 6]:
            assert torch.equal(compiled(X, [X] * length), added(X, [X] * length))
    report = compiled.report()
    assert (report.compiles, report.eager) == (5, 1), str(report)
    compiled(X, [X] * 20)
    assert "many lengths of items" in str(report) and compiled.report().compiles == 5


def test_lengths_that_recur_are_compiled() -> None:
    compiled: Any = kiln.compile(added, backend="eager")
    with pytest.warns(KilnWarning):
        for _ in range(4):
            for length in range(6):
                assert torch.equal(compiled(X, [X] * length), added(X, [X] * length))
    assert compiled.report().compiles == 6


def test_with_fullgraph_each_length_is_compiled() -> None:
    compiled: Any = kiln.compile(added, backend="eager", fullgraph=True)
    for length in range(7):
        compiled(X, [X] * length)
    assert compiled.report().compiles == 7
