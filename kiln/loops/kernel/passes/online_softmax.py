"""Online softmax: the maximum of a long row and the sum of exp(x - maximum) in one pass over it.

    phase (i1: 50257): top[] = amax over (i1): load x[i0, i1]
    phase (i1: 50257): total[] = sum over (i1): exp(sub(load x[i0, i1], load top[]))

    phase (i1: 50257): top[] = amax over (i1) with total of exp: load x[i0, i1]

The running sum is that of exp(x - running maximum), multiplied by exp(old - new) where the maximum grows: Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867. Here each thread does so for the points
of a block that it holds in registers, with one rescaling for all of them; the threads' results are brought to the
maximum of the row at the end. A row that fits into registers is read once in any case.

The exponentials are the machine's; `fast_math.py` says why that is accurate enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import accesses
from kiln.loops.kernel.analyses import phase_writes
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.softmax_pattern import exp_below_maximum
from kiln.loops.kernel.tiling import Tiling
from kiln.loops.program.nodes import ReduceOp
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import is_static


@final
@dataclass(frozen=True, slots=True)
class OnlineSoftmax:
    """`least_layers`: with fewer accesses per thread and block, rescaling costs as much as a second pass."""

    name: str = "online-softmax"
    least_layers: int = 4

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        if mapped.tiling is None or mapped.tiling.layers < self.least_layers or not _loops_over_rows(mapped.tiling):
            return mapped, 0
        kernel, position = mapped.kernel, 0
        while position < len(kernel.phases):
            joined = _joined(kernel, position)
            position += 1 if joined is None else 0
            kernel = joined or kernel
        return replace(mapped, kernel=kernel), len(mapped.kernel.phases) - len(kernel.phases)


def _loops_over_rows(tiling: Tiling) -> bool:
    """Do programs go through rows in a loop? Not those that may be empty: their sum is 0, not NaN."""
    looped = len(tiling.dims) == 1 and tiling.dims[0].looped and tiling.shared is None
    return looped and is_static(tiling.dims[0].size)


def _joined(kernel: KernelIR, position: int) -> KernelIR | None:
    """`kernel` with the sum of phase number `position` beside its maximum; None: it is no such sum."""
    phase = kernel.phases[position]
    (effect, *more) = phase.effects or (None,)
    if more or not isinstance(effect, Accumulate) or effect.op is not ReduceOp.SUM or effect.running is not None:
        return None
    found = exp_below_maximum(kernel, phase, phase.body.results[effect.result])
    if found is None or found.phase >= position:
        return None
    first = kernel.phases[found.phase]
    maximum = first.effects[found.effect]
    assert isinstance(maximum, Accumulate)
    alike = maximum.index == effect.index == () and maximum.exp_sum is None and set(effect.over) == set(maximum.over)
    fed = [other.target for each in kernel.phases for other in each.effects]
    dtypes = {local.name: local.dtype for local in kernel.locals}
    once = fed.count(effect.target) == fed.count(maximum.target) == 1
    narrow = dtypes[effect.target] == dtypes[maximum.target] == torch.float32
    written = {name for between in kernel.phases[found.phase : position] for name in phase_writes(between)}
    if not alike or not once or not narrow or written & {load.buffer for load in accesses(found.value)}:
        return None
    effects = list(first.effects)
    effects[found.effect] = replace(maximum, exp_sum=effect.target)
    phases: list[Phase] = list(kernel.phases)
    phases[found.phase] = replace(first, effects=tuple(effects))
    del phases[position]
    return replace(kernel, phases=tuple(phases))
