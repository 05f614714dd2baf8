"""Pointwise kernels over long rows: a program goes through a row in a loop.

    units (i0: 4096, i1: 50257)   phase ():             out[i0, i1] = sub(load x[i0, i1], load top[i0])
    units (i0: 4096)              phase (i1: 50257):    out[i0, i1] = sub(load x[i0, i1], load top[i0])

For rows that are no multiple of the widest access, or from which single elements are loaded (`top[i0]`). A flat index
of such rows costs a division per element, loads `top[i0]` for each of them, and hides from Triton what is contiguous
where rows are padded: [4096, 50257 | 50264, 1] goes element by element. In a loop all turns but the last need no
mask, accesses have 16 bytes, and `top[i0]` is loaded once. Other rows stay flat: their blocks are as long as the
machine wants them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.kernel.facts import KernelFacts
from kiln.loops.kernel.kernel import KernelIR, Phase, Store
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.occupancy import wanted_pieces
from kiln.loops.kernel.tiling import VECTOR_BYTES, WHOLE_BLOCK
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import product
from kiln.tensor.size_hint import large_size_hint

LONG_ROW = 1024
"""Elements that keep a program busy."""


@final
@dataclass(frozen=True, slots=True)
class LoopRows:
    """The last unit axis moves inside of a unit, where it is such a row and there are enough rows."""

    name: str = "loop-rows"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        kernel = with_looped_rows(mapped.kernel, target)
        return replace(mapped, kernel=kernel), int(kernel is not mapped.kernel)


def with_looped_rows(kernel: KernelIR, target: Target) -> KernelIR:
    """`kernel` with its last unit axis as an axis of its phase, or `kernel` itself."""
    if len(kernel.phases) != 1 or kernel.phases[0].axes or kernel.locals or len(kernel.units) < 2:
        return kernel
    (phase,), (*rest, row), facts = kernel.phases, kernel.units, KernelFacts(kernel)
    plain = all(isinstance(effect, Store) and effect.combine is None for effect in phase.effects)
    if not plain or not isinstance(row.size, int) or row not in facts.free_units:
        return kernel
    odd = row.size * facts.narrowest_bytes() % VECTOR_BYTES != 0
    long = row.size > WHOLE_BLOCK if odd else _has_numbers(phase, row) and _fills_blocks(row.size)
    enough = large_size_hint(product(axis.size for axis in rest)) >= wanted_pieces(target)
    if not long or not enough or facts.contiguous() is not row.symbol:
        return kernel
    return replace(kernel, units=tuple(rest), phases=(replace(phase, axes=(row,)),))


def _has_numbers(phase: Phase, row: Axis) -> bool:
    """Are there loads of one element per row?"""
    used = [symbols_of(*access.index) for access in accesses(phase.body)]
    return any(symbols and row.symbol not in symbols for symbols in used)


def _fills_blocks(size: int) -> bool:
    """Is a row long, and its last block at most an eighth of it short?"""
    block = min(1 << (size - 1).bit_length(), WHOLE_BLOCK)
    return size >= LONG_ROW and 8 * (-size % block) <= size
