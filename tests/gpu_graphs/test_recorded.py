"""Graphs that were recorded on a GPU machine (`tools/record_graphs.py`), from graph to kernels without one.

Every graph becomes a plan whose kernels are Triton's; of some the kernels run in Triton's interpreter against the loop
interpreter, and all become cubins.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kiln.build.triton_compile import compile_source
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.verify import verify
from kiln.graph.passes import run_passes
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch, distinct_kernels
from kiln.loops.kernel.text import kernel_text
from kiln.loops.lowering import lower
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan
from kiln.plan.plan import Plan
from kiln.plan.steps import LaunchStep
from kiln.plan.verify import verify_plan
from kiln.runtime.cache.store import DiskStore
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target
from kiln.symbolic import Symbol, evaluate
from tests.codegen_triton.check import GPU, Runner, check_parsed
from tests.codegen_triton.conftest import interpreter, runner
from tests.loop_ir.parse import parse_kernel

__all__ = ["interpreter", "runner"]

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.txt"))
TEXT_MODELS = ("bert-base", "gpt2", "llama-16x1024", "mobilebert", "t5-small")
NAMES = [path.stem for path in RECORDED]
INTERPRETED = [name for name in NAMES if name.startswith(TEXT_MODELS)]
LARGEST = 1 << 16
"""The most elements in the tensors of a kernel that is interpreted."""


def graph_of(name: str) -> Graph:
    path = next(path for path in RECORDED if path.stem == name)
    graph = parse_graph(path.read_text())
    verify(graph, name)
    return graph


def plan_of(name: str, folder: Path) -> Plan:
    host = Target(vector_bytes=32, threads=2)
    return graph_to_plan(
        graph_of(name), CompileContext(Options(), host, host, EventSink(), Dump(None), DiskStore(str(folder)))
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_of_triton_kernels(name: str, tmp_path: Path) -> None:
    plan = plan_of(name, tmp_path)
    verify_plan(plan)
    assert {kernel.language for kernel in plan.kernels} == {"triton"}
    launches = [step for step in plan.steps if isinstance(step, LaunchStep)]
    assert launches
    assert all(1 <= len(step.grid) <= 3 for step in launches)


def cases(name: str) -> list[tuple[KernelIR, dict[str, int]]]:
    """The distinct kernels, on the CPU, with the sizes of the first row of their first launch."""
    graph = run_passes(graph_of(name), EventSink())
    loops = run_program_passes(lower(graph, GPU, EventSink()), GPU, EventSink())
    program = schedule(loops, GPU, EventSink())
    found = []
    for kernel in distinct_kernels(program):
        launch = next(step for step in program.steps if isinstance(step, KernelLaunch) and step.kernel is kernel)
        row = next(launch.each_row())
        sizes = {
            size.name: evaluate(value, {})
            for size, value in zip(kernel.ints, row.ints, strict=True)
            if isinstance(size, Symbol)
        }
        text = kernel_text(kernel).replace(" @cuda:0", "").replace("@cuda:0", "")
        found.append((parse_kernel(text), sizes))
    return found


def values_for(kernel: KernelIR, sizes: dict[str, int]) -> dict[str, torch.Tensor] | None:
    """Small positive numbers; None if a tensor is too large to interpret or has gaps in memory."""
    generator = torch.Generator().manual_seed(0)
    symbols = {item: sizes[item.name] for item in kernel.ints if isinstance(item, Symbol)}
    made = {}
    for param in kernel.params:
        shape = [evaluate(size, symbols) for size in param.spec.sizes]
        strides = [evaluate(stride, symbols) for stride in param.spec.strides]
        dtype = param.spec.dtype
        tensor = torch.empty_strided(shape, strides, dtype=dtype)
        if tensor.numel() > LARGEST or tensor.untyped_storage().nbytes() != tensor.numel() * dtype.itemsize:
            return None
        low, high = (0, 2) if not dtype.is_floating_point else (1, 9)
        drawn = torch.randint(low, high, shape, generator=generator)
        made[param.name] = tensor.copy_(drawn / 8 if dtype.is_floating_point else drawn)
    return made


@pytest.mark.parametrize("name", INTERPRETED)
def test_kernels_are_interpreted(name: str, runner: Runner) -> None:
    done = 0
    for kernel, sizes in cases(name):
        tensors = values_for(kernel, sizes)
        if tensors is not None:
            half = any(param.spec.dtype in (torch.bfloat16, torch.float16) for param in kernel.params)
            check_parsed(runner, kernel, tensors, sizes, 2e-2 if half else 1e-4)
            done += 1
    assert done


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_become_cubins(name: str, capability: int, tmp_path: Path) -> None:
    for kernel in plan_of(name, tmp_path).kernels:
        assert compile_source(kernel.source, kernel.symbol, {**dict(kernel.meta), "capability": capability})["cubin"]
