"""The maximum of a long row and the sum of exp(x - maximum) from one pass over it.

    phase (i1: 50257): top[] = amax over (i1): load x[i0, i1]
    phase (i1: 50257): total[] = sum over (i1): exp(sub(load x[i0, i1], load top[]))

    phase (i1: 50257): top[] = amax over (i1) with total of exp: load x[i0, i1]

The sum so far is that of exp(x - maximum so far), and is multiplied by exp(old - new) where the maximum grows: Milakov
and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867. Here each thread does so for the
points of a block that it has in its registers, one rescaling for all of them, and what the threads have is brought to
the maximum of the row at the end. (A row that is in registers as a whole is read once in any case.)

The exponentials are the machine's; `narrow.py` says why that is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from kiln.loops.body.analyses import accesses
from kiln.loops.codegen.triton.softmax_pattern import exp_below_largest
from kiln.loops.codegen.triton.tiles import Tiling
from kiln.loops.kernel.analyses import phase_writes
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.program.nodes import ReduceOp
from kiln.symbolic import is_static

LEAST_LAYERS = 4
"""With fewer points at once a thread rescales so often that a second pass costs no more."""


def with_one_pass_sums(kernel: KernelIR, tiling: Tiling, layers: int) -> KernelIR:
    """`kernel` with sums of exp beside their maxima where programs go through rows in a loop."""
    if layers < LEAST_LAYERS or len(tiling.dims) != 1 or not tiling.dims[0].looped or tiling.shared is not None:
        return kernel
    if not is_static(tiling.dims[0].size):  # of no element the sum is 0, not NaN
        return kernel
    place = 0
    while place < len(kernel.phases):
        joined = _joined(kernel, place)
        place += 1 if joined is None else 0
        kernel = joined or kernel
    return kernel


def _joined(kernel: KernelIR, place: int) -> KernelIR | None:
    """`kernel` without phase number `place`, whose sum stands beside its maximum; None: it is no such sum."""
    phase = kernel.phases[place]
    (effect, *more) = phase.effects or (None,)
    if more or not isinstance(effect, Accumulate) or effect.op is not ReduceOp.SUM or effect.running is not None:
        return None
    largest = exp_below_largest(kernel, phase, phase.body.results[effect.result])
    if largest is None or largest.phase >= place:
        return None
    first = kernel.phases[largest.phase]
    maximum = first.effects[largest.effect]
    assert isinstance(maximum, Accumulate)
    alike = maximum.index == effect.index == () and maximum.exp_sum is None and set(effect.over) == set(maximum.over)
    fed = list(_fed(kernel))
    dtypes = {one.name: one.dtype for one in kernel.locals}
    once = fed.count(effect.target) == fed.count(maximum.target) == 1
    narrow = dtypes[effect.target] == dtypes[maximum.target] == torch.float32
    between = {name for one in kernel.phases[largest.phase : place] for name in phase_writes(one)}
    if not alike or not once or not narrow or between & {one.buffer for one in accesses(largest.value)}:
        return None
    effects = list(first.effects)
    effects[largest.effect] = replace(maximum, exp_sum=effect.target)
    phases: list[Phase] = list(kernel.phases)
    phases[largest.phase] = replace(first, effects=tuple(effects))
    del phases[place]
    return replace(kernel, phases=tuple(phases))


def _fed(kernel: KernelIR) -> Iterator[str]:
    """Targets of all effects."""
    for phase in kernel.phases:
        for effect in phase.effects:
            yield effect.target
