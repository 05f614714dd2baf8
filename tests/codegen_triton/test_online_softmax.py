"""Online softmax: maximum and sum of exponentials in one pass over long rows; text, and values against two passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kiln.build.triton_compile import compile_source
from kiln.loops.body.verify import InvalidLoops
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.interpret import run_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.passes import choose_tiles
from kiln.loops.kernel.passes.choose_tiles import ChooseTiles
from kiln.loops.kernel.passes.online_softmax import OnlineSoftmax
from kiln.loops.kernel.passes.pipeline import run_kernel_passes
from kiln.loops.kernel.text import kernel_text
from kiln.loops.kernel.verify import verify_kernel, verify_mapped_kernel
from kiln.loops.program.interpret import Memory
from kiln.support.events import EventSink
from tests.codegen_triton.check import GPU, Runner, check_kernel
from tests.codegen_triton.special_rows import special_rows
from tests.fusion.check import scheduled
from tests.fusion.programs import PROGRAMS
from tests.loop_ir.parse import parse_kernel

LOG_SOFTMAX = """
    kernel log_softmax(x: {dtype}[{rows}, {columns}] -> out: {dtype}[{rows}, {columns}]) units (i0: {rows})
        local top: f32
        local total: f32
        phase (i1: {columns}):
            top[] = amax over (i1): convert(load x[i0, i1], f32)
        phase (i1: {columns}):
            total[] = sum over (i1): exp(sub(convert(load x[i0, i1], f32), load top[]))
        phase (i1: {columns}):
            v0 = sub(sub(convert(load x[i0, i1], f32), load top[]), log(load total[]))
            out[i0, i1] = convert(v0, {dtype})
"""
LOG_SUM_EXP = """
    kernel log_sum_exp(x: {dtype}[{rows}, {columns}] -> out: f32[{rows}]) units (i0: {rows})
        local top: f32
        local total: f32
        phase (i1: {columns}):
            top[] = amax over (i1): mul(convert(load x[i0, i1], f32), f32(0.5))
        phase (i1: {columns}):
            total[] = sum over (i1): exp(sub(mul(convert(load x[i0, i1], f32), f32(0.5)), load top[]))
        phase ():
            out[i0] = add(load top[], log(load total[]))
"""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def filled(text: str, dtype: str = "bf16", rows: int = 64, columns: int = 50257) -> str:
    return text.format(dtype=dtype, rows=rows, columns=columns).replace("convert(v0, f32)", "v0")


def one_pass(text: str) -> KernelIR:
    kernel = parse_kernel(text)
    made = run_kernel_passes(kernel, GPU, EventSink(), passes=(ChooseTiles(), OnlineSoftmax()))
    verify_mapped_kernel(made)
    return made.kernel


def unchanged(text: str) -> bool:
    return one_pass(text) == parse_kernel(text)


# Kernels.


@pytest.mark.parametrize("name", ["log_softmax", "log_sum_exp"])
def test_text(name: str, golden: Callable[[object], None]) -> None:
    made = one_pass(filled(LOG_SOFTMAX if name == "log_softmax" else LOG_SUM_EXP))
    golden(kernel_text(made))
    assert parse_kernel(kernel_text(made)) == made


def test_a_source(golden: Callable[[object], None]) -> None:
    source = print_kernel(parse_kernel(filled(LOG_SUM_EXP)), GPU).kernel.source
    golden(source[source.index("\ndef k_") :].partition("(")[2])


def test_softmax_of_a_model() -> None:
    """The schedule's own softmax, made long."""
    (step,) = scheduled(PROGRAMS["softmax"].replace("96", "50257"), GPU).steps
    assert "with_exp_sum(" in print_kernel(step.kernel, GPU).kernel.source  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("50257", "1024"),  # in registers
        ("50257", "n0"),  # may be empty
        ("sub(convert(load x[i0, i1], f32), load top[]))", "convert(load x[i0, i1], f32))"),
        ("exp(sub(convert(load x[i0, i1], f32)", "exp(sub(neg(convert(load x[i0, i1], f32))"),
        ("= amax over", "= amin over"),
        ("total[] = sum", "total[] = prod"),
    ],
)
def test_left_alone(old: str, new: str) -> None:
    text = filled(LOG_SOFTMAX).replace(old, new)
    assert unchanged(text.replace("[64, n0]) units", "[64, n0]; n0) units"))


def test_a_row_of_exponentials_that_is_needed_is_made_in_a_second_pass() -> None:
    text = """
        kernel exps(x: f32[64, 50257] -> e: f32[64, 50257], out: f32[64]) units (i0: 64)
            local top: f32
            local total: f32
            phase (i1: 50257):
                top[] = amax over (i1): load x[i0, i1]
            phase (i1: 50257):
                v0 = exp(sub(load x[i0, i1], load top[]))
                e[i0, i1] = v0
                total[] = sum over (i1): v0
            phase ():
                out[i0] = load total[]
    """
    assert unchanged(text)
    assert unchanged(text.replace("f32", "f64").replace("                e[i0, i1] = v0\n", ""))


# Values.


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_interpreter_of_loops(dtype: str) -> None:
    """The loop interpreter gives equal results for one pass and two."""
    text = filled(LOG_SOFTMAX, dtype, 10, 40000)
    two, one = parse_kernel(text), one_pass(text)
    assert one != two
    x = special_rows(DTYPES[dtype], 40000)
    found = []
    for kernel in (two, one):
        memory = Memory({"x": x, "out": torch.zeros_like(x)})
        run_kernel(kernel, memory)
        found.append(memory.tensors["out"])
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
    assert found[0][[4, 6, 7]].isnan().all() and not found[0][[0, 1, 2, 3, 5, 8, 9]].isnan().any()
    torch.testing.assert_close(found[0], x.log_softmax(1), rtol=2**-7, atol=1e-2, equal_nan=True)


def registers_hold(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LARGEST_BLOCK", "WHOLE_BLOCK"):
        monkeypatch.setattr(choose_tiles, name, points)


def test_values(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of 2048, the second with a larger maximum."""
    registers_hold(2048, monkeypatch)
    x, out = special_rows(torch.float32, 2900)[[2]], torch.zeros(1, 2900)
    check_kernel(runner, filled(LOG_SOFTMAX, "f32", 1, 2900), {"x": x, "out": out}, {})
    assert "with_exp_sum(" in runner.used[-1].kernel.source


@pytest.mark.slow
@pytest.mark.parametrize("columns", [8192, 9001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_values(dtype: str, columns: int, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    registers_hold(4096, monkeypatch)
    x = special_rows(DTYPES[dtype], columns)
    for text, out in ((LOG_SOFTMAX, torch.zeros_like(x)), (LOG_SUM_EXP, torch.zeros(10))):
        tolerance = 2e-6 if out.dtype == torch.float32 else 2**-8
        check_kernel(runner, filled(text, dtype, 10, columns), {"x": x, "out": out}, {}, tolerance)
        assert "with_exp_sum(" in runner.used[-1].kernel.source


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiles(dtype: str) -> None:
    written = print_kernel(parse_kernel(filled(LOG_SOFTMAX, dtype)), GPU, (True, True))
    kernel = written.kernel
    assert compile_source(kernel.source, kernel.symbol, dict(kernel.meta))["cubin"]


# The verifier.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("top[] = amax", "top[] = amin"),
        ("with total of", "with x of"),
        ("local total: f32", "local total(i1: 50257): f32"),
    ],
)
def test_verifier(old: str, new: str) -> None:
    kernel = parse_kernel(kernel_text(one_pass(filled(LOG_SUM_EXP))).replace(old, new))
    with pytest.raises(InvalidLoops, match="K7"):
        verify_kernel(kernel)
