"""Texts of loop programs and kernels: printed, read back, run."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.kernel.interpret import run_kernel
from kiln.loops.kernel.text import kernel_text
from kiln.loops.program.interpret import Memory, run_program
from kiln.loops.program.text import program_text
from kiln.symbolic import symbol
from tests.loop_ir.parse import parse_kernel, parse_program, parse_spec

LAYER_NORM = """\
loops norm
    x: f32[s0, 64] = input 0
    w: f32[64] = input 1
    total: f32[s0] = reduction sum over (i1: 64) keeping (i0: s0): load x[i0, i1]
    square: f32[s0] = reduction sum over (i1: 64) keeping (i0: s0):
        v3 = sub(load x[i0, i1], mul(load total[i0], f32(0.015625)))
        -> mul(v3, v3)
    out: f32[s0, 64] = pointwise (i0: s0, i1: 64):
        v3 = sub(load x[i0, i1], mul(load total[i0], f32(0.015625)))
        v8 = rsqrt(add(mul(load square[i0], f32(0.015625)), f32(1e-05)))
        -> mul(mul(v3, v8), load w[i1])
    return out"""

KERNEL = """\
kernel norm(x: f32[s0, 64], w: f32[64] -> out: f32[s0, 64]; s0) units (i0: s0) grain 4
    local row(i1: 64): f32
    local total: f32
    local square: f32
    phase (i1: 64 vector):
        v0 = load x[i0, i1]
        row[i1] = v0
        total[] = sum over (i1): v0
    phase (i1: 64 vector):
        v3 = sub(load row[i1], mul(load total[], f32(0.015625)))
        row[i1] = v3
        square[] = sum over (i1): mul(v3, v3)
    phase (i1: 64 vector):
        v5 = rsqrt(add(mul(load square[], f32(0.015625)), f32(1e-05)))
        out[i0, i1] = mul(mul(load row[i1], v5), load w[i1])"""


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (64,), w, None, 1e-5)


def held(text: str) -> str:
    return text.replace("1e-05", "9.999999747378752e-06")


def test_program_round_trip() -> None:
    text = program_text(parse_program(held(LAYER_NORM)))
    assert program_text(parse_program(text)) == text


def test_program_runs() -> None:
    x, w = torch.randn(5, 64), torch.randn(64)
    (out,) = run_program(parse_program(LAYER_NORM), [x, w])
    torch.testing.assert_close(out, reference(x, w))


def test_kernel_round_trip() -> None:
    text = kernel_text(parse_kernel(KERNEL))
    assert kernel_text(parse_kernel(text)) == text


def test_kernel_runs() -> None:
    x, w, out = torch.randn(5, 64), torch.randn(64), torch.empty(5, 64)
    run_kernel(parse_kernel(KERNEL), Memory({"x": x, "w": w, "out": out}, {symbol("s0"): 5}))
    torch.testing.assert_close(out, reference(x, w))


@pytest.mark.parametrize(
    "line",
    [
        "out: f32[4] = pointwise (i0: 4): where(test(i0 <= 1), load x[i0], f32(0.0))",
        "out: b8[4] = pointwise (i0: 4): lt(load x[i0] if test(i0 <= 1), f32(inf))",
        "out: bf16[4] = pointwise (i0: 4): convert(index(2*i0 + 1, i64), bf16)",
        "out: f32[4] = pointwise (i0: 4): random_uniform(load seed[0], 7*i0, f32)",
        "out: i64[] = reduction argmax over (i0: 4) keeping (): load x[i0]",
        "out: f32[4] = scan sum along i0 of (i0: 4): load x[i0]",
        "out: f32[4] = pointwise (i0: 4):\n        j0 = indirect(load k[i0], 4)\n        -> load x[j0]",
        "out: f32[4] = scatter sum into x at [j0] of (i0: 4):\n        j0 = indirect(load k[i0], 4)\n"
        "        -> load x[i0]",
    ],
)
def test_nodes_round_trip(line: str) -> None:
    inputs = "    x: f32[4] = input 0\n    k: i64[4] = input 1\n    seed: i64[1] = input 2\n"
    text = f"loops one\n{inputs}    {line}\n    return out"
    program = parse_program(text)
    assert program_text(program) == text
    args = [torch.randn(4), torch.tensor([3, 0, -1, 0]), torch.tensor([42])]
    (out,) = run_program(program, args)
    assert out.dtype == program.nodes[0].out.spec.dtype


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[at 3]",
        "f32[s0 + 2]",
        "f32[4, s0 | 1, 4]",
        "bf16[4 at 2*s0 + 8]",
        "i64[4, 2 | 1, s0 + 4 at 8 @cuda:0]",
    ],
)
def test_specs_round_trip(text: str) -> None:
    assert str(parse_spec(text)) == text
