"""Blocked sums: blocks of float32 numbers are summed in float32, their sums in float64.

    64 additions per lane                     then
    sum0_p0 = sum0_p0 + v0;                   sum0_p_all = sum0_p_all + __builtin_convertvector(sum0_p0, f64v);
    store(row_chain + i1, load(...) + v0);    add_row(row, row_chain, count);

The error is that of a block of 64, whatever the length of the sum, and close to eager's, which also sums in blocks;
converting each addend to float64 would halve the speed. Sums of at most 64 additions per lane are one block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.loops.body.indexing import Axis
from kiln.loops.kernel.kernel import Accumulate
from kiln.loops.program.nodes import ReduceOp
from kiln.symbolic import is_static, product

BLOCK = 64
"""Additions after which float32 has lost no more than eager's blocked sums."""
ROW_BLOCK = 32
"""For rows, where no tree over copies and lanes follows: rms error at 64 x 10000 is 1.3 times eager's (64: 1.7)."""
WORTH = 16
"""Shorter blocks cost more in float64 additions than they save."""


def is_short(effect: Accumulate, lanes: int) -> bool:
    """Does each of `lanes` that share a sum add so few numbers that float32 is precise enough?"""
    points = product(axis.size for axis in effect.over)
    return is_static(points) and points <= (BLOCK * lanes if lanes > 1 else ROW_BLOCK)


def sums_in_blocks(op: ReduceOp, value: torch.dtype, accumulated: torch.dtype) -> bool:
    return op is ReduceOp.SUM and value == torch.float32 and accumulated == torch.float64


def worth_blocks(axes: Sequence[Axis], vector: int, lanes: int) -> bool:
    """Is the vectorised loop the innermost and long enough for blocks?"""
    size = axes[vector].size
    return vector == len(axes) - 1 and (not is_static(size) or size >= WORTH * lanes)


def loop_of_blocks(effect: Accumulate, axes: Sequence[Axis], vector: int | None) -> int | None:
    """For sums into a row in memory: the reduced loop that runs in blocks, around those over the row."""
    reduced = [position for position, axis in enumerate(axes) if axis in effect.over]
    if vector is None or vector != len(axes) - 1 or effect.running is not None or not reduced:
        return None
    last = reduced[-1]
    if len(reduced) != last + 1 or last == vector:
        return None
    size = axes[last].size
    return last if not is_static(size) or size >= WORTH else None
