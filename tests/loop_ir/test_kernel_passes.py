"""Each pass over kernels: the kernel before as text, after as a golden text, and both interpreted on random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch

from kiln.loops.body.interpret import number
from kiln.loops.kernel.interpret import run_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.passes.choose_lanes import ChooseLanes
from kiln.loops.kernel.passes.choose_tiles import ChooseTiles
from kiln.loops.kernel.passes.choose_vector import ChooseVector
from kiln.loops.kernel.passes.drop_roundings import DropRoundings
from kiln.loops.kernel.passes.fast_math import FastMath
from kiln.loops.kernel.passes.fuse_erf import FuseErf
from kiln.loops.kernel.passes.hoist_loads import HoistLoads
from kiln.loops.kernel.passes.index_tests import IndexTests
from kiln.loops.kernel.passes.loop_rows import LoopRows
from kiln.loops.kernel.passes.move_bits import MoveBits
from kiln.loops.kernel.passes.online_softmax import OnlineSoftmax
from kiln.loops.kernel.passes.own_loops import OwnLoops
from kiln.loops.kernel.passes.pipeline import CPP_PASSES, TRITON_PASSES, KernelPass, run_kernel_passes
from kiln.loops.kernel.passes.round_halves import RoundHalves
from kiln.loops.kernel.passes.strips_to_runs import StripsToRuns
from kiln.loops.kernel.text import mapped_kernel_text
from kiln.loops.kernel.verify import verify_kernel, verify_mapped_kernel
from kiln.loops.program.interpret import Memory
from kiln.support.events import EventSink
from kiln.support.target import Target, cuda_gpu
from kiln.symbolic import symbol
from tests.loop_ir.parse import parse_kernel

CPU, GPU = Target("cpu", threads=2, vector_bytes=64), cuda_gpu((9, 0), 4)
ROWS, COLUMNS = 13, 40
SIZES = {symbol("s0"): ROWS, symbol("s1"): COLUMNS}

GELU = """
    kernel gelu(x: bf16[s0, 40] -> out: bf16[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            v0 = convert(load x[i0, i1], f32)
            out[i0, i1] = convert(mul(v0, add(erf(v0), f32(1.0))), bf16)
"""
CHAIN = """
    kernel chain(x: bf16[s0, 40], y: bf16[s0, 40] -> out: bf16[s0, 40], total: f32[s0]; s0) units (i0: s0)
        phase (i1: 40):
            v0 = load x[i0, i1]
            v1 = add(v0, load y[i0, i1])
            out[i0, i1] = neg(mul(v1, v1))
            total[i0] = sum over (i1): convert(mul(v1, v0), f32)
"""
COLUMN_SUMS = """
    kernel column_sums(x: f32[s0, s1] -> out: f32[s1]; s0, s1) units (i1: s1) strip 32
        local total: f32
        phase (i0: s0):
            total[] = sum over (i0): load x[i0, i1]
        phase ():
            out[i1] = load total[]
"""
TRANSPOSE = """
    kernel transpose(x: f32[s1, s0] -> out: f32[s0, s1]; s0, s1) units (i0: s0, i1: s1) strip 16
        phase ():
            out[i0, i1] = load x[i1, i0]
"""
LONG_ROWS = """
    kernel centre(x: f32[8, 8193], mean: f32[8] -> out: f32[8, 8193]) units (i0: 8, i1: 8193)
        phase ():
            out[i0, i1] = sub(load x[i0, i1], load mean[i0])
"""
SOFTMAX = """
    kernel log_sum_exp(x: f32[4, 40000] -> out: bf16[4]) units (i0: 4)
        local top: f32
        local total: f32
        phase (i1: 40000):
            top[] = amax over (i1): load x[i0, i1]
        phase (i1: 40000):
            total[] = sum over (i1): exp(sub(load x[i0, i1], load top[]))
        phase ():
            out[i0] = convert(add(load top[], log(load total[])), bf16)
"""
PICKED = """
    kernel picked(x: f32[s0, 300], at: i64[s0] -> out: f32[s0]; s0) units (i0: s0)
        local total: f32
        phase (i1: 300):
            total[] = sum over (i1): load x[i0, i1]
        phase ():
            j0 = indirect(load at[i0], 300)
            out[i0] = sub(load x[i0, j0], load total[])
"""

SCATTERED = """
    kernel scatter(at: i64[s0, 40], y: f32[s0, 40] -> out: f32[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            j0 = indirect(load at[i0, i1], 40, not negative)
            out[i0, j0] sum = load y[i0, i1]
"""
SCATTERED_SINES = SCATTERED.replace("load y[i0, i1]", "sin(load y[i0, i1])")
DOUBLES = """
    kernel doubles(x: f64[s0, 40], y: f32[40] -> out: f64[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            out[i0, i1] = mul(load x[i0, i1], convert(load y[i1], f64))
"""
FLIP = """
    kernel flip(x: bf16[s0, 40], m: b8[s0, 40], c: i64[40] -> out: bf16[s0, 40], n: b8[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            out[i0, i1] = where(gt(load c[i1], i64(9)), load x[i0, 39 - i1], bf16(-1.5))
            n[i0, i1] = load m[i0, 39 - i1]
"""
CHOSEN = """
    kernel chosen(x: bf16[s0, 40], m: b8[s0, 40] -> out: bf16[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            out[i0, i1] = where(load m[i0, i1], load x[i0, 39 - i1], bf16(0.0))
"""
COUNTED = """
    kernel counted(x: bf16[s0, 40], m: b8[s0, 40] -> out: bf16[s0, 40], n: b8[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            out[i0, i1] = where(load m[i0, i1], load x[i0, i1], add(load x[i0, i1], bf16(1.0)))
            n[i0, i1] = logical_not(load m[i0, i1])
"""
TRIANGLE = """
    kernel triangle(x: b8[s0, 40] -> out: b8[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            v0 = sub(index(i1, i64), index(i0, i64))
            out[i0, i1] = where(ge(add(v0, i64(2)), i64(9)), load x[i0, i1], b8(true))
"""
FAR_TRIANGLE = TRIANGLE.replace("i64(9)", "i64(9876543210)")
ROWS_OF_BOOLS = """
    kernel rows(m: b8[s0, 40] -> n: b8[s0, 40]; s0) units (i0: s0)
        phase (i1: 40):
            n[i0, i1] = load m[s0 - i0 - 1, i1]
"""

DIFFERENCES = """
    kernel differences(x: f32[6, 8, 8] -> square: f32[6, 8, 8], out: f32[6]) units (i0: 6)
        local rows: f32
        local columns: f32
        phase (i1: 8, i2: 8):
            square[i0, i1, i2] = mul(load x[i0, i1, i2], load x[i0, i1, i2])
        phase (i3: 7, i2: 8):
            rows[] = sum over (i3, i2): sub(load x[i0, i3 + 1, i2], load x[i0, i3, i2])
        phase (i1: 8, i3: 7):
            columns[] = sum over (i1, i3): sub(load x[i0, i1, i3 + 1], load x[i0, i1, i3])
        phase ():
            out[i0] = add(load rows[], load columns[])
"""
KEPT = """
    kernel kept(x: f32[6, 8, 8] -> out: f32[6, 8, 8]) units (i0: 6)
        local total(i1: 8): f32
        phase (i1: 8, i2: 8):
            total[i1] = sum over (i2): load x[i0, i1, i2]
        phase (i3: 8, i1: 8):
            out[i0, i3, i1] = sub(load x[i0, i3, i1], load total[i1])
"""

CASES: dict[str, tuple[str, Target, Sequence[KernelPass]]] = {
    "round-halves": (CHAIN, replace(CPU, rounds=True), (RoundHalves(),)),
    "round-halves-not": (CHAIN, CPU, (RoundHalves(),)),
    "fuse-erf": (GELU, CPU, (FuseErf(),)),
    "move-bits": (FLIP, CPU, (MoveBits(),)),
    "move-bits-chosen": (CHOSEN, CPU, (MoveBits(),)),
    "move-bits-not": (COUNTED, CPU, (MoveBits(),)),
    "index-tests": (TRIANGLE, CPU, (IndexTests(),)),
    "index-tests-not": (FAR_TRIANGLE, CPU, (IndexTests(),)),
    "drop-roundings": (GELU, CPU, (DropRoundings(),)),
    "choose-lanes": (DOUBLES, replace(CPU, vector_bytes=32), (ChooseLanes(),)),
    "choose-lanes-not": (GELU, replace(CPU, vector_bytes=32), (ChooseLanes(),)),
    "choose-lanes-copy": (ROWS_OF_BOOLS, replace(CPU, vector_bytes=32), (MoveBits(), ChooseLanes())),
    "choose-lanes-cut": (TRIANGLE, replace(CPU, vector_bytes=32), (IndexTests(), MoveBits(), ChooseLanes())),
    "choose-lanes-uncut": (TRIANGLE, replace(CPU, vector_bytes=32), (MoveBits(), ChooseLanes())),
    "strips-to-runs": (COLUMN_SUMS, CPU, (StripsToRuns(),)),
    "strips-to-runs-rows": (TRANSPOSE, CPU, (StripsToRuns(),)),
    "choose-vector": (GELU, CPU, (ChooseVector(),)),
    "choose-vector-not": (SCATTERED, CPU, (ChooseVector(),)),
    "choose-vector-sines": (SCATTERED_SINES, CPU, (ChooseVector(),)),
    "cpp": (GELU, CPU, CPP_PASSES),
    "loop-rows": (LONG_ROWS, GPU, (LoopRows(),)),
    "own-loops": (DIFFERENCES, GPU, (OwnLoops(), ChooseTiles())),
    "own-loops-not": (KEPT, GPU, (OwnLoops(),)),
    "choose-tiles": (COLUMN_SUMS, GPU, (ChooseTiles(),)),
    "choose-tiles-tile": (TRANSPOSE, GPU, (ChooseTiles(),)),
    "online-softmax": (SOFTMAX, GPU, (ChooseTiles(), OnlineSoftmax())),
    "fast-math": (SOFTMAX, GPU, (FastMath(),)),
    "hoist-loads": (PICKED, GPU, (HoistLoads(),)),
    "triton": (SOFTMAX, GPU, TRITON_PASSES),
}


@pytest.mark.parametrize("name", CASES)
def test_pass(name: str, golden: Callable[[object], None]) -> None:
    text, target, passes = CASES[name]
    kernel = parse_kernel(text)
    verify_kernel(kernel)
    made = run_kernel_passes(kernel, target, EventSink(), passes=passes)
    verify_mapped_kernel(made)
    golden(mapped_kernel_text(made))
    for expected, actual in zip(values(MappedKernel(kernel), kernel), values(made, kernel), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_phases_whose_axes_are_among_those_of_others_or_apart_keep_them() -> None:
    kernel = parse_kernel("""
        kernel nested(x: f32[6, 8, 8] -> a: f32[6, 8], b: f32[6, 8, 8], c: f32[6, 8], d: f32[6, 8]) units (i0: 6)
            phase (i1: 8):
                a[i0, i1] = load x[i0, i1, 0]
            phase (i1: 8, i2: 8):
                b[i0, i1, i2] = mul(load x[i0, i1, i2], load x[i0, i1, i2])
            phase (i2: 8):
                c[i0, i2] = load x[i0, 7, i2]
            phase (i3: 8):
                d[i0, i3] = load x[i0, i3, 1]
    """)
    verify_kernel(kernel)
    assert OwnLoops().run(MappedKernel(kernel), GPU)[1] == 0


def run_mapped_kernel(mapped: MappedKernel, memory: Memory) -> None:
    """Run a kernel as it is printed: in runs of units if it has them. A tiling changes no values."""
    kernel, run = mapped.kernel, mapped.run
    if run is None:
        run_kernel(kernel, memory)
        return
    counted = [(run.axis, run.count, run.longest or kernel.strip)]
    if run.rows is not None:
        counted.append((run.rows.axis, run.rows.rows, run.rows.longest))
    axes = [axis for axis, _, _ in counted]
    rest = replace(kernel, units=tuple(axis for axis in kernel.units if axis not in axes))
    sizes = [number(axis.size, memory.sizes) for axis in axes]
    steps = [longest for _, _, longest in counted]
    for starts in product(*(range(0, size, step) for size, step in zip(sizes, steps, strict=True))):
        values = dict(memory.sizes)
        for (axis, count, longest), start, size in zip(counted, starts, sizes, strict=True):
            values |= {axis.symbol: start, count: min(longest, size - start)}
        run_kernel(rest, replace(memory, sizes=values))


def values(mapped: MappedKernel, written: KernelIR) -> list[torch.Tensor]:
    """What the kernel writes, given random inputs of `written`, of which it was made and whose bits it may move."""
    inputs = random_inputs(written)
    held = {param.name: inputs[param.name].view(param.spec.dtype) for param in mapped.kernel.params}
    memory = Memory(held, dict(SIZES))
    run_mapped_kernel(mapped, memory)
    assert memory.faults.fault is None
    return [memory.tensors[name].view(inputs[name].dtype) for name in sorted(mapped.kernel.writes)]


def random_inputs(kernel: KernelIR) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {}
    for param in kernel.params:
        sizes = [number(size, SIZES) for size in param.spec.sizes]
        is_index = param.spec.dtype == torch.int64
        made[param.name] = torch.randint(40, sizes) if is_index else torch.randn(sizes).to(param.spec.dtype)
    return made


def test_every_pass_has_a_test() -> None:
    assert {step.name for step in (*CPP_PASSES, *TRITON_PASSES)} <= CASES.keys()
