"""Passes over loop programs: text before and after, and equal values; a loss on the GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.interpret import run_program
from kiln.loops.program.passes.materialise_row_terms import MaterialiseRowTerms
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.loops.program.passes.recompute_at_gather import RecomputeAtGather
from kiln.loops.program.passes.sink_column_sums import SinkColumnSums
from kiln.loops.program.text import program_text
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.support.target import Target
from tests.fusion.check import TARGET, arguments, scheduled
from tests.fusion.programs import PROGRAMS
from tests.loop_ir.parse import parse_program

GPU = Target(device="cuda", capability=(9, 0), multiprocessors=132)

LOSS = """
loops loss
    x: bf16[65536, 4096 @cuda:0] = input 0
    target: i64[65536 @cuda:0] = input 1
    total: f32[65536 @cuda:0] = reduction sum over (i1: 4096) keeping (i0: 65536): exp(convert(load x[i0, i1], f32))
    loss: f32[@cuda:0] = reduction sum over (i0: 65536) keeping (): log(load total[i0])
    count: f32[@cuda:0] = reduction sum over (i0: 65536) keeping (): convert(ne(load target[i0], i64(-100)), f32)
    return loss, count
"""


COLUMN_FIRST = """
loops column_first
    x: f32[64, 32] = input 0
    dw: f32[32] = reduction sum over (i0: 64) keeping (i1: 32): load x[i0, i1]
    half: f32[32] = pointwise (i0: 32): mul(load dw[i0], f32(0.5))
    s: f32[64] = reduction sum over (i1: 32) keeping (i0: 64): load x[i0, i1]
    dx: f32[64, 32] = pointwise (i0: 64, i1: 32): sub(load x[i0, i1], load s[i0])
    return dx, half
"""
ROW_TERMS = """
loops row_terms
    x: f32[64, 100] = input 0
    y: f32[64] = input 1
    total: f32[64] = reduction sum over (i1: 100) keeping (i0: 64): load x[i0, i1]
    loss: f32[] = reduction sum over (i0: 64) keeping (): sub(load total[i0], load y[i0])
    return loss
"""
CASES = {
    "recompute-at-gather": (RecomputeAtGather(), PROGRAMS["picked"], {"s0": 3}),
    "materialise-row-terms": (MaterialiseRowTerms(), ROW_TERMS, {}),
    "sink-column-sums": (SinkColumnSums(), COLUMN_FIRST, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_text_and_values(name: str, golden: Callable[..., None]) -> None:
    rewrite, text, sizes = CASES[name]
    program = parse_program(text)
    changed, changes = rewrite.run(program, GPU)
    verify_program(changed)
    golden(f"{program_text(program)}\n\n=> {changes} changes\n\n{program_text(changed)}")
    given = arguments(program, sizes)
    for actual, expected in zip(run_program(changed, given), run_program(program, given), strict=True):
        torch.testing.assert_close(actual, expected)


def test_which_passes_run() -> None:
    """Rows stay in a CPU's cache, so terms and column sums are not materialised."""
    for text in (ROW_TERMS, COLUMN_FIRST):
        program = parse_program(text)
        assert run_program_passes(program, TARGET, EventSink()) == program
        assert run_program_passes(program, GPU, EventSink()) != program


def launches(text: str) -> list[KernelLaunch]:
    return [step for step in scheduled(text, GPU).steps if isinstance(step, KernelLaunch)]


def test_sums_of_other_things_stay() -> None:
    """One number per row, short rows, and sums over more than the rows."""
    program = parse_program("""
loops other
    x: f32[64, 100] = input 0
    y: f32[64] = input 1
    short: f32[64] = reduction sum over (i1: 4) keeping (i0: 64): load x[i0, i1]
    total: f32[64] = reduction sum over (i1: 100) keeping (i0: 64): load x[i0, i1]
    all: f32[] = reduction sum over (i0: 64) keeping (): load total[i0]
    few: f32[] = reduction sum over (i0: 64) keeping (): sub(load short[i0], load y[i0])
    centred: f32[] = reduction sum over (i0: 64, i1: 100) keeping (): sub(load x[i0, i1], load total[i0])
    return all, few, centred
""")
    assert MaterialiseRowTerms().run(program, GPU)[0] == program


def test_a_loss_is_three_kernels() -> None:
    """Row terms; partial sums; sums."""
    rows, parts, whole = launches(LOSS)
    assert [item.kernel.units[0].size for item in (rows, parts)] == [65536, 16] and not whole.kernel.units
    assert len(parts.kernel.writes) == len(whole.kernel.writes) == 2


def test_large_sums_do_not_wait_for_each_other() -> None:
    """Only their parts do, which are short."""
    large = LOSS.replace("65536", str(1 << 22)).replace("4096", "64")
    _, parts, more_parts, _ = launches(large)
    assert [len(item.kernel.writes) for item in (parts, more_parts)] == [1, 1]
