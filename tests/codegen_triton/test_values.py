"""Scalar tensors on the CPU among tensors of a GPU: the launch passes the number."""

from __future__ import annotations

import pytest
import torch

from kiln.build.triton_compile import compile_source
from kiln.loops.codegen.print_kernel import print_kernel
from tests.codegen_triton.check import GPU, Runner, check_kernel
from tests.loop_ir.parse import parse_kernel

SCALED = """
    kernel scaled(x: f32[40 @cuda:0], by: {dtype}[] -> out: f32[40 @cuda:0]) units (i0: 40)
        phase ():
            out[i0] = mul(load x[i0], convert(load by[], f32))
"""
GUARDED = """
    kernel guarded(x: f32[40 @cuda:0], by: f32[] -> out: f32[40 @cuda:0]) units (i0: 40)
        phase ():
            out[i0] = add(load x[i0], load by[] if test(i0 <= 12))
"""
X = torch.linspace(-1, 1, 40)


@pytest.mark.parametrize("value", [torch.tensor(2.5), torch.tensor(1 / 3, dtype=torch.float64), torch.tensor(7)])
def test_a_number_is_passed(value: torch.Tensor, runner: Runner) -> None:
    dtype = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64"}[value.dtype]
    text = SCALED.format(dtype=dtype)
    check_kernel(runner, text, {"x": X, "by": value, "out": torch.zeros(40)}, {})
    kernel = runner.used[-1].kernel
    assert "tl.load(in1" not in kernel.source
    assert kernel.passed_by_value() == {1}
    assert compile_source(kernel.source, kernel.symbol, dict(kernel.meta))["cubin"]


def test_a_number_that_some_points_use(runner: Runner) -> None:
    check_kernel(runner, GUARDED, {"x": X, "by": torch.tensor(3.0), "out": torch.zeros(40)}, {})


@pytest.mark.parametrize("dtype", ["bf16", "b8"])
def test_other_types_are_copied(dtype: str) -> None:
    text = SCALED.format(dtype=dtype).replace("mul(load x[i0], convert(load by[], f32))", "convert(load by[], f32)")
    assert not print_kernel(parse_kernel(text), GPU).kernel.passed_by_value()
