"""Questions about the layout of a tensor, as truths over symbolic sizes and strides.

    sizes (s0, s1), strides (s1, 1)      is_contiguous: True, by the form alone
    sizes (s0, s1), strides (s2, 1)      any(s0*s1 == 0, s0 == 1, s2 == s1)

Semantics are those of `c10::TensorImpl`; a dimension of size 1 may have any stride. The truth is not decided yet, so
that an unused answer costs no guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import Int, product
from kiln.symbolic.relation import rel_eq, rel_le, rel_ne
from kiln.symbolic.values import Truth, all_of, any_of, decide_truth

Sizes = Sequence[Int]
Question = Callable[[ShapeEnv, Sizes, Sizes], Truth]

CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
"""Dimensions from the fastest to the slowest, by rank."""


def dense_in_order(sizes: Sizes, strides: Sizes, order: Sequence[int]) -> Truth:
    """Are the dimensions packed without gaps, `order[0]` varying fastest?"""
    parts: list[Truth] = []
    expected: Int = 1
    for dim in order:
        parts.append(any_of(rel_eq(strides[dim], expected), rel_eq(sizes[dim], 1)))
        expected = expected * sizes[dim]
    return all_of(*parts)


def is_contiguous(env: ShapeEnv, sizes: Sizes, strides: Sizes) -> Truth:
    packed = dense_in_order(sizes, strides, range(len(sizes) - 1, -1, -1))
    return any_of(packed, rel_eq(product(sizes), 0))


def _channels_last(rank: int) -> Question:
    def question(env: ShapeEnv, sizes: Sizes, strides: Sizes) -> Truth:
        return len(sizes) == rank and dense_in_order(sizes, strides, CHANNELS_LAST[rank])

    return question


def _channels_last_strides(rank: int) -> Question:
    def question(env: ShapeEnv, sizes: Sizes, strides: Sizes) -> Truth:
        if len(sizes) != rank:
            return False
        parts: list[Truth] = [rel_ne(strides[1], 0)]
        least: Int = 0
        for dim in CHANNELS_LAST[rank]:
            parts += [rel_ne(sizes[dim], 0), rel_le(least, strides[dim])]
            if dim == 0:
                # N111 tensors, and any whose batch and channel strides agree, count as contiguous instead.
                parts.append(rel_ne(least, strides[1]))
            least = strides[dim] * sizes[dim]
        return all_of(*parts)

    return question


def is_non_overlapping_and_dense(env: ShapeEnv, sizes: Sizes, strides: Sizes) -> Truth:
    """Is it packed in some order of dimensions? Decided at once, because the order is part of the answer."""
    contiguous = is_contiguous(env, sizes, strides)
    if contiguous is True:
        return True
    if not all(map(env.has_hint, (*sizes, *strides))):
        return contiguous
    # As in torch, dimensions of size 0 and 1 come last, the others by stride.
    order = sorted(range(len(sizes)), key=lambda dim: (env.hint(sizes[dim]) < 2, env.hint(strides[dim])))
    if decide_truth(env, any_of(dense_in_order(sizes, strides, order), contiguous), None):
        return True
    for faster, slower in pairwise(order):
        env.decide(rel_le(strides[faster], strides[slower]))
    return False


LAYOUT_QUESTIONS: Mapping[str, Question] = {
    "is_contiguous": is_contiguous,
    "is_channels_last_contiguous_2d": _channels_last(4),
    "is_channels_last_contiguous_3d": _channels_last(5),
    "is_channels_last_strides_2d": _channels_last_strides(4),
    "is_channels_last_strides_3d": _channels_last_strides(5),
    "is_non_overlapping_and_dense": is_non_overlapping_and_dense,
}
