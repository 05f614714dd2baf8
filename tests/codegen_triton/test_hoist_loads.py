"""Loads that do not depend on a reduction are hoisted in front of it."""

from __future__ import annotations

import torch

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.kernel import KernelIR
from tests.codegen_triton.check import GPU, Runner
from tests.loop_ir.parse import parse_kernel


def kernel(columns: int, index: str = "load target[i0]") -> KernelIR:
    return parse_kernel(f"""
        kernel picked(x: f32[8, {columns}], target: i64[8], w: f32[8] -> out: f32[8]) units (i0: 8)
            local total: f32
            phase (i1: {columns}):
                total[] = sum over (i1): load x[i0, i1]
            phase ():
                j0 = indirect({index}, {columns})
                out[i0] = mul(sub(load x[i0, j0], load total[]), load w[i0])
    """)


def order(kernel: KernelIR) -> str:
    """What the lines do, in order: t, w, x load from there; j looks up; + sums."""
    source = print_kernel(kernel, GPU).kernel.source
    source = source[source.index("\ndef k_") :]
    found = []
    for line in source.splitlines():
        for text, sign in (
            ("tl.load(in1", "t"), ("tl.load(in2", "w"), ("+ j0", "j"), ("tl.load(in0", "x"), ("tl.sum(", "+"),
        ):  # fmt: skip
            if text in line:
                found.append(sign)
                break
    return "".join(found)


def test_order() -> None:
    assert order(kernel(4096)) == "twxj+"
    assert order(kernel(1 << 16)) == "twjx+"  # a loop over the row: what it loads is not asked for twice
    assert order(kernel(4096, "convert(load total[], i64)")) == "wx+j"


def test_values(runner: Runner) -> None:
    x, target, w, out = torch.randn(8, 300), torch.randint(0, 300, (8,)), torch.randn(8), torch.zeros(8)
    runner.run(kernel(300), [x, target, w, out], {})
    torch.testing.assert_close(out, (x.gather(1, target[:, None])[:, 0] - x.sum(1)) * w)
