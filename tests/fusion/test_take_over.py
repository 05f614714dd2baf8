"""Which results are written over an argument: kernels as text, `a` and `b` are dead afterwards."""

from __future__ import annotations

import pytest

from kiln.loops.fusion.kernel_draft import KernelDraft, Reusable
from kiln.loops.fusion.take_over import take_over
from tests.loop_ir.parse import parse_kernel

CASES: dict[str, tuple[str, dict[str, str]]] = {
    "at the index at which it is read": (
        """
        kernel k(a: f32[6, 4] -> r: f32[6, 4]) units (i0: 6)
        phase (i1: 4):
            r[i0, i1] = exp(load a[i0, i1])
        """,
        {"r": "a"},
    ),
    "at another index": (
        """
        kernel k(a: f32[4, 4] -> r: f32[4, 4]) units (i0: 4)
        phase (i1: 4):
            r[i0, i1] = exp(load a[i1, i0])
        """,
        {},
    ),
    "in a phase after the last load": (
        """
        kernel k(a: f32[6, 4] -> r: f32[6, 4]) units (i0: 6)
        local total: f32
        phase (i1: 4):
            total[] = sum over (i1): load a[i0, i1]
        phase (i1: 4):
            v0 = load a[i0, i1]
            r[i0, i1] = mul(v0, load total[])
        """,
        {"r": "a"},
    ),
    "in a phase before a load": (
        """
        kernel k(a: f32[6, 4] -> r: f32[6, 4], s: f32[6]) units (i0: 6)
        phase (i1: 4):
            r[i0, i1] = exp(load a[i0, i1])
        phase (i1: 4):
            s[i0] = sum over (i1): load a[i0, i1]
        """,
        {},
    ),
    "where a mask leaves elements out": (
        """
        kernel k(a: f32[6, 4], x: f32[6, 4] -> r: f32[6, 4]) units (i0: 6)
        phase (i1: 4):
            v0 = gt(load x[i0, i1], f32(0.0))
            v1 = load a[i0, i1] if v0
            r[i0, i1] = exp(v1)
        """,
        {},
    ),
    "read twice, once elsewhere": (
        """
        kernel k(a: f32[4, 4] -> r: f32[4, 4]) units (i0: 4)
        phase (i1: 4):
            v0 = load a[i0, i1]
            r[i0, i1] = add(v0, load a[i1, i0])
        """,
        {},
    ),
    "two results and one argument": (
        """
        kernel k(a: f32[6, 4] -> r: f32[6, 4], s: f32[6, 4]) units (i0: 6)
        phase (i1: 4):
            v0 = load a[i0, i1]
            r[i0, i1] = exp(v0)
            s[i0, i1] = neg(v0)
        """,
        {"r": "a"},
    ),
    "two results and two arguments": (
        """
        kernel k(a: f32[6, 4], b: f32[6, 4] -> r: f32[6, 4], s: f32[6, 4]) units (i0: 6)
        phase (i1: 4):
            v0 = load a[i0, i1]
            v1 = load b[i0, i1]
            r[i0, i1] = add(v0, v1)
            s[i0, i1] = sub(v0, v1)
        """,
        {"r": "a", "s": "b"},
    ),
    "of another dtype": (
        """
        kernel k(a: f32[6, 4] -> r: f64[6, 4]) units (i0: 6)
        phase (i1: 4):
            r[i0, i1] = convert(load a[i0, i1], f64)
        """,
        {},
    ),
    "stored twice": (
        """
        kernel k(a: f32[6, 4] -> r: f32[6, 4]) units (i0: 6)
        phase (i1: 4):
            r[i0, i1] = exp(load a[i0, i1])
        phase (i1: 4):
            r[i0, i1] = f32(1.0)
        """,
        {},
    ),
    "written by the kernel itself": (
        """
        kernel k(x: f32[6, 4] -> a: f32[6, 4], r: f32[6, 4]) units (i0: 6)
        phase (i1: 4):
            v0 = load x[i0, i1]
            a[i0, i1] = neg(v0)
            r[i0, i1] = exp(v0)
        """,
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_over_arguments(name: str) -> None:
    text, expected = CASES[name]
    kernel = parse_kernel(text)
    buffers = {buffer.name: buffer for buffer in kernel.params}
    draft = KernelDraft(
        kernel.name, kernel.units, kernel.phases, kernel.locals, buffers, memory=Reusable(("a", "b")), views=buffers
    )
    made = take_over(draft)
    assert made.overwrites == expected
    assert set(made.views) == buffers.keys() - expected.keys()
