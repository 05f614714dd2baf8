"""How much independent work a machine wants: what tiling and the splitting of reductions aim for."""

from __future__ import annotations

from kiln.support.target import Target


def wanted_pieces(target: Target) -> int:
    """Pieces of work that keep the machine busy: two per multiprocessor of a GPU, four per thread of a CPU."""
    return 2 * target.multiprocessors if target.is_gpu else 4 * target.threads


def floor_power(value: int) -> int:
    """The largest power of two up to `value`."""
    return 1 << (max(value, 1).bit_length() - 1)
