"""Plans of recorded graphs run on the null device; attention, which the CPU lacks, gives zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from kiln.native import _executor
from kiln.plan.plan import Plan
from kiln.plan.steps import LaunchStep
from kiln.runtime.executor import make_executor
from kiln.symbolic import evaluate
from tests.gpu_graphs.test_recorded import NAMES, plan_of
from tests.runtime.test_null_device import fake_libraries, null_device  # noqa: F401  a fixture


def attention(query: Tensor, key: Tensor, value: Tensor, *more: object, **options: object) -> tuple[object, ...]:
    out = query.new_zeros(*query.shape[:-1], value.size(-1))
    sums = query.new_zeros(*query.shape[:-1], 1, dtype=torch.float32)
    nothing, seed = query.new_zeros(0), torch.zeros((), dtype=torch.int64)
    return out, sums, nothing, nothing, query.size(2), key.size(2), seed, seed, nothing


def attention_backward(
    tangent: Tensor, query: Tensor, key: Tensor, value: Tensor, *more: object, **options: object
) -> tuple[Tensor, ...]:
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


@pytest.fixture
def cpu_attention() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_scaled_dot_product_cudnn_attention", attention)
    library.impl("_scaled_dot_product_cudnn_attention_backward", attention_backward)
    yield
    library._destroy()


def inputs_of(plan: Plan, symbols: Mapping[str, int] = MappingProxyType({})) -> list[object]:
    """Inputs in the planned layouts for these values of symbols; indices are zero."""
    made: list[object] = []
    for given in plan.inputs:
        assert given.spec is not None
        sizes, strides = (
            [evaluate(value, symbols) for value in values] for values in (given.spec.sizes, given.spec.strides)
        )
        made.append(torch.empty_strided(sizes, strides, dtype=given.spec.dtype).zero_())
    return made


@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, tmp_path: Path, null_device: Iterator[None], cpu_attention: Iterator[None]) -> None:  # noqa: F811
    plan = plan_of(name, tmp_path)
    executor = make_executor(plan, fake_libraries(plan))
    with torch.backends.mkldnn.flags(enabled=False):  # some machines have no bf16 in it
        executor(*inputs_of(plan))
    launches = sum(isinstance(step, LaunchStep) for step in plan.steps)
    lines = _executor.take_null_log().splitlines()
    assert sum(line.startswith("launch ") for line in lines) == launches
    assert not any("another pointer" in line for line in lines)
