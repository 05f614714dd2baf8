"""Kernels become cubins without a GPU: a few always, all in the slow tests."""

from __future__ import annotations

import re

import pytest

from kiln.build.triton_compile import compile_source, jit_function
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.support.target import cuda_gpu
from tests.codegen_triton.check import GPU
from tests.codegen_triton.test_kernels import BACKWARDS, CASES
from tests.fusion.check import scheduled
from tests.fusion.programs import PROGRAMS
from tests.fusion.test_single import PROGRAMS as SINGLE

H100 = cuda_gpu((9, 0), 132)
FEW = ("softmax", "norm_backward", "transposed", "looked_up")
COPY = """
loops copy
    x: {dtype}[{size}] = input 0
    y: {dtype}[{size}] = pointwise (i0: {size}): abs(load x[i0])
    return y
"""


def cubin_size(written: PrintedKernel, capability: int) -> int:
    kernel = written.kernel
    meta = {**dict(kernel.meta), "capability": capability}
    return len(compile_source(kernel.source, kernel.symbol, meta)["cubin"])


def kernels(text: str) -> list[PrintedKernel]:
    steps = (step for step in scheduled(text, GPU).steps if isinstance(step, KernelLaunch))
    return [print_kernel(step.kernel, H100, tuple(True for _ in step.args)) for step in steps]


@pytest.mark.parametrize("name", FEW)
def test_a_few_compile(name: str) -> None:
    for written in kernels(PROGRAMS[name]):
        assert cubin_size(written, 90) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", PROGRAMS | SINGLE)
def test_programs_compile(name: str, capability: int) -> None:
    for written in kernels((PROGRAMS | SINGLE)[name]):
        assert cubin_size(written, capability) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(BACKWARDS)])
def test_kernels_compile(name: str, capability: int) -> None:
    assert cubin_size(print_kernel(CASES[name].kernel, H100), capability) > 1000


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_memory_is_accessed_16_bytes_at_a_time(dtype: str) -> None:
    """Where parameters are aligned and sizes are known, also if the last block is not full."""
    (written,) = kernels(COPY.format(dtype=dtype, size=8 * 100003))
    ptx = ptx_of(written)
    assert set(re.findall(r"(?:ld|st)\.global\S*", ptx)) == {"ld.global.v4.b32", "st.global.v4.b32"}


def test_what_is_not_aligned_is_accessed_by_element() -> None:
    (written,) = kernels(COPY.format(dtype="f32", size=4096))
    assert "v4" in ptx_of(written)
    (step,) = (
        item for item in scheduled(COPY.format(dtype="f32", size=4096), GPU).steps if isinstance(item, KernelLaunch)
    )
    assert "v4" not in ptx_of(print_kernel(step.kernel, H100))


def ptx_of(written: PrintedKernel) -> str:
    triton = pytest.importorskip("triton")
    kernel, meta = written.kernel, dict(written.kernel.meta)
    function, constants = jit_function(kernel.source, kernel.symbol), dict(meta["constants"])
    names = [name for name in function.arg_names if name not in constants]
    signature = dict(zip(names, meta["signature"], strict=True)) | dict.fromkeys(constants, "constexpr")
    attrs = {(place,): [["tt.divisibility", 16]] for place in meta["divisible"]}
    source = triton.compiler.ASTSource(function, signature, constants, attrs)
    text: str = triton.compile(
        source, triton.backends.compiler.GPUTarget("cuda", 90, 32), {"num_warps": meta["num_warps"]}
    ).asm["ptx"]
    return text
