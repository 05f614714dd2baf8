"""Shape rules on symbolic sizes: for every size that passes the guards they give what eager gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from kiln.graph.prims.errors import ImpossibleView
from kiln.graph.prims.meta import META
from kiln.symbolic import Int, ShapeEnv, Symbol, evaluate, product
from kiln.tensor.spec import TensorSpec
from tests.graph.prims.layouts import STATIC

Layout = tuple[tuple[Int, ...], tuple[int, ...]]
"""Sizes, and the order of dimensions from the outermost in memory."""


def make_spec(sizes: Sequence[Int], order: Sequence[int]) -> TensorSpec:
    strides: list[Int] = [1] * len(sizes)
    step: Int = 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * sizes[axis]
    return TensorSpec(torch.float32, tuple(sizes), tuple(strides))


def at(spec: TensorSpec, values: dict[Symbol, int]) -> TensorSpec:
    def numbers(sizes: tuple[Int, ...]) -> tuple[int, ...]:
        return tuple(evaluate(size, values) for size in sizes)

    return TensorSpec(spec.dtype, numbers(spec.sizes), numbers(spec.strides), evaluate(spec.offset, values))


def attrs_at(value: Any, values: dict[Symbol, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(attrs_at(item, values) for item in value)
    if isinstance(value, dict):
        return {key: attrs_at(item, values) for key, item in value.items()}
    return value if isinstance(value, str | bool | torch.dtype) else evaluate(value, values)


Made = tuple[list[TensorSpec], dict[str, Any]]


def pointwise(rng: random.Random, sizes: list[Int]) -> Made:
    def operand() -> TensorSpec:
        own = [1 if rng.random() < 0.2 else size for size in sizes][rng.choice((0, 0, 1)) :]
        order = list(range(len(own)))
        return make_spec(own, order if rng.random() < 0.5 else rng.sample(order, len(order)))

    return [operand(), operand()], {}


def one(rng: random.Random, sizes: list[Int]) -> TensorSpec:
    order = list(range(len(sizes)))
    return make_spec(sizes, rng.sample(order, len(order)) if rng.random() < 0.5 else order)


def convert(rng: random.Random, sizes: list[Int]) -> Made:
    return [one(rng, sizes)], {"dtype": torch.float64}


def view(rng: random.Random, sizes: list[Int]) -> Made:
    """Neighbours joined, or the last dimension split."""
    place = rng.randrange(len(sizes))
    joined = [*sizes[:place], product(sizes[place : place + 2]), *sizes[place + 2 :]]
    return [one(rng, sizes)], {"sizes": tuple(joined if rng.random() < 0.7 else [*sizes, 1])}


def cat(rng: random.Random, sizes: list[Int]) -> Made:
    axis = rng.randrange(len(sizes))
    return [one(rng, sizes) for _ in range(2)], {"axis": axis}


def diagonal(rng: random.Random, sizes: list[Int]) -> Made:
    axis1, axis2 = rng.sample(range(len(sizes)), 2)
    return [one(rng, sizes)], {"offset": rng.choice((0, 1, -1)), "axis1": axis1, "axis2": axis2}


def slice_(rng: random.Random, sizes: list[Int]) -> Made:
    axis = rng.randrange(len(sizes))
    return [one(rng, sizes)], {"axis": axis, "start": 1, "stop": sizes[axis], "step": rng.choice((1, 2))}


def flip(rng: random.Random, sizes: list[Int]) -> Made:
    return [one(rng, sizes)], {"axes": (0,)}


def reduction(rng: random.Random, sizes: list[Int]) -> Made:
    return [one(rng, sizes)], {"axes": (rng.randrange(len(sizes)),)}


CASES: dict[str, Callable[[random.Random, list[Int]], Made]] = {
    "add": pointwise, "convert": convert, "view": view, "cat": cat, "diagonal": diagonal, "slice": slice_,
    "flip": flip, "sum": reduction,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_symbolic_agrees_with_static(name: str) -> None:
    rng = random.Random(name)
    others = 0
    for _ in range(150):
        env = ShapeEnv()
        sizes: list[Int] = [
            env.create_symbol(rng.choice((2, 3, 4, 5))) if rng.random() < 0.6 else rng.choice((1, 2, 3))
            for _ in range(rng.randint(2, 4))
        ]
        specs, attrs = CASES[name](rng, sizes)
        try:
            result = META[name](env, *specs, **attrs)
        except ImpossibleView:
            continue
        for _ in range(5):
            values = {symbol: rng.choice((1, 2, 3, 4, 6)) for symbol in env.symbols()}
            if not all(guard.relation.evaluate(values) for guard in env.guards):
                continue
            others += 1
            expected = META[name](STATIC, *[at(spec, values) for spec in specs], **attrs_at(attrs, values))
            assert same(at(result, values), expected), (list(map(str, specs)), attrs, str(result), values)
    assert others > 100


def same(left: TensorSpec, right: TensorSpec) -> bool:
    """Equal except for strides of size-1 dimensions and of empty tensors."""
    if (left.sizes, left.dtype) != (right.sizes, right.dtype):
        return False
    strides = zip(left.strides, right.strides, left.sizes, strict=True)
    return 0 in left.sizes or (left.offset == right.offset and all(a == b or size == 1 for a, b, size in strides))


def test_contiguous_symbolic_inputs_ask_nothing() -> None:
    env = ShapeEnv()
    s0, s1 = env.create_symbol(8), env.create_symbol(16)
    x, bias = make_spec((s0, s1, 64), (0, 1, 2)), make_spec((64,), (0,))
    assert META["add"](env, x, x) is x
    assert META["add"](env, x, bias).sizes == (s0, s1, 64)
    assert str(META["view"](env, x, sizes=(s0 * s1, 64))) == "f32[s0*s1, 64]"
    assert str(META["permute"](env, x, dims=(1, 0, 2))) == "f32[s1, s0, 64 | 64, 64*s1, 1]"
    assert str(META["sum"](env, x, axes=(2,))) == "f32[s0, s1]"
    assert env.guards == []
