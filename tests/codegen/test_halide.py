"""Kernels as pipelines of Halide: their text, what is left to C++, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kiln
from kiln.backends.halide import HALIDE
from kiln.build.cpp_compile import HALIDE_BLOCK
from kiln.loops.codegen.halide.writer import write_halide
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.canonical import canonical
from kiln.loops.kernel.errors import UnsupportedInKernel
from kiln.support.target import Target, host_cpu
from tests.codegen.native import Case, check
from tests.codegen.test_cpp_kernels import all_cases
from tests.codegen.test_cpp_text import KERNELS
from tests.loop_ir.parse import parse_kernel

TARGET = Target(vector_bytes=32, language=HALIDE)


def taken(case: Case) -> bool:
    try:
        write_halide(canonical(case.kernel)[0], TARGET)
    except UnsupportedInKernel:
        return False
    return True


@pytest.mark.parametrize("name", ["norm", "transposed"])
def test_text(name: str, golden: Callable[[object], None]) -> None:
    kernel = print_kernel(parse_kernel(KERNELS[name]), TARGET).kernel
    _, _, rest = kernel.source.partition(HALIDE_BLOCK)
    pipeline, _, caller = rest.partition("#endif\n")
    golden((pipeline + caller[caller.rindex('extern "C" int') :]).replace(kernel.symbol, "k"))


@pytest.mark.parametrize("name", ["columns", "padded", "gathered"])
def test_what_it_does_not_take_is_written_in_cpp(name: str) -> None:
    kernel = parse_kernel(KERNELS[name])
    with pytest.raises(UnsupportedInKernel, match="Halide kernels cannot express"):
        write_halide(kernel, TARGET)
    assert HALIDE_BLOCK not in print_kernel(kernel, TARGET).kernel.source


def test_kernels_equal_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("halide", reason="the package halide is not installed")
    cases = [case for case in all_cases() if taken(case)]
    assert len(cases) >= 47
    check(cases, tmp_path, replace(host_cpu(), language=HALIDE))


@pytest.mark.unrecorded
@pytest.mark.filterwarnings("error")
def test_as_a_backend() -> None:
    pytest.importorskip("halide", reason="the package halide is not installed")
    linear = torch.nn.Sequential(torch.nn.Linear(96, 200), torch.nn.GELU(), torch.nn.LayerNorm(200), torch.nn.Tanh())
    compiled = kiln.compile(linear, backend="halide")
    for batch in (5, 3, 40):
        x = torch.randn(batch, 96)
        torch.testing.assert_close(compiled(x), linear(x))
        mine, eager = (torch.autograd.grad(f(x).square().sum(), linear.parameters()) for f in (compiled, linear))
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    assert "halide" in kiln.list_backends()


def test_special_numbers(tmp_path: Path) -> None:
    """NaN, infinities and the ends of ranges, as the interpreter has them."""
    pytest.importorskip("halide", reason="the package halide is not installed")
    ends = [
        float("nan"),
        float("inf"),
        -float("inf"),
        0.0,
        -0.0,
        1e-42,
        88.7,
        -103.9,
        3e38,
        -3e38,
        0.93,
        0.85,
        1.0,
        -1.0,
    ]
    x = torch.tensor(ends)
    text = """
        kernel ends(x: f32[14] -> out: f32[14]) units (i0: 14) strip 64
            phase ():
                out[i0] = {}(load x[i0])
    """
    names = ("exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt", "abs", "floor", "round", "neg", "reciprocal")
    cases = [Case.of(text.format(name), {"x": x, "out": torch.empty(14)}) for name in names]
    check(cases, tmp_path, replace(host_cpu(), language=HALIDE))
