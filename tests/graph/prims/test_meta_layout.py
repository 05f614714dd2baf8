"""Strides of results against eager, on random layouts."""

from __future__ import annotations

import random

import pytest
import torch

from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import same_spec
from kiln.graph.prims.meta import CHECKS, META, SUPPLIED
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.tensor.spec import TensorSpec
from tests.graph.prims.layouts import STATIC, random_operands, random_tensor, same_layout, spec_of

ROUNDS = 400


def test_every_op_has_a_rule_or_is_supplied() -> None:
    assert META.gaps() == []
    assert {op.name for op in PRIMS if META.get(op.name) is None} == SUPPLIED


def test_every_op_says_what_its_kernel_relies_on() -> None:
    assert CHECKS.gaps() == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pointwise_strides_are_those_of_the_iterator(count: int) -> None:
    rng = random.Random(count)
    run = {1: torch.neg, 2: torch.add, 3: lambda c, x, y: torch.addcmul(c, x, y)}[count]
    rule = {1: META["neg"], 2: META["add"], 3: META["fma"]}[count]
    for _ in range(ROUNDS):
        operands = random_operands(rng, count)
        expected = run(*operands)
        same_layout(rule(STATIC, *map(spec_of, operands)), expected, operands)


def test_where_with_bool_condition() -> None:
    rng = random.Random(7)
    for _ in range(ROUNDS):
        condition, x, y = random_operands(rng, 3)
        condition = condition > 0
        same_layout(META["where"](STATIC, *map(spec_of, (condition, x, y))), torch.where(condition, x, y), (x, y))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("cumsum", lambda x, axis: x.cumsum(axis)),
        ("cumprod", lambda x, axis: x.cumprod(axis)),
        ("cummax", lambda x, axis: x.cummax(axis).values),
        ("cummin", lambda x, axis: x.cummin(axis).values),
    ],
)
def test_scans(name: str, run) -> None:
    rng = random.Random(name)
    for _ in range(ROUNDS // 4):
        x = random_tensor(rng, rank=rng.randint(1, 5))
        axis = rng.randrange(x.dim())
        same_layout(META[name](STATIC, spec_of(x), axis=axis), run(x, axis), (x,))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("sum", lambda x, axes: x.sum(axes)),
        ("amax", lambda x, axes: x.amax(axes)),
        ("any", lambda x, axes: (x > 0).any(axes[0])),
        ("prod", lambda x, axes: x.prod(axes[0])),
        ("argmax", lambda x, axes: x.argmax(axes[0])),
    ],
)
def test_reductions(name: str, run) -> None:
    rng = random.Random(name)
    for _ in range(ROUNDS // 4):
        x = random_tensor(rng, rank=rng.randint(1, 5), empty=False)
        count = 1 if name in ("any", "prod", "argmax") else rng.randint(1, x.dim())
        axes = tuple(sorted(rng.sample(range(x.dim()), count)))
        spec = spec_of(x > 0 if name == "any" else x)
        same_layout(META[name](STATIC, spec, axes=axes), run(x, axes), (x,))


def test_convert_preserves_the_format() -> None:
    rng = random.Random(3)
    for _ in range(ROUNDS):
        x = random_tensor(rng, rank=rng.randint(0, 5))
        expected = x.to(torch.float64)
        same_layout(META["convert"](STATIC, spec_of(x), dtype=torch.float64), expected, (x,))


def test_kinds_of_pointwise_rows_are_covered() -> None:
    for op in PRIMS:
        if op.kind is Kind.POINTWISE:
            assert op.result in ("same", "bool", "attr")


def test_specs_are_compared_with_their_layout_where_it_counts() -> None:
    oracle = GuardFreeOracle()
    rows, columns = TensorSpec(torch.float32, (2, 3), (3, 1)), TensorSpec(torch.float32, (2, 3), (1, 2))
    shifted = TensorSpec(torch.float32, (2, 3), (3, 1), 4)
    for other in (columns, shifted, (rows, columns)):
        left = (rows, rows) if isinstance(other, tuple) else rows
        assert same_spec(oracle, left, other, layout=False)
        assert not same_spec(oracle, left, other, layout=True)
