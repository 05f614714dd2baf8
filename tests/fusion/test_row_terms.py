"""Sums over rows on a GPU: their terms are made where the rows are, and short sums share a launch."""

from __future__ import annotations

from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.passes.materialise_row_terms import MaterialiseRowTerms
from kiln.loops.program.text import program_text
from kiln.support.target import Target
from tests.fusion.check import scheduled
from tests.loop_ir.parse import parse_program

GPU = Target(device="cuda", capability=(9, 0), multiprocessors=132)

LOSS = """
loops loss
    x: bf16[32768, 4096 @cuda:0] = input 0
    target: i64[32768 @cuda:0] = input 1
    total: f32[32768 @cuda:0] = reduction sum over (i1: 4096) keeping (i0: 32768): exp(convert(load x[i0, i1], f32))
    loss: f32[@cuda:0] = reduction sum over (i0: 32768) keeping (): log(load total[i0])
    count: f32[@cuda:0] = reduction sum over (i0: 32768) keeping (): convert(ne(load target[i0], i64(-100)), f32)
    return loss, count
"""


def launches(text: str) -> list[KernelLaunch]:
    return [step for step in scheduled(text, GPU).steps if isinstance(step, KernelLaunch)]


def test_terms_are_a_node_of_their_own() -> None:
    program = parse_program("""
loops loss
    x: f32[64, 100] = input 0
    y: f32[64] = input 1
    total: f32[64] = reduction sum over (i1: 100) keeping (i0: 64): load x[i0, i1]
    loss: f32[] = reduction sum over (i0: 64) keeping (): sub(load total[i0], load y[i0])
    return loss
""")
    assert program_text(MaterialiseRowTerms().run(program, GPU)[0]) == program_text(
        parse_program("""
loops loss
    x: f32[64, 100] = input 0
    y: f32[64] = input 1
    total: f32[64] = reduction sum over (i1: 100) keeping (i0: 64): load x[i0, i1]
    loss_terms: f32[64] = pointwise (i0: 64): sub(load total[i0], load y[i0])
    loss: f32[] = reduction sum over (i0: 64) keeping (): load loss_terms[i0]
    return loss
""")
    )


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
    """The rows with the terms; parts of both sums; the sums."""
    rows, parts, whole = launches(LOSS)
    assert [one.kernel.units[0].size for one in (rows, parts)] == [32768, 8] and not whole.kernel.units
    assert len(parts.kernel.writes) == len(whole.kernel.writes) == 2


def test_large_sums_do_not_wait_for_each_other() -> None:
    large = LOSS.replace("32768", str(1 << 22)).replace("4096", "64")
    _, parts, _, more_parts, _ = launches(large)
    assert [len(one.kernel.writes) for one in (parts, more_parts)] == [1, 1]
