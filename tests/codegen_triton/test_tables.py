"""Launches over tables: a program takes the arguments of its row."""

from __future__ import annotations

import pytest

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.support.target import cuda_gpu
from tests.codegen_triton.check import Runner, assert_same_values
from tests.codegen_triton.conftest import interpreter, runner
from tests.codegen_triton.test_compile import cubin_size, ptx_of
from tests.loop_ir.parse import parse_kernel

__all__ = ["interpreter", "runner"]

H100 = cuda_gpu((9, 0), 132)
STEP = """
kernel step(g: f32[n0], rate: f64[] -> m: f32[n0], p: f32[n0]; n0) units (i0: n0)
    phase ():
        v0 = add(mul(f32(0.9), load m[i0]), load g[i0])
        m[i0] = v0
        p[i0] = sub(load p[i0], mul(convert(load rate[], f32), v0))
"""
ROWS = 40


def steps(sizes: list[int]) -> str:
    """An update of tensors of these sizes, as new tensors."""
    given, made, results = [], [], []
    for n, size in enumerate(sizes):
        given += [f"    {name}{n}: f32[{size}] = input {3 * n + place}" for place, name in enumerate("gmp")]
        made.append(f"    n{n}: f32[{size}] = pointwise (i0: {size}): add(mul(f32(0.9), load m{n}[i0]), load g{n}[i0])")
        made.append(f"    q{n}: f32[{size}] = pointwise (i0: {size}): sub(load p{n}[i0], mul(f32(0.1), load n{n}[i0]))")
        results += [f"n{n}", f"q{n}"]
    return "\n".join(["loops steps", *given, *made, f"    return {', '.join(results)}"])


def test_values(runner: Runner) -> None:
    """Sizes of part of a block to several blocks."""
    made = assert_same_values(runner, steps([2, 3, 700, 2100, 5, 32, 1600, 16]))
    assert [step.rows for step in made.steps if isinstance(step, KernelLaunch)] == [8]


@pytest.mark.parametrize("rate", ["f64[]", "f64[@cuda:0]"])
def test_a_table_compiles(rate: str) -> None:
    """Wide accesses where all addresses and sizes are multiples of 16, with a number by value and in memory."""
    kernel = parse_kernel(STEP.replace("f32[n0]", "f32[n0 @cuda:0]").replace("f64[]", rate))
    written = print_kernel(kernel, H100, (True,) * (5 * ROWS), rows=ROWS)
    assert cubin_size(written, 90) > 1000
    assert "ld.global.v4" in ptx_of(written)
    assert len(written.kernel.params) == 4 * ROWS
    assert written.kernel.num_ints == 2 * ROWS - 1
