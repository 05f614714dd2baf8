"""Shifted variances: one pass over memory, as accurate as eager's."""

from __future__ import annotations

import math

import pytest
import torch

from kiln.loops.body.analyses import accesses
from kiln.loops.body.indexing import points
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.interpret import run_program
from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.loops.program.passes.shift_variances import ShiftVariances
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.support.target import cuda_gpu
from tests.codegen_triton.check import Runner, assert_same_values
from tests.codegen_triton.conftest import interpreter, runner
from tests.fusion.check import scheduled
from tests.loop_ir.parse import parse_program

__all__ = ["interpreter", "runner"]

H100 = cuda_gpu((9, 0), 132)


def variance(sizes: tuple[int, int, int], axis: int, device: str = "", shared: bool = False) -> LoopProgram:
    """The variance over one axis; `shared`: the mean is a loop of its own, and a result."""
    symbols = [f"i{dim}" for dim in range(3)]
    kept = ", ".join(f"{name}: {size}" for name, size in zip(symbols, sizes, strict=True) if name != symbols[axis])
    names = ", ".join(name for name in symbols if name != symbols[axis])
    left, count = ", ".join(str(size) for dim, size in enumerate(sizes) if dim != axis), sizes[axis]
    loop = f"m: f32[{left}{device}] = pointwise ({kept}): mul(load s[{names}], f32({1 / count}))" if shared else ""
    mean = f"load m[{names}]" if shared else f"mul(load s[{names}], f32({1 / count}))"
    lines = f"""
        loops variance
            x: f32[{", ".join(map(str, sizes))}{device}] = input 0
            s: f32[{left}{device}] = reduction sum over ({symbols[axis]}: {count}) keeping ({kept}): load x[i0, i1, i2]
            {loop}
            v: f32[{left}{device}] = reduction sum over ({symbols[axis]}: {count}) keeping ({kept}):
                v0 = sub(load x[i0, i1, i2], {mean})
                -> mul(v0, v0)
            return v{", m" if shared else ""}
    """
    return parse_program("\n".join(line for line in lines.split("\n") if line.strip()))


def split(program: LoopProgram) -> LoopProgram:
    made, changes = ShiftVariances(least_bytes=0, launch_bytes=0).run(program, H100)
    verify_program(made)
    assert changes == 1
    return made


CASES = [((3, 1024, 5), 1), ((2, 1031, 33), 1), ((2, 3, 70000), 2), ((600, 4, 8), 0), ((1, 70001, 7), 1)]


@pytest.mark.parametrize(("sizes", "axis"), CASES)
@pytest.mark.parametrize("kind", ["plain", "far from zero", "one far away"])
def test_error_is_at_most_twice_that_of_eager(sizes: tuple[int, int, int], axis: int, kind: str) -> None:
    program = variance(sizes, axis, shared=kind == "plain")
    torch.manual_seed(0)
    x = torch.randn(sizes) + (3000.0 if kind == "far from zero" else 0.0)
    if kind == "one far away":
        x.select(axis, 0).fill_(1e5)
    (found, *_), count = run_program(split(program), [x]), sizes[axis]
    exact = x.double().var(axis, correction=0) * count
    eager, own = ((value.double() - exact).abs().max() for value in (x.var(axis, correction=0) * count, found))
    assert own <= 2 * eager + 1e-6 * exact.max()


def named(launch: KernelLaunch) -> dict[str, str]:
    return {param.name: name for param, name in zip(launch.kernel.params, launch.args, strict=True)}


@pytest.mark.parametrize(
    ("sizes", "axis"),
    [((64, 4096, 1024), 1), ((8, 262144, 64), 1), ((16, 65536, 33), 1), ((4, 65537, 129), 1), ((1, 4, 1 << 24), 2)],
)
def test_x_and_a_sample_of_it_are_read_once(sizes: tuple[int, int, int], axis: int) -> None:
    program = run_program_passes(variance(sizes, axis, " @cuda:0"), H100, EventSink())
    launches = [step for step in scheduled(program, H100).steps if isinstance(step, KernelLaunch)]
    read = [
        points((*launch.kernel.units, *phase.axes)) for launch in launches for phase in launch.kernel.phases
        if "x" in {named(launch).get(access.buffer) for access in accesses(phase.body)}
    ]  # fmt: skip
    assert sum(read) < 1.1 * math.prod(sizes)
    assert len(launches) <= 5


def test_parts_of_a_long_row_are_few() -> None:
    """The eight neighbours that a sample reads do not split the axis of the sums."""
    program = run_program_passes(variance((64, 1 << 20, 1), 1, " @cuda:0"), H100, EventSink())
    launches = [step for step in scheduled(program, H100).steps if isinstance(step, KernelLaunch)]
    sizes = {name: param.spec.sizes for launch in launches for param, name in
             zip(launch.kernel.params, launch.args, strict=True)}  # fmt: skip
    assert sizes["v_first_part"] == sizes["v_second_part"] == (4, 64)


def test_what_fits_stays_whole() -> None:
    for sizes in ((64, 256, 1024), (64, 4, 4096)):
        assert ShiftVariances(least_bytes=0).run(variance(sizes, sizes.index(256) if 256 in sizes else 2), H100)[1] == 0


def test_overwritten_memory_stays_whole() -> None:
    """The parts would read before the write what the squares read after it."""
    program = variance((2, 1024, 8), 1)
    text = """
        loops variance
            x: f32[2, 1024, 8] = input 0
            s: f32[2, 8] = reduction sum over (i1: 1024) keeping (i0: 2, i2: 8): load x[i0, i1, i2]
            w: f32[2, 1024, 8] in x = pointwise (i0: 2, i1: 1024, i2: 8): add(load x[i0, i1, i2], f32(1.0))
            v: f32[2, 8] = reduction sum over (i1: 1024) keeping (i0: 2, i2: 8):
                v0 = sub(load x[i0, i1, i2], mul(load s[i0, i2], f32(0.0009765625)))
                -> mul(v0, v0)
            return v, w
    """
    assert ShiftVariances(least_bytes=0).run(program, H100)[1] == 1
    assert ShiftVariances(least_bytes=0).run(parse_program(text), H100)[1] == 0


@pytest.mark.parametrize(("sizes", "axis"), [((2, 1031, 5), 1), ((1, 2, 70000), 2)])
def test_kernels(runner: Runner, sizes: tuple[int, int, int], axis: int) -> None:
    assert_same_values(runner, split(variance(sizes, axis)))
