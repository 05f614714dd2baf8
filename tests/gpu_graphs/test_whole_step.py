"""The update of an optimizer on a GPU, with its counts and learning rate on the CPU: by default, and with CUDA graphs.

Several parameters of different sizes; the kernels run in Triton's interpreter in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kiln.build.cpp_compile import start_compile
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan
from kiln.plan.plan import Plan
from kiln.plan.reference import PythonExecutor
from kiln.plan.steps import LaunchStep
from kiln.plan.text import plan_text
from kiln.plan.verify import verify_plan
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.cuda_graphs.facts import graph_facts
from kiln.runtime.cuda_graphs.host_part import HostFirst, HostPart, split_host_part
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target
from tests.runtime.test_triton_plans import Interpreter, on_cpu

SIZES = (32, 48, 7, 600)
UPDATE = """
    %{count_new}: f32[] = add(%{count}, %one)
    %{wide}: f64[] = convert(%{count_new}, dtype=f64)
    %{rate_new}: f64[] = div(%rate, %{wide})
    %{good}: b8[] = ge(%{rate_new}, %zero)
    %{checked}: () = assert(%{good}, message="the rate is negative")
    %{narrow}: f32[] = convert(%{rate_new}, dtype=f32)
    %{scaled}: f32[{size} @cuda:0] = mul(%{grad}, %{narrow})
    %{new}: f32[{size} @cuda:0] = sub(%{param}, %{scaled})
"""
NAMES = ("param", "grad", "count", "count_new", "wide", "rate_new", "good", "checked", "narrow", "scaled", "new")


def graph_of(sizes: tuple[int, ...] = SIZES) -> str:
    """p -= g * rate / count for parameters of these sizes."""
    numbers: dict[str, int] = {"rate": 0}
    inputs, lines, writes = ['%0: f64[] "rate"'], [], []
    for n, size in enumerate(sizes):
        for name, spec in (("param", f"f32[{size} @cuda:0]"), ("grad", f"f32[{size} @cuda:0]"), ("count", "f32[]")):
            numbers[f"{name}{n}"] = len(numbers)
            inputs.append(f'%{numbers[f"{name}{n}"]}: {spec} "{name}{n}"')
    numbers |= {"one": len(numbers), "zero": len(numbers) + 1}
    lines.append(f"    %{numbers['one']}: f32[] = constant(value=1.0, dtype=f32, device=cpu)")
    lines.append(f"    %{numbers['zero']}: f64[] = constant(value=0.0, dtype=f64, device=cpu)")
    for n, size in enumerate(sizes):
        own = {name: numbers.setdefault(f"{name}{n}", len(numbers)) for name in NAMES}
        text = UPDATE.strip("\n").replace("%rate,", "%0,").replace("%one", f"%{numbers['one']}")
        lines.append(text.replace("%zero", f"%{numbers['zero']}").format(**own, size=size))
        writes += [f"    write %{own['param']} <- %{own['new']}", f"    write %{own['count']} <- %{own['count_new']}"]
    return "\n".join([f"graph update({', '.join(inputs)}):", *lines, *writes, "    return"])


def plan_of(text: str, folder: Path, *, graphs: bool) -> Plan:
    host = Target(vector_bytes=32, threads=2, graphs=graphs)
    options = Options(cuda_graphs=graphs)
    context = CompileContext(options, host, host, EventSink(), Dump(None), DiskStore(str(folder)))
    plan = graph_to_plan(parse_graph(text), context)
    verify_plan(plan)
    return plan


def parts_of(plan: Plan) -> HostPart:
    parts = split_host_part(plan)
    assert parts is not None
    verify_plan(parts.host)
    verify_plan(parts.recorded)
    return parts


def without_symbols(plan: Plan) -> str:
    """The text of a plan; kernels are named after their contents, which other tests show."""
    names = {kernel.symbol: f"{kernel.language}{number}" for number, kernel in enumerate(plan.kernels)}
    text = plan_text(plan)
    for symbol, name in names.items():
        text = text.replace(symbol, name)
    return text


def test_text(golden: Callable[..., None], tmp_path: Path) -> None:
    """One launch on the CPU and one or two on the GPU; numbers by value without graphs, sent with them."""
    plain, staged = (plan_of(graph_of(), tmp_path, graphs=graphs) for graphs in (False, True))
    parts = parts_of(staged)
    golden("\n\n".join(map(without_symbols, (plain, parts.host, parts.recorded))))


def test_what_is_recorded_can_be(tmp_path: Path) -> None:
    plain, staged = (plan_of(graph_of(), tmp_path, graphs=graphs) for graphs in (False, True))
    assert "cpu" in graph_facts(plain).refusal
    recorded = parts_of(staged).recorded
    assert graph_facts(recorded).refusal == ""
    assert all(declared.spec is not None and declared.spec.device.type == "cuda" for declared in recorded.inputs)


def test_the_launches_of_many_parameters_are_few(tmp_path: Path) -> None:
    """A launch has 4,096 bytes of parameters; sizes that 16 divides have launches of their own."""
    plan = plan_of(graph_of(tuple(range(8, 308))), tmp_path, graphs=False)
    assert sum(isinstance(step, LaunchStep) for step in plan.steps) <= 6


@pytest.mark.parametrize("kept", ["result", "argument"])
def test_a_scalar_that_is_a_result_stays_on_the_cpu(kept: str, tmp_path: Path) -> None:
    text = graph_of((32,))
    number = 9 if kept == "result" else 0
    parts = parts_of(plan_of(text.replace("    return", f"    return %{number}"), tmp_path, graphs=True))
    assert parts.order.results == ((False, 0),)


SIZE_FROM_DATA = """\
graph rows(%0: b8[8 @cuda:0] "mask"):
    %1: i64[8 @cuda:0] = convert(%0, dtype=i64)
    %2: i64[ @cuda:0] = sum(%1, axes=(0,))
    %3: int(u0) = local_scalar(%2, kind="int", checks=())
    %4: i64[] = constant(value=u0, dtype=i64, device=cpu)
    %5: i64[] = full(%4, sizes=())
    return %5"""


def test_a_size_that_the_gpu_decides_is_read_before_the_cpu_works_with_it(tmp_path: Path) -> None:
    plan = plan_of(SIZE_FROM_DATA, tmp_path, graphs=True)
    assert "u0" in plan_text(plan) and split_host_part(plan) is None


WORKS_IN_WHAT_IS_SENT = """\
graph scaled(%0: f64[2] "rates", %1: f32[4 @cuda:0] "x"):
    %2: f32[2] = convert(%0, dtype=f32)
    %3: f32[2 @cuda:0] = aten._to_copy.default(%2, device=cuda:0)
    %4: f32[ @cuda:0] = sum(%1, axes=(0,))
    %5: f32[2 @cuda:0] = mul(%3, %4)
    return %5"""


@pytest.mark.parametrize("text", [WORKS_IN_WHAT_IS_SENT, WORKS_IN_WHAT_IS_SENT.replace("return %5", "return %3, %5")])
def test_what_is_sent_is_not_changed_and_does_not_leave_a_graph(text: str, tmp_path: Path) -> None:
    """The graph would read it from memory of its own."""
    assert split_host_part(plan_of(text, tmp_path, graphs=True)) is None


def interpreted_values(folder: str) -> None:
    """In the process that interprets: the plans against the graph."""
    text = graph_of()
    graph = parse_graph(text.replace(" @cuda:0", ""))
    for graphs in (False, True):
        plan = plan_of(text, Path(folder), graphs=graphs)
        libraries = start_compile(
            [kernel for kernel in plan.kernels if kernel.language == "cpp"], DiskStore(folder), EventSink(), 1
        ).wait()

        def executor(part: Plan, libraries: object = libraries) -> PythonExecutor:
            return PythonExecutor(on_cpu(part), libraries, (), Interpreter().launch)  # type: ignore[arg-type]

        parts = split_host_part(plan)
        assert (parts is not None) is graphs
        run: Callable[..., object] = executor(plan)
        if parts is not None:
            run = HostFirst(executor(parts.host), executor(parts.recorded), parts.order)
        given = [torch.tensor(0.5, dtype=torch.float64)]
        for size in SIZES:
            given += [torch.randn(size), torch.randn(size), torch.tensor(0.0)]
        expected = [value.clone() for value in given]
        for rate in (0.5, 0.25, 1.0):
            for values in (given, expected):
                values[0].fill_(rate)
            done = interpret(graph, [value.clone() for value in expected])
            for place, value in done.written:
                expected[place].copy_(value)
            run(*given)
            for value, other in zip(given, expected, strict=True):
                torch.testing.assert_close(value, other)
    print("equal")


@pytest.mark.slow  # imports Triton
def test_values_in_tritons_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    root = Path(__file__).parents[2]
    script = "import sys; from tests.gpu_graphs.test_whole_step import interpreted_values as run; run(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.stdout.strip() == "equal", done.stderr
