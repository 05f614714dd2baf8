"""Lengths that the program computes from sizes, sequences that are padded to the longest: one graph for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import kiln


class Cache:
    def __init__(self, offset: int = 0) -> None:
        self.keys = torch.zeros(2, 0)
        self.offset = offset

    def __len__(self) -> int:
        return self.keys.shape[1] + self.offset

    def add(self, keys: Tensor) -> None:
        self.keys = torch.cat([self.keys, keys], 1)


def test_a_cache_that_tells_its_length() -> None:
    def step(cache: Cache, x: Tensor) -> tuple[Tensor, Tensor]:
        before = len(cache)
        cache.add(x)
        return x + before, torch.arange(before, len(cache)) if cache else x

    compiled: Any = kiln.compile(step, backend="eager")
    ours, eager = Cache(), Cache()
    for turn in range(6):
        x = torch.ones(2, 1 + turn % 2)
        for got, expected in zip(compiled(ours, x), step(eager, x), strict=True):
            assert torch.equal(got, expected)
    assert compiled.report().compiles == 2, str(compiled.report())


def test_a_length_below_zero() -> None:
    def measured(cache: Cache, x: Tensor) -> Tensor:
        return x + len(cache)

    compiled: Any = kiln.compile(measured, backend="eager", dynamic=True)
    x = torch.ones(2, 3)
    cache = Cache(-2)
    cache.add(x)
    assert torch.equal(compiled(cache, x), x + 1)
    cache.offset = -4
    with pytest.raises(ValueError, match="__len__\\(\\) should return >= 0"):
        compiled(cache, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: pad_sequence(rows, batch_first=True),
        lambda rows: pad_sequence(rows, padding_value=1.5),
        lambda rows: pad_sequence(rows, True, -1, "left"),
    ],
    ids=["batch first", "time first", "left"],
)
def test_sequences_are_padded_to_the_longest(function: Callable[[list[Tensor]], Tensor]) -> None:
    compiled: Any = kiln.compile(function, backend="eager")
    for lengths in ([3, 5, 4], [6, 2, 5], [4, 4, 7], [2, 9, 3], [5, 5, 5]):
        rows = [torch.randn(length, 2) for length in lengths]
        got, expected = compiled(rows), function(rows)
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    assert compiled.report().compiles == 2, str(compiled.report())


@pytest.mark.parametrize("rows", [[], [torch.ones(2, 3), torch.ones(2, 4)]], ids=["none", "other widths"])
def test_sequences_that_cannot_be_padded(rows: list[Tensor]) -> None:
    with pytest.raises(RuntimeError) as expected:
        pad_sequence(rows)
    with pytest.raises(RuntimeError) as got:
        kiln.compile(pad_sequence, backend="eager")(rows)
    assert str(got.value) == str(expected.value)


def test_a_method_of_a_text_lives_over_a_break() -> None:
    def texts(x: Tensor) -> list[str]:
        return [",".join(str(number) for number in row.tolist()) for row in x]

    compiled: Any = kiln.compile(texts, backend="eager")
    for _ in range(10):
        x = torch.randint(0, 9, (3, 3))
        assert compiled(x) == texts(x)
    assert not compiled.report().eager, str(compiled.report())


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, columns = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            y.index_add_(0, rows, expert(x[rows]) * weights[rows, columns, None])
        return y


def test_layers_with_sizes_from_data_are_not_repeated() -> None:
    model = nn.Sequential(Experts(), Experts(), Experts())
    compiled: Any = kiln.compile(model, backend="eager")
    with torch.no_grad():
        for rows in (5, 6, 7):
            x = torch.randn(rows, 4)
            assert torch.allclose(compiled(x), model(x), atol=1e-6)
    assert not compiled.report().eager, str(compiled.report())


def test_a_position_computed_in_the_region_is_read_before_it_is_used() -> None:
    def cross_out(cost: Tensor) -> tuple[Tensor, Tensor]:
        cost = cost.clone()
        found = cost.argmin()
        row, column = found // cost.shape[1], found % cost.shape[1]
        cost[row, :] = 9.0
        cost[:, column] = 9.0
        return cost, row

    compiled: Any = kiln.compile(cross_out)
    for width in (5, 6, 7):
        cost = torch.rand(4, width)
        for got, expected in zip(compiled(cost), cross_out(cost), strict=True):
            assert torch.equal(got, expected)
    assert not compiled.report().eager, str(compiled.report())
