"""Graphs for CUDA through all stages to the null device: allocations, launches and library calls in order.

Kernels are not compiled: what a launch would get is checked against their signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kiln.graph.ir.parse import parse_graph
from kiln.loops.fusion.launch_tables import MOST_PARAMETERS
from kiln.native import _executor
from kiln.pipeline import targets
from kiln.pipeline.context import CompileContext, Dump
from kiln.pipeline.stages import graph_to_plan
from kiln.plan.plan import Plan
from kiln.plan.steps import AtenStep
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.executor import make_executor
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target, cuda_gpu
from tests.runtime.test_null_device import fake_libraries, null_device  # noqa: F401  a fixture

Case = tuple[str, Callable[[], list[Any]]]

CASES: dict[str, Case] = {
    "norm": (
        """
        graph(%0: f32[128, 256 @cuda:0] "x", %1: f32[256 @cuda:0] "bias"):
            %2: f32[128, 256 @cuda:0] = add(%0, %1)
            %3: f32[128, 256 @cuda:0] = mul(%2, %2)
            %4: f32[128 @cuda:0] = sum(%3, axes=(1,))
            %5: f32[128, 1 @cuda:0] = unsqueeze(%4, axis=1)
            %6: f32[128, 1 @cuda:0] = sqrt(%5)
            %7: f32[128, 256 @cuda:0] = div(%2, %6)
            return %7
        """,
        lambda: [torch.randn(128, 256), torch.randn(256)],
    ),
    "symbolic": (
        """
        graph(%0: f32[s0, 64 @cuda:0] "x", %1: f32[s0, 64 @cuda:0] "y"):
            %2: f32[s0, 64 @cuda:0] = add(%0, %1)
            %3: f32[s0, 64 @cuda:0] = exp(%2)
            return %3
        """,
        lambda: [torch.randn(40, 64), torch.randn(40, 64)],
    ),
    "dropout": (
        """
        graph(%0: f32[64, 128 @cuda:0] "x", %1: f32[32, 128 @cuda:0] "w", %2: f32[32 @cuda:0] "b", %3: f32[100, 32 @cuda:0] "t", %4: i64[64 @cuda:0] "i"):
            %5: f32[64, 32 @cuda:0] = index(%3, %4, axes=(0,))
            %6: f32[128, 32 | 1, 128 @cuda:0] = permute(%1, dims=(1, 0))
            %7: f32[64, 32 @cuda:0] = aten.addmm.default(%2, %0, %6)
            %8: f32[ @cuda:0] = constant(value=0.0, dtype=f32, device=cuda:0)
            %9: f32[64, 32 @cuda:0] = maximum(%7, %8)
            %10: f32[64, 32 @cuda:0] = add(%9, %5)
            %20: i64[ @cuda:0] = random_seed(device=cuda:0)
            %11: f32[64, 32 @cuda:0] = random(%20, distribution="bernoulli", params=(0.75,), sizes=(64, 32), dtype=f32, device=cuda:0)
            %12: f32[ @cuda:0] = constant(value=0.75, dtype=f32, device=cuda:0)
            %13: f32[64, 32 @cuda:0] = div(%11, %12)
            %14: f32[64, 32 @cuda:0] = mul(%10, %13)
            return %14
        """,  # noqa: E501
        lambda: [*(torch.randn(*item) for item in ((64, 128), (32, 128), (32,), (100, 32))), torch.arange(64)],
    ),
    "scalar_on_the_cpu": (
        """
        graph(%0: f32[4096 @cuda:0] "x", %1: f32[] "scale"):
            %2: f32[4096 @cuda:0] = mul(%0, %1)
            return %2
        """,
        lambda: [torch.randn(4096), torch.tensor(2.0)],
    ),
}


def plan_of(text: str, folder: Path, host: Target = Target()) -> Plan:  # noqa: B008  a frozen value
    context = CompileContext(Options(), host, host, EventSink(), Dump(None), DiskStore(folder))
    return graph_to_plan(parse_graph(text), context)


@pytest.mark.parametrize("name", CASES)
def test_steps(name: str, golden: Callable[[str], None], tmp_path: Path, null_device: Iterator[None]) -> None:  # noqa: F811
    text, inputs = CASES[name]
    plan = plan_of(text, tmp_path)
    executor = make_executor(plan, fake_libraries(plan))
    executor(*inputs())
    log = _executor.take_null_log()
    for number, kernel in enumerate(plan.kernels):
        log = log.replace(kernel.symbol, f"kernel{number}")
    golden(log)


TWO_GPUS = """
graph(%0: f32[4096 @cuda:0] "x", %1: f32[4096 @cuda:1] "y"):
    %2: f32[4096 @cuda:0] = exp(%0)
    %3: f32[4096 @cuda:1] = exp(%1)
    return %2, %3
"""


def test_kernels_are_compiled_for_the_gpu_of_their_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for those of torch's current device."""
    kinds = {0: cuda_gpu((9, 0), 132), 1: cuda_gpu((8, 0), 108)}
    monkeypatch.setattr(targets, "gpu_of", kinds.__getitem__)
    kernels = plan_of(TWO_GPUS, tmp_path).kernels
    assert [dict(kernel.meta)["capability"] for kernel in kernels] == [90, 80]
    assert len({kernel.symbol for kernel in kernels}) == 2


def added(count: int, *, tree: bool) -> str:
    """The sum of `count` tensors, one after the other or by pairs."""
    inputs = ", ".join(f'%{n}: f32[4096 @cuda:0] "x{n}"' for n in range(count))
    lines, left = [f"graph({inputs}):"], [f"%{n}" for n in range(count)]
    while len(left) > 1:
        made = f"%{count + len(lines) - 1}"
        lines.append(f"    {made}: f32[4096 @cuda:0] = add({left[0]}, {left[1]})")
        left = [*left[2:], made] if tree else [made, *left[2:]]
    return "\n".join([*lines, f"    return {left[0]}"])


@pytest.mark.parametrize("tree", [False, True])
def test_kernels_do_not_grow_without_end(tree: bool, tmp_path: Path, null_device: Iterator[None]) -> None:  # noqa: F811
    """A body over hundreds of tensors takes a minute to compile; beyond the driver's limit a launch fails."""
    plan = plan_of(added(1100, tree=tree), tmp_path)
    assert max(kernel.source.count("tl.load(") for kernel in plan.kernels) <= 2 * 64 + 2
    assert max(len(kernel.params) for kernel in plan.kernels) <= MOST_PARAMETERS
    make_executor(plan, fake_libraries(plan))(*(torch.zeros(4096) for _ in range(1100)))


ADDED_AT = """
graph(%0: f32[50, 8 @cuda:0] "x", %1: i64[100 @cuda:0] "i", %2: f32[100, 8 @cuda:0] "y", %3: i64[100, 8 @cuda:0] "j"):
    %4: f32[100, 8 @cuda:0] = exp(%2)
    %5: f32[50, 8 @cuda:0] = index_put(%0, %1, %4, axes=(0,), accumulate=True)
    %6: f32[100, 8 @cuda:0] = sin(%2)
    %7: f32[50, 8 @cuda:0] = scatter(%5, %3, %6, axis=0, reduce="sum")
    %8: f32[50, 8 @cuda:0] = scatter(%7, %3, %2, axis=0, reduce="amax")
    return %8
"""


@pytest.mark.parametrize("deterministic", [False, True])
def test_sums_in_memory_have_one_order_if_asked_to(deterministic: bool, tmp_path: Path) -> None:
    """As in eager under `torch.use_deterministic_algorithms`; atomic additions have no fixed order. Maxima of floats
    have no atomic operation: they are always ATen's.
    """
    plan = plan_of(ADDED_AT, tmp_path, Target(deterministic=deterministic))
    assert any("tl.atomic_add" in kernel.source for kernel in plan.kernels) != deterministic
    called = [step.target for step in plan.steps if isinstance(step, AtenStep)]
    sums = ["aten.index_put.default", "aten.scatter_add.default"] if deterministic else []
    assert called == [*sums, "aten.scatter_reduce.two"]
