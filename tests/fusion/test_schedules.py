"""Schedules of many programs as text, on a CPU and on a GPU: what is fused, in which loops, and why not.

A changed limit, gain or preference shows here. The kernels of a GPU compute the same as the program too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.kernel.launches.text import kernel_program_text
from kiln.loops.kernel.passes.pipeline import mapped_kernel_text, run_kernel_passes
from kiln.support.events import EventSink
from kiln.support.target import Target
from tests.fusion.check import TARGET, assert_same_values, scheduled
from tests.fusion.programs import PROGRAMS
from tests.fusion.random_loops import LARGE, SMALL, random_program
from tests.fusion.test_not_fused import GPU
from tests.fusion.test_single import PROGRAMS as SINGLE

LARGE_TARGETS = {"cpu": Target(vector_bytes=64, threads=16), "gpu": GPU}
SMALL_TARGETS = {"cpu": TARGET, "gpu": Target(device="cuda", capability=(8, 0), multiprocessors=4)}
MAPPED = re.compile(r"kernel|    (local|phase|block|run|hold|\w+ = )")
HEAD = re.compile(r"    (kernel|    local|    phase|allocate .* in |call )")


def outline(seed: int, target: Target, pool: tuple[int, ...], *, symbolic: bool) -> Iterator[str]:
    """Kernels with their locals and loops, reused memory, and refusals."""
    made = scheduled(random_program(seed, symbolic=symbolic, pool=pool), target)
    yield f"program {seed}"
    for line in kernel_program_text(made).splitlines():
        if HEAD.match(line):
            yield re.sub(r" = .*", "", line)
    yield from [f"    {refusal}" for refusal in made.not_fused]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_outlines_of_random_programs(device: str, golden: Callable[..., None]) -> None:
    lines = [line for seed in range(100, 108) for line in outline(seed, LARGE_TARGETS[device], SMALL, symbolic=False)]
    lines += [line for seed in range(108, 118) for line in outline(seed, LARGE_TARGETS[device], LARGE, symbolic=False)]
    lines += [line for seed in range(118, 125) for line in outline(seed, SMALL_TARGETS[device], SMALL, symbolic=True)]
    golden("\n".join(lines))


def kernels_of(seed: int, target: Target, pool: tuple[int, ...]) -> Iterator[KernelIR]:
    for step in scheduled(random_program(seed, pool=pool), target).steps:
        if isinstance(step, KernelLaunch):
            yield step.kernel


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_loops_of_random_kernels(device: str, golden: Callable[..., None]) -> None:
    """After the passes on kernels: blocks, runs, vectors, rows."""
    lines: list[str] = []
    for seed in range(130, 142):
        pool = LARGE if seed % 3 else SMALL
        for kernel in kernels_of(seed, LARGE_TARGETS[device], pool):
            text = mapped_kernel_text(run_kernel_passes(kernel, LARGE_TARGETS[device], EventSink()))
            lines += [re.sub(r"\] = .*", "]", line) for line in text.splitlines() if MAPPED.match(line)]
    golden("\n".join(lines))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_sources_of_random_kernels(device: str, golden: Callable[..., None]) -> None:
    """What is printed of them, without the prelude, and how it is launched."""
    sources: list[str] = []
    for seed, pool in ((150, SMALL), (151, LARGE)):
        for kernel in kernels_of(seed, LARGE_TARGETS[device], pool):
            printed = print_kernel(kernel, LARGE_TARGETS[device])
            source = printed.kernel.source[
                printed.kernel.source.rindex("\n# kernel" if device == "gpu" else "extern") :
            ]
            facts = [f"# {name}: {value}" for name, value in printed.kernel.meta]
            source = source.replace(printed.kernel.symbol, f"k{len(sources)}").strip()
            sources.append("\n".join([source, f"# grid: {printed.grid}", *facts]))
    golden("\n\n".join(sources))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_text_on_a_gpu(name: str, golden: Callable[..., None]) -> None:
    golden(kernel_program_text(scheduled(PROGRAMS[name], GPU)))


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_text_of_single_nodes_on_a_gpu(name: str, golden: Callable[..., None]) -> None:
    golden(kernel_program_text(scheduled(SINGLE[name], GPU)))


@pytest.mark.parametrize("seed", range(200, 220))
def test_values_on_a_gpu(seed: int) -> None:
    program = random_program(seed, symbolic=seed % 2 == 1)
    assert_same_values(program, {"s0": (1, 2, 5, 13)[seed % 4]}, scheduled(program, GPU))
