"""Where the buffers of a call lie in one piece of memory, planned ahead with symbolic sizes.

    %6: 4096*batch bytes, steps 2 to 5        block 0: max(4096*batch, 512*batch) bytes
    %7: 512*batch bytes, steps 6 to 8         block 0
    %9: 512*batch bytes, steps 5 to 8         block 1: 512*batch bytes

Buffers that live at different times share a block; a block is as large as the largest of its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from kiln.plan.plan import Slot
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Symbol, ceil_div, evaluate, sym_max

ALIGNMENT = 64
"""Bytes: of the memory, and of every block in it."""


@final
@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """`size` bytes, from step `first` to step `last`, inclusive."""

    slot: Slot
    size: Int
    first: int
    last: int


@final
@dataclass(frozen=True, slots=True)
class Arena:
    """`sizes` of the blocks in bytes, multiples of the alignment, and the block of each slot."""

    sizes: tuple[Int, ...]
    block_of: Mapping[Slot, int]

    @property
    def total(self) -> Int:
        total: Int = 0
        for size in self.sizes:
            total = total + size
        return total


def plan_arena(buffers: Sequence[LiveBuffer], typical: Mapping[Symbol, int]) -> Arena:
    """Each buffer into the free block whose size is nearest; `typical` sizes serve for comparing only."""

    def about(size: Int) -> int:
        return evaluate(size, dict(typical)) if isinstance(size, Expr) else size

    sizes: list[Int] = []
    busy_until: list[int] = []
    block_of: dict[Slot, int] = {}
    for buffer in sorted(buffers, key=lambda buffer: buffer.first):
        size = ceil_div(buffer.size, ALIGNMENT) * ALIGNMENT
        free = [block for block, last in enumerate(busy_until) if last < buffer.first]
        if free:
            block = min(free, key=lambda block: abs(about(sizes[block]) - about(size)))
            sizes[block] = sym_max(sizes[block], size)
            busy_until[block] = buffer.last
        else:
            block = len(sizes)
            sizes.append(size)
            busy_until.append(buffer.last)
        block_of[buffer.slot] = block
    return Arena(tuple(sizes), block_of)
