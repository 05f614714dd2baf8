"""The Triton of a few kernels as text, for one H100."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.support.events import EventSink
from kiln.support.target import cuda_gpu
from tests.codegen.test_cpp_text import KERNELS
from tests.fusion.programs import PROGRAMS
from tests.fusion.test_single import PROGRAMS as SINGLE
from tests.loop_ir.parse import parse_kernel, parse_program

H100 = cuda_gpu((9, 0), 132)
FAR = """
loops far
    x: bf16[4096, 200000] = input 0
    top: bf16[4096] = reduction amax over (i1: 200000) keeping (i0: 4096): load x[i0, i1]
    e: f32[4096, 200000] = pointwise (i0: 4096, i1: 200000):
        -> exp(sub(convert(load x[i0, i1], f32), convert(load top[i0], f32)))
    total: f32[4096] = reduction sum over (i1: 200000) keeping (i0: 4096): load e[i0, i1]
    out: bf16[4096, 200000] = pointwise (i0: 4096, i1: 200000): convert(div(load e[i0, i1], load total[i0]), bf16)
    return out
"""
DROPOUT = """
loops dropout
    seed: i64[2] = input 0
    x: f32[1024, 768] = input 1
    out: f32[1024, 768] = pointwise (i0: 1024, i1: 768):
        v0 = lt(random(uniform, load seed[0], 768*i0 + i1, f32), f32(0.9))
        -> where(v0, load x[i0, i1], f32(0.0))
    return out
"""
SCANNED = """
loops scanned
    x: f32[6] = input 0
    y: f32[6, 4] = input 1
    sums: f32[6] = scan sum along i0 of (i0: 6): load x[i0]
    out: f32[6, 4] = pointwise (i0: 6, i1: 4): mul(load sums[i0], load y[i0, i1])
    return out
"""
TEXTS = {
    "softmax": PROGRAMS["softmax"], "norm_backward": PROGRAMS["norm_backward"], "argmax": SINGLE["argmax"],
    "looked_up": PROGRAMS["looked_up"], "scan": SINGLE["scan"], "scatter": SINGLE["scatter"], "long_rows": FAR,
    "scan_beside_wider_rows": SCANNED,
}  # fmt: skip


def texts(program: str) -> str:
    """The kernels of a program, without the prelude, under the names k0, k1, .."""
    found = []
    for step in schedule(run_program_passes(parse_program(program), H100, EventSink()), H100, EventSink()).steps:
        if isinstance(step, KernelLaunch):
            found.append(kernel_text(step.kernel, len(found)))
    return "\n\n".join(found)


def kernel_text(kernel: KernelIR, number: int = 0) -> str:
    written = print_kernel(kernel, H100)
    source = written.kernel.source[written.kernel.source.index("\n# kernel") + 1 :]
    facts = "\n".join(f"# {name}: {value}" for name, value in written.kernel.meta)
    return f"{source.replace(written.kernel.symbol, f'k{number}')}# grid: {written.grid}\n{facts}"


@pytest.mark.parametrize("name", TEXTS)
def test_program(name: str, golden: Callable[[object], None]) -> None:
    golden(texts(TEXTS[name]))


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str, golden: Callable[[object], None]) -> None:
    golden(kernel_text(parse_kernel(KERNELS[name])))


def test_equal_kernels_have_equal_sources() -> None:
    text = KERNELS["norm"]
    renamed = text.replace("square", "total").replace("x", "y").replace("i1", "i7").replace("s0", "s4")
    first, second = (print_kernel(parse_kernel(source), H100).kernel for source in (text, renamed))
    assert first == second
    assert print_kernel(parse_kernel(text.replace("0.01", "0.02")), H100).kernel.symbol != first.symbol


def test_facts_are_part_of_a_kernel() -> None:
    kernel = parse_kernel(KERNELS["columns"])
    plain, aligned = print_kernel(kernel, H100).kernel, print_kernel(kernel, H100, (True, True)).kernel
    assert dict(aligned.meta)["divisible"] == (0, 1)
    assert plain.symbol != aligned.symbol
