"""Symbolic sizes count as large as a call has shown: a long sum is cut where it would leave a GPU idle."""

from __future__ import annotations

import pytest

from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.support.target import cuda_gpu
from kiln.symbolic import ShapeEnv, symbol
from kiln.tensor.size_hint import ASSUMED_SIZE, SIZE_OF_DATA, large_size_hint, seen_in, size_hint, sizes_seen
from tests.fusion.check import assert_same_values, scheduled

SUM = """
    loops total
        x: f32[s0, 16 @cuda:0] = input 0
        y: f32[@cuda:0] = reduction sum over (i0: s0, i1: 16) keeping (): exp(load x[i0, i1])
        return y
"""
H200 = cuda_gpu((9, 0), 132)


@pytest.mark.parametrize(("rows", "launches"), [(8, 1), (1 << 16, 2)])
def test_a_sum_over_rows(rows: int, launches: int) -> None:
    with sizes_seen({"s0": rows}):
        program = scheduled(SUM, H200)
        assert sum(isinstance(step, KernelLaunch) for step in program.steps) == launches


def test_the_sum_has_the_same_value_for_all_sizes() -> None:
    with sizes_seen({"s0": 1 << 16}):
        for rows in (1, 100, 5000):
            assert_same_values(SUM.replace(" @cuda:0", "").replace("@cuda:0", ""), {"s0": rows})


def test_hints() -> None:
    env = ShapeEnv()
    small, large, data = env.create_symbol(5), env.create_symbol(300), env.create_unbacked()
    with sizes_seen(seen_in(env)):
        assert [size_hint(size) for size in (7, small, large, data)] == [7, ASSUMED_SIZE, 300, SIZE_OF_DATA]
        assert large_size_hint(large) == 4096
    assert size_hint(large) == size_hint(symbol("other")) == ASSUMED_SIZE
