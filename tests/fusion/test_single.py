"""Each kind of node as a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.loops.kernel.launches.text import kernel_program_text
from tests.fusion.check import assert_same_values, scheduled

POINTWISE = """
loops one
    x: f32[s0, 8] = input 0
    b: f32[8] = input 1
    out: f32[s0, 8] = pointwise (i0: s0, i1: 8): add(load x[i0, i1], load b[i1])
    return out
"""
REDUCTION = """
loops one
    x: f32[s0, 8, 5 | 64, 1, 9] = input 0
    out: f32[s0, 5] = reduction sum over (i1: 8) keeping (i0: s0, i2: 5): load x[i0, i1, i2]
    return out
"""
FULL = """
loops one
    x: f32[s0, 8] = input 0
    out: f32[] = reduction amax over (i0: 3, i1: 8) keeping (): load x[i0, i1]
    return out
"""
ARGMAX = """
loops one
    x: f32[4, s0] = input 0
    out: i64[4] = reduction argmax over (i1: s0) keeping (i0: 4): load x[i0, i1]
    return out
"""
SCAN = """
loops one
    x: f32[4, s0] = input 0
    out: f32[4, s0] = scan sum along i1 of (i0: 4, i1: s0): exp(load x[i0, i1])
    return out
"""
SCATTER = """
loops one
    x: f32[4, s0] = input 0
    at: i64[6] = input 1
    y: f32[6, s0] = input 2
    out: f32[4, s0] = scatter sum into x at [j0, i1] of (i0: 6, i1: s0):
        j0 = indirect(load at[i0], 4)
        -> load y[i0, i1]
    return out
"""
ROWS_BY_DATA = """
loops one
    at: i64[s0, 6] = input 0
    x: f32[4, 32] = input 1
    out: f32[s0, 32] = reduction sum over (i1: 6) keeping (i0: s0, i2: 32):
        j0 = indirect(load at[i0, i1], 4)
        -> load x[j0, i2]
    return out
"""
PAIRS = """
loops pairs
    a: f32[s0, 3] = input 0
    b: f32[40, 3] = input 1
    away: f32[s0, 40, 3] = pointwise (i0: s0, i1: 40, i2: 3): sub(load a[i0, i2], load b[i1, i2])
    return away
"""
NEAREST = """
loops nearest
    a: f32[s0, 3] = input 0
    b: f32[40, 3] = input 1
    far: f32[s0, 40] = reduction sum over (i2: 3) keeping (i0: s0, i1: 40):
        v0 = sub(load a[i0, i2], load b[i1, i2])
        -> mul(v0, v0)
    near: f32[s0] = reduction amin over (i1: 40) keeping (i0: s0): load far[i0, i1]
    return near
"""
PROGRAMS = {
    "pairs of points": PAIRS,
    "nearest of points": NEAREST,
    "rows by data": ROWS_BY_DATA,
    "pointwise": POINTWISE,
    "reduction": REDUCTION,
    "full": FULL,
    "argmax": ARGMAX,
    "scan": SCAN,
    "scatter": SCATTER,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden: Callable[..., None]) -> None:
    golden(kernel_program_text(scheduled(PROGRAMS[name])))


@pytest.mark.parametrize("size", [0, 1, 7, 64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, size: int) -> None:
    if size == 0 and name == "argmax":
        pytest.skip("eager refuses an index of nothing")
    assert_same_values(PROGRAMS[name], {"s0": max(size, 3) if name == "full" else size})


def test_a_scatter_without_an_inner_loop() -> None:
    """Each point has an element of its own."""
    assert_same_values(
        """
        loops one
            x: f32[4, 3] = input 0
            y: f32[4, 3] = input 1
            out: f32[4, 3] = scatter sum into x at [i0, i1] of (i0: 4, i1: 3): load y[i0, i1]
            return out
        """,
        {},
    )
