"""`cat` joins tensors whose other sizes are equal, and refuses all others as eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.prims.meta.data_movement import cat_meta
from kiln.tensor.spec import TensorSpec, contiguous_strides

REFUSED = {
    "another size": ((2, 3), (2, 4), 0),
    "another size after the axis": ((2, 3, 4), (2, 3, 5), 1),
    "another rank": ((2, 3), (2, 3, 1), 0),
    "a longer rank first": ((2, 3, 1), (2, 3), 0),
}


def spec(*sizes: int) -> TensorSpec:
    return TensorSpec(torch.float32, sizes, contiguous_strides(sizes))


@pytest.mark.parametrize("name", REFUSED)
def test_the_rule_compares_sizes(name: str) -> None:
    first, second, axis = REFUSED[name]
    with pytest.raises(Exception, match="cat"):
        cat_meta(GuardFreeOracle(), spec(*first), spec(*second), axis=axis)


@pytest.mark.parametrize("name", REFUSED)
def test_compiled_code_raises_what_eager_raises(name: str) -> None:
    first, second, axis = REFUSED[name]

    def join(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x + 1, y * 2], axis) - 1

    tensors = torch.ones(first), torch.ones(second)
    assert type(error_of(kiln.compile(join), *tensors)) is type(error_of(join, *tensors))


def error_of(function: Callable[..., object], *args: torch.Tensor) -> Exception | None:
    try:
        function(*args)
    except Exception as error:
        return error
    return None


def test_sizes_add_up_along_the_axis() -> None:
    assert cat_meta(GuardFreeOracle(), spec(2, 3), spec(2, 4), axis=1).sizes == (2, 7)
    assert cat_meta(GuardFreeOracle(), spec(2, 3), spec(5, 3), spec(0, 3), axis=0).sizes == (7, 3)
