"""Cheaper functions for values that are rounded to 16 bits."""

from __future__ import annotations

import torch

from kiln.loops.body.body import Compute
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.passes.fast_math import FastMath
from tests.codegen_triton.check import GPU, Runner
from tests.loop_ir.parse import parse_kernel


def functions(kernel: KernelIR) -> set[str]:
    made, _ = FastMath().run(MappedKernel(kernel), GPU)
    return {op.op.name for phase in made.kernel.phases for op in phase.body.ops if isinstance(op, Compute)}


def of_rows(out: str, stored: str) -> KernelIR:
    return parse_kernel(f"""
        kernel rows(x: bf16[64, 128] -> out: {out}[64, 128]) units (i0: 64)
            local total: f32
            phase (i1: 128):
                total[] = sum over (i1): exp(convert(load x[i0, i1], f32))
            phase (i1: 128):
                out[i0, i1] = {stored}
    """)


def test_a_function_is_cheap_in_all_phases_or_in_none() -> None:
    quotient = "div(exp(convert(load x[i0, i1], f32)), load total[])"
    assert functions(of_rows("bf16", f"convert({quotient}, bf16)")) >= {"exp_narrow", "div_narrow"}
    assert functions(of_rows("f32", quotient)) >= {"exp", "div"}


def test_what_also_goes_elsewhere_is_exact() -> None:
    kernel = parse_kernel("""
        kernel both(x: f32[64] -> wide: f32[64], narrow: bf16[64]) units (i0: 64)
            phase ():
                v0 = exp(load x[i0])
                wide[i0] = v0
                narrow[i0] = convert(erf(v0), bf16)
    """)
    assert functions(kernel) >= {"exp", "erf_narrow"}


def softmax_sum(term: str, effect: str = "sum1[] = sum over (i1)") -> KernelIR:
    return parse_kernel(f"""
        kernel rows(x: f32[64, 128] -> out: f32[64]) units (i0: 64)
            local top: f32
            local sum1: f32
            phase (i1: 128):
                top[] = amax over (i1): load x[i0, i1]
            phase (i1: 128):
                {effect}: {term}
            phase ():
                out[i0] = log(load sum1[])
    """)


def test_a_sum_of_numbers_below_one_may_be_cheap() -> None:
    below = "exp(sub(load x[i0, i1], load top[]))"
    assert functions(softmax_sum(below)) == {"exp_narrow", "sub", "log"}
    assert "exp" in functions(softmax_sum("exp(load x[i0, i1])"))
    assert "exp" in functions(softmax_sum("exp(sub(neg(load x[i0, i1]), load top[]))"))
    assert "exp" in functions(softmax_sum("exp(sub(load top[], load x[i0, i1]))"))
    assert "exp" in functions(softmax_sum(f"add({below}, f32(-0.5))"))
    assert "exp" in functions(softmax_sum(below, "sum1[] = amin over (i1)"))


def test_values(runner: Runner) -> None:
    """Errors are at most one rounding to bf16."""
    x = torch.cat([torch.linspace(-6, 6, 500), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-20])])
    lines = "\n".join(f"r{place}[i0] = convert({name}(load x[i0]), bf16)" for place, name in enumerate(NAMES))
    outs = ", ".join(f"r{place}: bf16[{x.numel()}]" for place in range(len(NAMES)))
    kernel = parse_kernel(f"kernel k(x: f32[{x.numel()}] -> {outs}) units (i0: {x.numel()})\nphase ():\n{lines}")
    assert "erf_narrow(v0)" in print_kernel(kernel, GPU).kernel.source
    tensors = [x, *(torch.zeros(x.numel(), dtype=torch.bfloat16) for _ in NAMES)]
    runner.run(kernel, tensors, {})
    for name, got in zip(NAMES, tensors[1:], strict=True):
        exact = getattr(torch, name)(x.double())
        torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-6, equal_nan=True)


NAMES = ("erf", "exp", "sigmoid", "reciprocal")
