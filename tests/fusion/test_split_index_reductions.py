"""Index reductions in parts: the same index as of the whole, in one pass over memory."""

from __future__ import annotations

import math

import pytest
import torch

from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.interpret import run_program
from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.passes.split_index_reductions import SplitIndexReductions
from kiln.loops.program.verify import verify_program
from kiln.support.target import Target
from tests.fusion.check import scheduled
from tests.loop_ir.parse import parse_program

GPU = Target(device="cuda", capability=(9, 0), multiprocessors=4)
H100 = Target(device="cuda", capability=(9, 0), multiprocessors=132)

COLUMNS = """
loops columns
    x: {dtype}[2, {length}, 3{device}] = input 0
    at: i64[2, 3{device}] = reduction {op} over (i2: {length}) keeping (i0: 2, i1: 3): load x[i0, i2, i1]
    return at
"""
ROW = """
loops row
    x: {dtype}[{length}{device}] = input 0
    at: i64[{device}] = reduction {op} over (i0: {length}) keeping (): neg(load x[i0])
    return at
"""


def split(text: str, length: int, op: str, dtype: str = "f32", device: str = "") -> tuple[LoopProgram, LoopProgram]:
    program = parse_program(text.format(length=length, op=op, dtype=dtype, device=device))
    made, changes = SplitIndexReductions().run(program, GPU)
    verify_program(made)
    assert changes == 1
    return program, made


def values(kind: str, sizes: tuple[int, ...]) -> torch.Tensor:
    torch.manual_seed(0)
    made = torch.randint(-9, 9, sizes).float()
    if kind == "NaN":
        flat = made.view(-1)
        flat[flat.numel() // 2] = flat[flat.numel() // 3] = math.nan
    return torch.full(sizes, math.inf if kind == "infinite" else -math.inf) if "infinite" in kind else made


@pytest.mark.parametrize("kind", ["equals", "NaN", "infinite", "minus infinite"])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("length", [512, 509, 8192])
def test_columns(length: int, op: str, kind: str) -> None:
    program, made = split(COLUMNS, length, op)
    x = values(kind, (2, length, 3))
    assert torch.equal(run_program(made, [x])[0], run_program(program, [x])[0])


@pytest.mark.parametrize("kind", ["equals", "NaN", "infinite"])
@pytest.mark.parametrize("length", [20000, 16411])
def test_row(length: int, kind: str) -> None:
    program, made = split(ROW, length, "argmax")
    x = values(kind, (length,))
    assert torch.equal(run_program(made, [x])[0], run_program(program, [x])[0])


def test_integers_have_a_last_value_of_their_own() -> None:
    program, made = split(COLUMNS, 509, "argmin", dtype="i32")
    x = torch.full((2, 509, 3), torch.iinfo(torch.int32).max, dtype=torch.int32)
    assert torch.equal(run_program(made, [x])[0], run_program(program, [x])[0])


def test_one_pass_over_memory() -> None:
    """The best value and its index are found by one kernel, the index of the whole by a second."""
    program, _ = split(COLUMNS, 65536, "argmax", device=" @cuda:0")
    launches = [step for step in scheduled(program, H100).steps if isinstance(step, KernelLaunch)]
    assert ["x" in launch.args for launch in launches] == [True, False]


def test_enough_units_stay_whole() -> None:
    program = parse_program("""
        loops whole
            x: f32[64, 512, 64] = input 0
            at: i64[64, 64] = reduction argmax over (i2: 512) keeping (i0: 64, i1: 64): load x[i0, i2, i1]
            return at
    """)
    assert SplitIndexReductions().run(program, GPU)[1] == 0
