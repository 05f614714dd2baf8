"""Padded matrix products: by text, against the interpreter, what they cost, and their plans on the null device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType

import pytest
import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes import GRAPH_PASSES, run_passes
from kiln.graph.passes.align_costs import Rates
from kiln.graph.passes.align_products import AlignProducts
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.manager import PassContext
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.text import kernel_program_text
from kiln.loops.lowering import lower
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.native import _executor
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan, repeated_layers_to_plan, run_stages
from kiln.plan.plan import Plan
from kiln.plan.steps import LaunchStep
from kiln.plan.text import plan_text
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.executor import make_executor
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target
from kiln.symbolic import ShapeEnv, Symbol
from tests.codegen_triton.check import GPU
from tests.gpu_graphs.test_null_device import cpu_attention, inputs_of
from tests.gpu_graphs.test_recorded import graph_of as recorded
from tests.gpu_graphs.test_values import run_alone
from tests.graph.passes.graphs import on_cpu, on_gpu
from tests.graph.passes.graphs import same_values as same_values_of
from tests.runtime.test_null_device import fake_libraries, null_device

__all__ = ["cpu_attention", "null_device"]

ALWAYS = AlignProducts(rates=Rates(odd=1.0, even=1.0))
"""Everything is worth aligning."""
NO_SYMBOLS: Mapping[Symbol, int] = MappingProxyType({})
PASSES = tuple([ALWAYS if step.name == ALWAYS.name else step for step in GRAPH_PASSES])


def body(graph: Graph) -> list[str]:
    return [line.strip() for line in graph_text(on_cpu(graph)).split("\n")[1:]]


def check(before: str, after: str, env: ShapeEnv | None = None) -> None:
    """`before` and `after` leave the device out; the values and the strides of outputs stay, and no guard is added."""
    graph, context = on_gpu(before), PassContext(GuardFreeOracle(env))
    changed, count = ALWAYS.run(graph, context)
    verify(changed, ALWAYS.name)
    changed, _ = DeadCode().run(changed, context)
    assert graph_text(on_cpu(changed)) == dedent(after).strip()
    for number in (1, 5, 16):
        same_values(graph, changed, {} if env is None else dict.fromkeys(env.symbols(), number))
    assert count
    assert env is None or not env.guards


def same_values(before: Graph, after: Graph, symbols: Mapping[Symbol, int] = NO_SYMBOLS) -> None:
    with torch.backends.mkldnn.flags(enabled=False):  # some machines have no bf16 in it
        same_values_of(on_cpu(before), on_cpu(after), tolerance=0.02, symbols=symbols)


def unchanged(graph: Graph, step: AlignProducts = ALWAYS, env: ShapeEnv | None = None) -> bool:
    return step.run(graph, PassContext(GuardFreeOracle(env))) == (graph, 0)


def env_of(**hints: int) -> ShapeEnv:
    env = ShapeEnv()
    for name, hint in hints.items():
        env.create_symbol(hint, name=name)
    return env


# By text.


def test_columns() -> None:
    check(
        """
        graph(%0: bf16[16, 8] "x", %1: bf16[11, 8] "w"):
            %2: bf16[8, 11 | 1, 8] = permute(%1, dims=(1, 0))
            %3: bf16[16, 11] = aten.mm.default(%0, %2)
            return %3
        """,
        """
        graph(%0: bf16[16, 8] "x", %1: bf16[11, 8] "w"):
            %2: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %3: bf16[16, 8] = pad(%1, %2, low=(0, 0), high=(5, 0))
            %4: bf16[8, 16 | 1, 8] = permute(%3, dims=(1, 0))
            %5: bf16[16, 16] = aten.mm.default(%0, %4)
            %6: bf16[16, 11 | 16, 1] = slice(%5, axis=1, start=0, stop=11, step=1)
            %7: bf16[16, 11] = clone(%6, strides=(11, 1))
            return %7
        """,
    )


def test_the_backward_pads_each_operand_once_and_slices_rows_without_a_copy() -> None:
    check(
        """
        graph(%0: bf16[16, 11] "t", %1: bf16[11, 8] "w", %2: bf16[16, 8] "x"):
            %3: bf16[16, 11] = neg(%0)
            %4: bf16[16, 8] = aten.mm.default(%3, %1)
            %5: bf16[11, 16 | 1, 11] = permute(%3, dims=(1, 0))
            %6: bf16[11, 8] = aten.mm.default(%5, %2)
            return %4, %6
        """,
        """
        graph(%0: bf16[16, 11] "t", %1: bf16[11, 8] "w", %2: bf16[16, 8] "x"):
            %3: bf16[16, 11] = neg(%0)
            %4: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %5: bf16[16, 5] = full(%4, sizes=(16, 5))
            %6: bf16[16, 16] = cat(%3, %5, axis=1)
            %7: bf16[16, 8] = pad(%1, %4, low=(0, 0), high=(5, 0))
            %8: bf16[16, 8] = aten.mm.default(%6, %7)
            %9: bf16[16, 16 | 1, 16] = permute(%6, dims=(1, 0))
            %10: bf16[16, 8] = aten.mm.default(%9, %2)
            %11: bf16[11, 8] = slice(%10, axis=0, start=0, stop=11, step=1)
            return %8, %11
        """,
    )


def test_a_value_with_rows_behind_it_is_the_first_part_for_all_readers() -> None:
    check(
        """
        graph(%0: f32[11, 8] "w", %1: bf16[16, 8] "x"):
            %2: bf16[11, 8] = convert(%0, dtype=bf16)
            %3: bf16[8, 11 | 1, 8] = permute(%2, dims=(1, 0))
            %4: bf16[16, 11] = aten.mm.default(%1, %3)
            %5: f32[16, 11] = convert(%4, dtype=f32)
            return %5, %2
        """,
        """
        graph(%0: f32[11, 8] "w", %1: bf16[16, 8] "x"):
            %2: bf16[11, 8] = convert(%0, dtype=bf16)
            %3: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %4: bf16[5, 8] = full(%3, sizes=(5, 8))
            %5: bf16[16, 8] = cat(%2, %4, axis=0)
            %6: bf16[11, 8] = slice(%5, axis=0, start=0, stop=11, step=1)
            %7: bf16[8, 16 | 1, 8] = permute(%5, dims=(1, 0))
            %8: bf16[16, 16] = aten.mm.default(%1, %7)
            %9: bf16[16, 11 | 16, 1] = slice(%8, axis=1, start=0, stop=11, step=1)
            %10: bf16[16, 11] = clone(%9, strides=(11, 1))
            %11: f32[16, 11] = convert(%10, dtype=f32)
            return %11, %6
        """,
    )


PADDED_AND_SUMMED = """
graph(%0: bf16[16, 11] "t", %1: bf16[11, 8] "w"):
    %2: bf16[16, 11] = neg(%0)
    %3: bf16[16, 8] = aten.mm.default(%2, %1)
    %4: bf16[{sums}] = sum(%2, axes=({axis},))
    return %3, %4
"""


def test_sums_over_the_rows_of_a_padded_value_read_its_part() -> None:
    """No loop over a row can compute the gradient of a bias along: it would be stored twice."""
    check(
        PADDED_AND_SUMMED.format(sums=11, axis=0),
        """
        graph(%0: bf16[16, 11] "t", %1: bf16[11, 8] "w"):
            %2: bf16[16, 11] = neg(%0)
            %3: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %4: bf16[16, 5] = full(%3, sizes=(16, 5))
            %5: bf16[16, 16] = cat(%2, %4, axis=1)
            %6: bf16[16, 11 | 16, 1] = slice(%5, axis=1, start=0, stop=11, step=1)
            %7: bf16[16, 8] = pad(%1, %3, low=(0, 0), high=(5, 0))
            %8: bf16[16, 8] = aten.mm.default(%5, %7)
            %9: bf16[11] = sum(%6, axes=(0,))
            return %8, %9
        """,
    )


def test_sums_of_rows_are_computed_along_with_the_value_that_is_padded() -> None:
    check(
        PADDED_AND_SUMMED.format(sums=16, axis=1),
        """
        graph(%0: bf16[16, 11] "t", %1: bf16[11, 8] "w"):
            %2: bf16[16, 11] = neg(%0)
            %3: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %4: bf16[16, 5] = full(%3, sizes=(16, 5))
            %5: bf16[16, 16] = cat(%2, %4, axis=1)
            %6: bf16[16, 8] = pad(%1, %3, low=(0, 0), high=(5, 0))
            %7: bf16[16, 8] = aten.mm.default(%5, %6)
            %8: bf16[16] = sum(%2, axes=(1,))
            return %7, %8
        """,
    )


def test_bias() -> None:
    check(
        """
        graph(%0: bf16[16, 8] "x", %1: bf16[8, 11] "w", %2: bf16[11] "b"):
            %3: bf16[16, 11] = aten.addmm.default(%2, %0, %1)
            return %3
        """,
        """
        graph(%0: bf16[16, 8] "x", %1: bf16[8, 11] "w", %2: bf16[11] "b"):
            %3: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %4: bf16[16] = pad(%2, %3, low=(0,), high=(5,))
            %5: bf16[8, 16] = pad(%1, %3, low=(0, 0), high=(0, 5))
            %6: bf16[16, 16] = aten.addmm.default(%4, %0, %5)
            %7: bf16[16, 11 | 16, 1] = slice(%6, axis=1, start=0, stop=11, step=1)
            %8: bf16[16, 11] = clone(%7, strides=(11, 1))
            return %8
        """,
    )


def test_rows_apart_by_an_odd_distance_are_copied() -> None:
    check(
        """
        graph(%0: bf16[16, 8 | 11, 1] "x", %1: bf16[8, 24] "w"):
            %2: bf16[16, 24] = aten.mm.default(%0, %1)
            return %2
        """,
        """
        graph(%0: bf16[16, 8 | 11, 1] "x", %1: bf16[8, 24] "w"):
            %2: bf16[16, 8] = clone(%0, strides=None)
            %3: bf16[16, 24] = aten.mm.default(%2, %1)
            return %3
        """,
    )


LEFT, RIGHT = '%0: f16[3, 9, 11] "x"', '%1: f16[3, 11, 13] "y"'
PRODUCTS = {
    "rows first": ('%0: f16[9, 11 | 1, 9] "x", %1: f16[11, 13 | 1, 11] "y"', "mm", "%2: f16[9, 13]", "%0, %1"),
    "batches": (f"{LEFT}, {RIGHT}", "bmm", "%2: f16[3, 9, 13]", "%0, %1"),
    "batches, rows first": (f'%0: f16[3, 9, 11 | 99, 1, 9] "x", {RIGHT}', "bmm", "%2: f16[3, 9, 13]", "%0, %1"),
    "an addend": (f'{LEFT}, {RIGHT}, %2: f16[3, 1, 13] "z"', "baddbmm", "%3: f16[3, 9, 13]", "%2, %0, %1"),
    "a whole addend": ('%0: f16[9, 11] "x", %1: f16[11, 13] "y", %2: f16[9, 13] "z"', "addmm", "%3: f16[9, 13]",
                       "%2, %0, %1, beta=0.5, alpha=2.0"),
    "one of both": ('%0: f16[11, 11] "x"', "mm", "%1: f16[11, 11]", "%0, %0"),
    "a vector": ('%0: f16[1, 11] "x", %1: f16[11, 13] "y"', "mm", "%2: f16[1, 13]", "%0, %1"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_values(name: str) -> None:
    head, op, result, args = PRODUCTS[name]
    place = result.partition(":")[0]
    graph = on_gpu(f"""
        graph({head}):
            {result} = aten.{op}.default({args})
            return {place}
    """)
    changed, count = ALWAYS.run(graph, PassContext(GuardFreeOracle()))
    verify(changed, name)
    assert count == 1
    same_values(graph, changed)
    assert unchanged(changed)


def test_infinities_stay_where_they_are() -> None:
    graph = on_gpu("""
        graph(%0: bf16[16, 11] "x", %1: bf16[11, 8] "w"):
            %2: bf16[16, 8] = aten.mm.default(%0, %1)
            return %2
    """)
    changed, _ = ALWAYS.run(graph, PassContext(GuardFreeOracle()))
    left, right = torch.ones(16, 11, dtype=torch.bfloat16), torch.ones(11, 8, dtype=torch.bfloat16)
    left[3, 4] = torch.inf
    right[10, 2] = -torch.inf
    with torch.backends.mkldnn.flags(enabled=False):
        pairs = zip(*[interpret(on_cpu(each), [left, right]).outputs for each in (graph, changed)], strict=True)
        assert all(torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) for a, b in pairs)


@pytest.mark.parametrize(("dtype", "columns"), [("f32", "11"), ("bf16", "16"), ("f64", "11")])
def test_left_alone(dtype: str, columns: str) -> None:
    head = f'%0: {dtype}[16, 8] "x", %1: {dtype}[8, {columns}] "w"'
    assert unchanged(
        on_gpu(f"""
        graph({head}):
            %2: {dtype}[16, {columns}] = aten.mm.default(%0, %1)
            return %2
    """)
    )


# Symbols.


def test_symbolic_rows() -> None:
    check(
        """
        graph(%0: bf16[s0, s1, 8] "x", %1: bf16[11, 8] "w"):
            %2: bf16[8, 11 | 1, 8] = permute(%1, dims=(1, 0))
            %3: bf16[s0*s1, 8] = view(%0, sizes=(s0*s1, 8))
            %4: bf16[s0*s1, 11] = aten.mm.default(%3, %2)
            %5: bf16[s0, s1, 11] = view(%4, sizes=(s0, s1, 11))
            return %5
        """,
        """
        graph(%0: bf16[s0, s1, 8] "x", %1: bf16[11, 8] "w"):
            %2: bf16[s0*s1, 8] = view(%0, sizes=(s0*s1, 8))
            %3: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %4: bf16[16, 8] = pad(%1, %3, low=(0, 0), high=(5, 0))
            %5: bf16[8, 16 | 1, 8] = permute(%4, dims=(1, 0))
            %6: bf16[s0*s1, 16] = aten.mm.default(%2, %5)
            %7: bf16[s0*s1, 11 | 16, 1] = slice(%6, axis=1, start=0, stop=11, step=1)
            %8: bf16[s0*s1, 11] = clone(%7, strides=(11, 1))
            %9: bf16[s0, s1, 11] = view(%8, sizes=(s0, s1, 11))
            return %9
        """,
        env=env_of(s0=4, s1=16),
    )


def test_the_backward_of_symbolic_rows() -> None:
    """The contracted rows are contiguous in neither factor, so any number works."""
    check(
        """
        graph(%0: bf16[s0, 11] "t", %1: bf16[11, 8] "w", %2: bf16[s0, 8] "x"):
            %3: bf16[s0, 11] = neg(%0)
            %4: bf16[s0, 8] = aten.mm.default(%3, %1)
            %5: bf16[11, s0 | 1, 11] = permute(%3, dims=(1, 0))
            %6: bf16[11, 8] = aten.mm.default(%5, %2)
            return %4, %6
        """,
        """
        graph(%0: bf16[s0, 11] "t", %1: bf16[11, 8] "w", %2: bf16[s0, 8] "x"):
            %3: bf16[s0, 11] = neg(%0)
            %4: bf16[] = constant(value=0.0, dtype=bf16, device=cpu)
            %5: bf16[s0, 5] = full(%4, sizes=(s0, 5))
            %6: bf16[s0, 16] = cat(%3, %5, axis=1)
            %7: bf16[16, 8] = pad(%1, %4, low=(0, 0), high=(5, 0))
            %8: bf16[s0, 8] = aten.mm.default(%6, %7)
            %9: bf16[16, s0 | 1, 16] = permute(%6, dims=(1, 0))
            %10: bf16[16, 8] = aten.mm.default(%9, %2)
            %11: bf16[11, 8] = slice(%10, axis=0, start=0, stop=11, step=1)
            return %8, %11
        """,
        env=env_of(s0=64),
    )


SYMBOLIC = {
    "batches": ('%0: f16[s0, 9, 11] "x", %1: f16[s0, 11, 13] "y"', "bmm", "%2: f16[s0, 9, 13]", "%0, %1"),
    "rows of batches": ('%0: f16[3, s0, 11] "x", %1: f16[3, 11, 13] "y"', "bmm", "%2: f16[3, s0, 13]", "%0, %1"),
    "a whole addend": ('%0: f16[s0, 11] "x", %1: f16[11, 13] "y", %2: f16[s0, 13] "z"', "addmm", "%3: f16[s0, 13]",
                       "%2, %0, %1, beta=0.5, alpha=2.0"),
    "a multiple": ('%0: f16[9, 16*s0] "x", %1: f16[16*s0, 13] "y", %2: f16[s0] "z"', "mm", "%3: f16[9, 13]", "%0, %1"),
}  # fmt: skip


@pytest.mark.parametrize("name", SYMBOLIC)
def test_values_of_symbolic_sizes(name: str) -> None:
    head, op, result, args = SYMBOLIC[name]
    env = env_of(s0=64)
    graph = on_gpu(f"""
        graph({head}):
            {result} = aten.{op}.default({args})
            return {result.partition(":")[0]}
    """)
    changed, count = ALWAYS.run(graph, PassContext(GuardFreeOracle(env)))
    verify(changed, name)
    assert count == 1
    for number in (1, 2, 8):
        same_values(graph, changed, dict.fromkeys(env.symbols(), number))
    assert not env.guards


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("16, 8", "8, s0", "16, s0"),  # columns
        ("16, s0", "s0, 11", "16, 11"),  # contracted, and runs in the left factor
        ("s0, 16 | 1, s0", "16, 11", "s0, 11"),  # rows that run
        ("16, 8 | s0, 1", "8, 11", "16, 11"),  # rows apart by a symbol
    ],
)
def test_a_symbol_that_runs(left: str, right: str, result: str) -> None:
    graph = on_gpu(f"""
        graph(%0: bf16[{left}] "x", %1: bf16[{right}] "w"):
            %2: bf16[{result}] = aten.mm.default(%0, %1)
            return %2
    """)
    assert unchanged(graph, env=env_of(s0=32))


def test_symbols_cost_what_they_are_in_this_call() -> None:
    graph = head_of("s0", 768, 50257)
    env = env_of(s0=4096)
    assert not unchanged(graph, AlignProducts(), env)
    assert not env.guards
    assert unchanged(graph, AlignProducts(), env_of(s0=8))
    assert unchanged(graph, AlignProducts())


def test_a_size_that_data_decide_has_no_costs() -> None:
    env = ShapeEnv()
    env.create_unbacked()
    assert unchanged(head_of("u0", 768, 50257), env=env)


def test_not_on_the_cpu() -> None:
    graph = on_gpu("""
        graph(%0: bf16[16, 11] "x", %1: bf16[11, 8] "w"):
            %2: bf16[16, 8] = aten.mm.default(%0, %1)
            return %2
    """)
    assert unchanged(on_cpu(graph))


# Costs.


def head_of(tokens: int | str, width: int, words: int, end: str = "return %3") -> Graph:
    """The product of a language model's head, and `end`."""
    sized = end.format(tokens=tokens, words=words)
    return on_gpu(f"""
        graph(%0: bf16[{tokens}, {width}] "x", %1: bf16[{words}, {width}] "w"):
            %2: bf16[{width}, {words} | 1, {width}] = permute(%1, dims=(1, 0))
            %3: bf16[{tokens}, {words}] = aten.mm.default(%0, %2)
            {sized}
    """)


SUM = """
            %4: f32[{tokens}, {words}] = convert(%3, dtype=f32)
            %5: f32[{tokens}] = sum(%4, axes=(1,))
            return %5
"""


@pytest.mark.parametrize(
    ("sizes", "end", "pays"),
    [
        ((4096, 768, 50257), "return %3", True),  # 2.9 ms against 0.5, 0.05 and 0.24
        ((8192, 768, 30522), SUM, True),
        ((4096, 64, 50257), "return %3", False),  # 0.13 ms in memory alone
        ((4096, 64, 50257), SUM, True),
        ((8, 768, 50257), "return %3", False),  # the time of reading the weight
        ((512, 64, 1001), SUM, False),  # less than a launch
    ],
)
def test_where_it_pays(sizes: tuple[int, int, int], end: str, pays: bool) -> None:
    assert unchanged(head_of(*sizes, end), AlignProducts()) is not pays


def test_a_shared_padding_is_paid_for_together() -> None:
    """Of a matrix with two products either alone would not pay for the copy."""
    inputs = '%0: bf16[10000, 10001] "x", %1: bf16[10001, 64] "v", %2: bf16[10001, 64] "w"'
    both = on_gpu(f"""
        graph({inputs}):
            %3: bf16[10000, 64] = aten.mm.default(%0, %1)
            %4: bf16[10000, 64] = aten.mm.default(%0, %2)
            return %3, %4
    """)
    either = on_gpu(f"""
        graph({inputs}):
            %3: bf16[10000, 64] = aten.mm.default(%0, %1)
            return %3
    """)
    costs = AlignProducts(rates=Rates(aligned=700e12, odd=75e12, memory=3.5e12, least=10e-6))
    assert not unchanged(both, costs)
    assert unchanged(either, costs)


# Kernels and plans.


def scheduled(graph: Graph, env: ShapeEnv | None = None) -> str:
    loops = lower(run_passes(graph, EventSink(), env=env), GPU, EventSink(), env)
    program = schedule(run_program_passes(loops, GPU, EventSink()), GPU, EventSink())
    return kernel_program_text(program).replace(" @cuda:0", "")


def test_the_only_pass_over_the_logits_is_the_copy_that_is_returned() -> None:
    text = scheduled(head_of(4096, 768, 50257, SUM.replace("return", "return %3,")))
    launches = [line.strip().split("  #")[0] for line in text.split("\n") if line.strip().startswith("launch")]
    assert launches == ["launch pointwise(a1 -> b0)", "launch sum(b1 -> b2, b3)"]
    assert "return b2, b3" in text


def test_symbolic_logits_are_copied_once_as_well() -> None:
    env = env_of(s0=8, s1=512)
    graph = on_gpu("""
        graph(%0: bf16[s0, s1, 768] "x", %1: bf16[50257, 768] "w"):
            %2: bf16[768, 50257 | 1, 768] = permute(%1, dims=(1, 0))
            %3: bf16[s0*s1, 768] = view(%0, sizes=(s0*s1, 768))
            %4: bf16[s0*s1, 50257] = aten.mm.default(%3, %2)
            %5: bf16[s0, s1, 50257] = view(%4, sizes=(s0, s1, 50257))
            %6: f32[s0*s1, 50257] = convert(%4, dtype=f32)
            %7: f32[s0*s1] = sum(%6, axes=(1,))
            return %5, %7
    """)
    text = scheduled(graph, env)
    launches = [line.strip().split("  #")[0] for line in text.split("\n") if line.strip().startswith("launch")]
    assert launches == ["launch pointwise(a1 -> b0)", "launch sum(b1 -> b2, b3; s0, s1)"]
    assert "b1: bf16[s0*s1, 50264] = extern aten.mm.default" in text
    assert not env.guards


def test_a_tangent_is_made_padded() -> None:
    """One kernel makes the padded tangent and parts of the gradient of the bias, two more the zeros and its sum."""
    graph = on_gpu("""
        graph(%0: bf16[8192, 30522] "t", %1: bf16[8192, 30522] "y", %2: bf16[30522, 768] "w", %3: bf16[8192, 768] "x"):
            %4: bf16[8192, 30522] = mul(%0, %1)
            %5: bf16[8192, 768] = aten.mm.default(%4, %2)
            %6: bf16[30522, 8192 | 1, 30522] = permute(%4, dims=(1, 0))
            %7: bf16[30522, 768] = aten.mm.default(%6, %3)
            %8: f32[8192, 30522] = convert(%4, dtype=f32)
            %9: f32[30522] = sum(%8, axes=(0,))
            return %5, %7, %9
    """)
    text = scheduled(graph)
    written = [line.split("allocate ")[1] for line in text.split("\n") if "allocate" in line and "[8192, 305" in line]
    assert [line.split(": ")[1][:34] for line in written] == ["bf16[8192, 30522 | 30528, 1] in b1"]
    assert "(a0, a1 -> b2, b7_part)" in text


def context_in(folder: Path, env: ShapeEnv | None = None) -> CompileContext:
    host = Target(vector_bytes=32, threads=2)
    return CompileContext(Options(), host, host, EventSink(), Dump(None), DiskStore(str(folder)), env)


def plan_of(graph: Graph, folder: Path, env: ShapeEnv | None = None) -> Plan:
    return graph_to_plan(run_passes(graph, EventSink(), passes=PASSES, env=env), context_in(folder, env))


def test_equal_blocks_are_padded_alike(tmp_path: Path) -> None:
    """The plan of a few blocks, repeated, is the one that all together give."""
    layers = range(12)
    head = ", ".join(['%0: bf16[4096, 1024] "x"', *(f'%{1 + layer}: bf16[1024, 3001] "w{layer}"' for layer in layers)])
    lines, last = ["%13: bf16[4096, 1024] = tanh(%0)"], 13
    for layer in layers:
        a, b, c, d, e = (f"%{14 + 5 * layer + line}" for line in range(5))
        lines += [
            f"{a}: bf16[4096, 3001] = aten.mm.default(%{last}, %{1 + layer})",
            f"{b}: bf16[4096, 3001] = tanh({a})",
            f"{c}: bf16[3001, 1024 | 1, 3001] = permute(%{1 + layer}, dims=(1, 0))",
            f"{d}: bf16[4096, 1024] = aten.mm.default({b}, {c})",
            f"{e}: bf16[4096, 1024] = tanh({d})",
        ]
        last = 18 + 5 * layer
    graph = on_gpu("\n    ".join([f"graph({head}):", *lines, f"return %{last}"]))
    context = context_in(tmp_path)
    repeated = repeated_layers_to_plan(graph, context)
    assert repeated is not None
    assert plan_text(repeated) == plan_text(run_stages(graph, context)[-1])
    assert plan_text(repeated).count("[4096, 3008") >= 12


def aligned_plan(name: str, folder: Path) -> Plan:
    return plan_of(recorded(name), folder)


RECORDED = ["gpt2-infer", "gpt2-forward", "gpt2-backward", "bert-base-forward", "mobilebert-backward"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_values_of_recorded_models(name: str) -> None:
    run_alone(name, f"{aligned_plan.__module__}.{aligned_plan.__name__}")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_models_on_the_null_device(
    name: str,
    tmp_path: Path,
    null_device: Iterator[None],
    cpu_attention: Iterator[None],
) -> None:
    """Their vocabulary has 100 words; outputs, the saved ones included, stay as they are."""
    graph, plan = recorded(name), aligned_plan(name, tmp_path)
    outputs = run(plan)
    assert any("104" in str(step) for step in plan.steps)
    for output, found in zip(graph.outputs, outputs, strict=True):
        if isinstance(found, torch.Tensor):
            spec = output.value.tensor
            assert (tuple(found.shape), found.stride(), found.dtype) == (spec.sizes, spec.strides, spec.dtype)


def test_one_plan_for_symbolic_rows(tmp_path: Path, null_device: Iterator[None]) -> None:
    """The gradients of a head; their padded tangent is made in place."""
    env = env_of(s0=64)
    graph = on_gpu("""
        graph(%0: bf16[s0, 11] "t", %1: bf16[s0, 11] "y", %2: bf16[11, 8] "w", %3: bf16[s0, 8] "x"):
            %4: bf16[s0, 11] = mul(%0, %1)
            %5: bf16[s0, 8] = aten.mm.default(%4, %2)
            %6: bf16[11, s0 | 1, 11] = permute(%4, dims=(1, 0))
            %7: bf16[11, 8] = aten.mm.default(%6, %3)
            return %5, %7
    """)
    plan = plan_of(graph, tmp_path, env)
    assert not env.guards
    text = plan_text(plan).replace(" @cuda:0", "")
    assert "allocate bf16[s0, 16]" in text
    assert "as bf16[s0, 11 | 16, 1]" in text
    for number in (1, 7, 64):
        first, second = run(plan, {"s0": number})
        assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
        assert (first.shape, second.shape) == ((number, 8), (11, 8))


def run(plan: Plan, symbols: Mapping[str, int] = MappingProxyType({})) -> tuple[object, ...]:
    executor = make_executor(plan, fake_libraries(plan))
    with torch.backends.mkldnn.flags(enabled=False):
        found: tuple[object, ...] = executor(*inputs_of(plan, symbols))
    launches = sum(isinstance(step, LaunchStep) for step in plan.steps)
    lines = _executor.take_null_log().splitlines()
    assert sum(line.startswith("launch ") for line in lines) == launches
    assert not any("another pointer" in line for line in lines)
    return found
