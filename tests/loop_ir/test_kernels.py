"""Verifier, analyses and canonical names of kernels."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.body.analyses import accesses, flops
from kiln.loops.body.indexing import axis_bounds, stride_along
from kiln.loops.body.verify import InvalidLoops
from kiln.loops.kernel.analyses import kernel_reads, kernel_symbols
from kiln.loops.kernel.canonical import canonical
from kiln.loops.kernel.text import kernel_text
from kiln.loops.kernel.verify import verify_kernel
from kiln.loops.program.verify import verify_program
from kiln.symbolic import symbol
from kiln.tensor.spec import TensorSpec
from tests.loop_ir.parse import parse_kernel, parse_program

i0, i1, s0 = symbol("i0"), symbol("i1"), symbol("s0")

CENTRE = """
    kernel centre(x: f32[s0, 64] -> out: f32[s0, 64]; s0) units (i0: s0)
        local total: f32
        phase (i1: 64 vector):
            total[] = sum over (i1): load x[i0, i1]
        phase (i1: 64 vector):
            out[i0, i1] = sub(load x[i0, i1], mul(load total[], f32(0.015625)))
"""


def test_canonical_names_ignore_names(golden: object) -> None:
    kernel = parse_kernel(CENTRE)
    renamed = CENTRE.replace("total", "sum_of_row").replace("x", "y").replace("i1", "i7").replace("s0", "s3")
    made, key = canonical(kernel)
    assert canonical(parse_kernel(renamed)) == (made, key)
    golden(kernel_text(made))  # type: ignore[operator]


def test_canonical_order_ignores_order_of_ops() -> None:
    first = parse_kernel(CENTRE)
    second = parse_kernel(
        CENTRE.replace(
            "            out[i0, i1] = sub(load x[i0, i1], mul(load total[], f32(0.015625)))",
            "            v0 = mul(load total[], f32(0.015625))\n            out[i0, i1] = sub(load x[i0, i1], v0)",
        )
    )
    assert first != second
    assert canonical(first) == canonical(second)


def test_analyses() -> None:
    kernel = parse_kernel(CENTRE)
    body = kernel.phases[1].body
    assert [access.buffer for access in accesses(body)] == ["x", "total"]
    assert flops(body) == 2
    assert kernel_reads(kernel) == {"x"}
    assert kernel_symbols(kernel) == {s0}
    spec = TensorSpec(torch.float32, (s0, 64), (64, 1))
    assert stride_along(spec, (i0, i1), i0) == 64
    assert stride_along(spec, (i1 // 2, i0), i1) is None
    assert axis_bounds(kernel.phases[0].axes).of(2 * i1 + 1) == (1, 127)


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("K1", "total", "x"),
        ("K2", "out[i0, i1]", "out[i0]"),
        ("K2", "out[i0, i1] =", "x[i0, i1] ="),
        ("K3", "total[] = sum", "total[i1] = sum"),
        ("K4", "total[] = sum over (i1): load x[i0, i1]", "total[] = sum over (i1): load total[]"),
        ("K5", "; s0)", ")"),
        ("K6", "phase (i1: 64 vector):\n            out", "phase (i0: 64 vector):\n            out"),
        ("B3", "mul(load total[], f32(0.015625))", "mul(load total[], f64(0.015625))"),
        ("B4", "sub(load x[i0, i1]", "sub(load x[i0, i2]"),
        ("B5", "sub(load x[i0, i1]", "sub(load x[i0]"),
    ],
)
def test_verifier_names_the_rule(rule: str, old: str, new: str) -> None:
    verify_kernel(parse_kernel(CENTRE))
    text = CENTRE.replace(old, new)
    if rule == "K3":
        text = text.replace("local total", "local total(i1: 64)")
    with pytest.raises(InvalidLoops, match=f"rule {rule} "):
        verify_kernel(parse_kernel(text))


def test_verifier_of_programs() -> None:
    text = """
        loops p
            x: f32[4] = input 0
            y: f32[4] = pointwise (i0: 4): neg(load x[i0])
            return y
    """
    verify_program(parse_program(text))
    for rule, old, new in (("P1", "y: f32", "x: f32"), ("P4", "return y", "return z"), ("P2", "load x", "load y")):
        broken = text.replace(old, new)
        with pytest.raises((InvalidLoops, KeyError), match=f"rule {rule} |y"):
            verify_program(parse_program(broken))
