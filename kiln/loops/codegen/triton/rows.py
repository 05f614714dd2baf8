"""Pointwise kernels over long rows, of odd length or with numbers of their own: a program goes through a row.

    units (i0: 4096, i1: 50257)   phase ():             out[i0, i1] = sub(load x[i0, i1], load top[i0])
    units (i0: 4096)              phase (i1: 50257):    out[i0, i1] = sub(load x[i0, i1], load top[i0])

A flat index of such rows takes a division per element, loads the numbers of the row for each of them, and tells Triton
nothing of neighbours where rows are padded: [4096, 50257 | 50264, 1] goes element by element. In a loop all turns but
the last have no mask, their accesses 16 bytes, and the numbers of the row are loaded once. Rows whose elements fill
vectors stay flat unless they have numbers (one load, and what is made of it, for each element): their blocks are as
long as the machine wants them.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.loops.body.analyses import accesses
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.codegen.triton.facts import Facts
from kiln.loops.codegen.triton.tiles import VECTOR_BYTES, WHOLE_BLOCK
from kiln.loops.kernel.kernel import KernelIR, Phase, Store
from kiln.loops.kernel.occupancy import wanted_pieces
from kiln.support.target import Target
from kiln.symbolic import product
from kiln.tensor.size_hint import large_size_hint

LONG_ROW = 1024
"""Elements that keep a program busy."""


def with_looped_rows(kernel: KernelIR, target: Target) -> KernelIR:
    """`kernel` with its last unit axis inside of a unit, where that is a long odd row and there are enough rows."""
    if len(kernel.phases) != 1 or kernel.phases[0].axes or kernel.locals or len(kernel.units) < 2:
        return kernel
    (phase,), (*rest, row), facts = kernel.phases, kernel.units, Facts(kernel)
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
    """Are there loads of one number for each row?"""
    used = [symbols_of(*one.index) for one in accesses(phase.body)]
    return any(symbols and row.symbol not in symbols for symbols in used)


def _fills_blocks(size: int) -> bool:
    """Is a row long, and few elements of its last block not there?"""
    block = min(1 << (size - 1).bit_length(), WHOLE_BLOCK)
    return size >= LONG_ROW and 8 * (-size % block) <= size
