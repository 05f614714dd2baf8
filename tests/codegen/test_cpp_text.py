"""The C++ of a few kernels as text: loops, accumulators, tiles, masks; and equal sources of equal kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.support.target import Target
from tests.loop_ir.parse import parse_kernel

TARGET = Target(vector_bytes=64)
KERNELS = {
    "norm": """
        kernel norm(x: f32[s0, 100], w: f32[100] -> out: f32[s0, 100]; s0) units (i0: s0)
            local row(i1: 100): f32
            local square: f32
            phase (i1: 100 vector):
                v0 = load x[i0, i1]
                row[i1] = v0
                square[] = sum over (i1): mul(v0, v0)
            phase (i1: 100 vector):
                v0 = rsqrt(add(mul(load square[], f32(0.01)), f32(1e-05)))
                out[i0, i1] = mul(mul(load row[i1], v0), load w[i1])
    """,
    "columns": """
        kernel columns(x: bf16[s0, 64] -> out: f32[64]; s0) units (i0: 64) strip 32
            local total: f32
            phase (i1: s0):
                total[] = sum over (i1): convert(load x[i1, i0], f32)
            phase ():
                out[i0] = load total[]
    """,
    "transposed": """
        kernel transposed(x: f32[64, s0], m: b8[s0] -> out: f32[s0, 64]; s0) units (i0: s0, i1: 64) strip 64
            phase ():
                out[i0, i1] = where(load m[i0], load x[i1, i0], f32(0.0))
    """,
    "padded": """
        kernel padded(x: f32[s0] -> out: f32[s0 + 2]; s0) units (i0: s0 + 2) strip 256
            phase ():
                v0 = bitwise_and(test(1 <= i0), test(i0 <= s0))
                out[i0] = load x[i0 - 1] if v0
    """,
    "band": """
        kernel band(x: f32[s0, 100] -> out: f32[s0, 100]; s0) units (i0: s0)
            phase (i1: 100 vector):
                v0 = bitwise_and(test(i0 <= i1), test(i1 < i0 + 3))
                out[i0, i1] = mul(where(v0, load x[i0, i1], f32(0.0)), f32(2.0))
    """,
    "gathered": """
        kernel gathered(w: f32[10, 24], at: i64[6] -> out: f32[6, 24]) units (i0: 6)
            phase (i1: 24 vector):
                j0 = indirect(load at[i0], 10)
                out[i0, i1] = load w[j0, i1]
    """,
}


def function_text(text: str) -> str:
    """The kernel function without the prelude, under the name `k`."""
    kernel = print_kernel(parse_kernel(text), TARGET).kernel
    source = kernel.source[kernel.source.index("\n// kernel") + 1 :]
    return source.replace(kernel.symbol, "k")


@pytest.mark.parametrize("name", KERNELS)
def test_text(name: str, golden: Callable[[object], None]) -> None:
    golden(function_text(KERNELS[name]))


def test_equal_kernels_have_equal_sources() -> None:
    text = KERNELS["norm"]
    renamed = text.replace("square", "total").replace("x", "y").replace("i1", "i7").replace("s0", "s4")
    first, second = (print_kernel(parse_kernel(source), TARGET).kernel for source in (text, renamed))
    assert first == second
    assert print_kernel(parse_kernel(text.replace("0.01", "0.02")), TARGET).kernel.symbol != first.symbol


def test_only_the_functions_that_are_used_are_written() -> None:
    source = print_kernel(parse_kernel(KERNELS["columns"]), TARGET).kernel.source
    assert "KILN_HAS_load" in source and "widen_bf16" in source
    assert not any(f"KILN_HAS_{name}\n" in source for name in ("exp", "log", "philox", "transpose", "scatter"))
    assert "#include" not in source
