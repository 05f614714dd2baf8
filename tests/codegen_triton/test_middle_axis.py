"""Reductions over a middle axis: full blocks whatever the sizes, and the values of the loop interpreter."""

from __future__ import annotations

import pytest

from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.kernel.passes.choose_tiles import ROW_BLOCK, choose_tiles
from kiln.loops.kernel.tiling import Tiling, block_points
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.support.events import EventSink
from kiln.support.target import cuda_gpu
from tests.codegen_triton.check import Runner, assert_same_values
from tests.loop_ir.parse import parse_program

H100 = cuda_gpu((9, 0), 132)


def middle(op: str, outer: int, length: int, inner: int, dtype: str = "f32", device: str = "") -> str:
    result = "i64" if op.startswith("arg") else dtype
    return f"""
        loops middle
            x: {dtype}[{outer}, {length}, {inner}{device}] = input 0
            y: {result}[{outer}, {inner}{device}] = reduction {op} over (i2: {length}) keeping (i0: {outer}, i1: {inner}): load x[i0, i2, i1]
            return y
    """  # noqa: E501


def tilings(text: str) -> list[Tiling]:
    program = run_program_passes(parse_program(text), H100, EventSink())
    steps = schedule(program, H100, EventSink()).steps
    return [choose_tiles(step.kernel, H100) for step in steps if isinstance(step, KernelLaunch)]


@pytest.mark.parametrize("op", ["sum", "amax", "argmin"])
@pytest.mark.parametrize(
    ("outer", "length", "inner"),
    [(40, 4, 7), (9, 2, 96), (3, 3, 3), pytest.param(2, 600, 5, marks=pytest.mark.slow), (33, 17, 1)],
)
def test_values(runner: Runner, op: str, outer: int, length: int, inner: int) -> None:
    assert_same_values(runner, middle(op, outer, length, inner))


@pytest.mark.parametrize("op", ["sum", "argmax"])
@pytest.mark.parametrize(
    ("outer", "length", "inner"),
    [(4096, 2, 4096), (1_000_000, 4, 7), (64, 16, 4096), (64, 4096, 1024), (8, 65536, 16), (100_000, 20, 10)],
)
def test_blocks_are_full(op: str, outer: int, length: int, inner: int) -> None:
    """A program of few elements costs more to start than its memory takes."""
    first, *_ = tilings(middle(op, outer, length, inner, device=" @cuda:0"))
    assert block_points(first.dims) >= ROW_BLOCK // 2


@pytest.mark.parametrize(("dtype", "warps"), [("f32", 4), ("bf16", 2)])
def test_columns_held_whole_have_few_warps(dtype: str, warps: int) -> None:
    """Each warp adds a partial result per column, in shared memory."""
    (tiling,) = tilings(middle("sum", 4096, 64, 1024, dtype, " @cuda:0"))
    assert tiling.warps == warps


@pytest.mark.parametrize("op", ["sum", "amin", "argmax"])
@pytest.mark.parametrize(("outer", "length", "inner"), [(8, 65536, 16), (1, 1 << 24, 1), (1, 1 << 20, 64)])
def test_all_multiprocessors_work(op: str, outer: int, length: int, inner: int) -> None:
    """Long reductions to few results are cut into parts."""
    first, *_ = tilings(middle(op, outer, length, inner, device=" @cuda:0"))
    programs = 1
    for dim in first.dims:
        programs *= -(-int(dim.size) // dim.block) if dim.unit else 1
    for axis in first.numbers:
        programs *= int(axis.size)
    assert programs >= 132
