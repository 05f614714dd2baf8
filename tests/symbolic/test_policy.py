"""Which sizes become symbols."""

from __future__ import annotations

import pytest
import torch

from kiln.symbolic import (
    DimKind,
    DimMarks,
    DimPolicy,
    FixedMarkedDim,
    ScalarPolicy,
    ShapeEnv,
    read_marks,
    rel_eq,
    require_open,
)
from kiln.symbolic.policy import Dynamic

STATIC, SYMBOL, UNBACKED = DimKind.STATIC, DimKind.SYMBOL, DimKind.UNBACKED


@pytest.mark.parametrize(
    ("dynamic", "sizes", "seen", "kinds"),
    [
        ("auto", (8, 128), [], (STATIC, STATIC)),
        ("auto", (16, 128), [(8, 128)], (SYMBOL, STATIC)),
        ("auto", (8, 128), [(8, 128), (16, 128), (8, 128)], (SYMBOL, STATIC)),
        ("auto", (8, 128), [(8,)], (STATIC, STATIC)),
        ("auto", (1, 0), [(2, 1)], (SYMBOL, SYMBOL)),
        ("never", (16, 128), [(8, 128)], (STATIC, STATIC)),
        ("always", (1, 0), [], (SYMBOL, SYMBOL)),
    ],
)
def test_sizes(dynamic: Dynamic, sizes: tuple[int, ...], seen: list[tuple[int, ...]], kinds: object) -> None:
    assert tuple(choice.kind for choice in DimPolicy(dynamic).choose(sizes, seen)) == kinds


def test_reasons() -> None:
    assert DimPolicy().choose((16,), [(8,)])[0].reason == "changed from 8 to 16"


def test_marks_win() -> None:
    marks = DimMarks(dynamic=frozenset({0}), static=frozenset({1}), unbacked=frozenset({2}), ranges={0: (2, 64)})
    first, second, third, fourth = DimPolicy("always").choose((8, 8, 8, 8), marks=marks)
    assert (first.kind, first.lo, first.hi) == (SYMBOL, 2, 64)
    assert (second.kind, third.kind, fourth.kind) == (STATIC, UNBACKED, SYMBOL)
    assert DimPolicy("never").choose((8,), marks=marks)[0].kind is SYMBOL


def test_marks_are_read_from_attributes() -> None:
    tensor = torch.ones(2, 3)
    assert read_marks(tensor) == DimMarks()
    tensor._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    tensor._dynamo_weak_dynamic_indices = {1}  # type: ignore[attr-defined]
    assert read_marks(tensor) == DimMarks(dynamic=frozenset({0}), maybe_dynamic=frozenset({1}))


def test_marks_of_torch_itself() -> None:
    from torch._dynamo import mark_dynamic, mark_static

    tensor = torch.ones(2, 3)
    mark_dynamic(tensor, 0, min=2, max=64)
    mark_static(tensor, 1)
    assert read_marks(tensor) == DimMarks(dynamic=frozenset({0}), static=frozenset({1}), ranges={0: (2, 64)})


def test_scalars() -> None:
    assert ScalarPolicy().choose(3).kind is STATIC
    assert ScalarPolicy().choose(3, [2]).kind is SYMBOL
    assert ScalarPolicy().choose(3, [2]).lo < 0
    assert ScalarPolicy("always").choose(3).kind is SYMBOL
    assert ScalarPolicy("always").choose(3, is_argument=False).kind is STATIC


def test_a_marked_dimension_must_stay_open() -> None:
    env = ShapeEnv()
    s0 = env.create_symbol(8)
    require_open(env, s0, dim=0, source="x")
    env.decide(rel_eq(s0, 8))
    with pytest.raises(FixedMarkedDim, match=r"KILN2104\n.*dimension 0 of `x`.*fixes it to 8"):
        require_open(env, s0, dim=0, source="x")
