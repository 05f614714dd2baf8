"""Bounds of loop indices that are other sizes."""

from __future__ import annotations

import torch

from kiln.loops.body.indexing import Axis, axis_bounds, linear_index
from kiln.symbolic import BoundAnalysis, Range, simplify_in_ranges, symbol
from kiln.tensor.spec import TensorSpec, contiguous_strides

I, J, K = symbol("i0"), symbol("i1"), symbol("i2")
N, M, L = symbol("s0"), symbol("s1"), symbol("s2")
LOOPS = axis_bounds([Axis(I, N), Axis(J, M), Axis(K, L)])


def test_division_by_the_size_of_a_loop() -> None:
    flat = I * M * L + J * L + K
    assert simplify_in_ranges(flat // L, LOOPS) == I * M + J
    assert simplify_in_ranges((flat // L) % M, LOOPS) == J
    assert simplify_in_ranges((flat // L) // M, LOOPS) == I
    assert simplify_in_ranges(flat % L, LOOPS) == K


def test_an_index_that_may_reach_the_size_stays() -> None:
    for index in (K + 1, 2 * K, J + K, K * K, L - K, K // 2 + K):
        assert simplify_in_ranges(index // L, LOOPS) == index // L


def test_an_index_that_falls_with_a_loop() -> None:
    assert LOOPS.is_below(L - 1 - K, L)
    assert not LOOPS.is_below(L - K, L)
    assert not LOOPS.is_below(J - K, M - 1)


def test_end_that_depends_on_another_loop() -> None:
    inner = axis_bounds([Axis(I, N), Axis(J, N - I)])
    assert inner.is_below(J, N)
    assert not inner.is_below(J, N - 1)


def test_squares_are_not_taken_to_their_ends() -> None:
    bounds = BoundAnalysis({K: Range(0), L: Range(0)}, {K: L - 1})
    assert bounds.is_below(K, L) and not bounds.is_below(K * K, L)


def test_an_axis_taken_apart_and_put_together_is_itself() -> None:
    spec = TensorSpec(torch.float32, (N, M, L), contiguous_strides((N, M, L)))
    assert linear_index(spec, ((I // L) // M, (I // L) % M, I % L)) == I
