"""A scheduled kernel: units of work, and the phases that each unit goes through.

    kernel add_norm(x, r, w, b -> out)  units (i0: 4096)
        phase (i1: 1024):
            t[i1]  = add(load x[i0, i1], load r[i0, i1])          # local row
            total += load t[i1]                                   # SUM
        phase ():
            mean   = mul(load total, 1/1024)                      # local number
        phase (i1: 1024):
            out[i0, i1] = ...

The units are what is split over threads (C++) or programs (Triton); they are independent. A phase is a loop nest
inside a unit; its statements run in order at each point. Locals never reach memory: a number (no axes), a row
indexed by inner axes, or accumulators (a reduction with kept inner axes has one accumulator per point of them).
A persistent reduction is two phases over the same axes; a looped one is the same text with larger axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from kiln.loops.body.body import Index, LoopBody
from kiln.loops.body.indexing import Axis
from kiln.loops.program.nodes import Buffer, ReduceOp
from kiln.symbolic import Int


@final
@dataclass(frozen=True, slots=True)
class Local:
    """Storage private to a unit: a number (`axes` empty) or a row over inner axes."""

    name: str
    dtype: torch.dtype
    axes: tuple[Axis, ...]


@final
@dataclass(frozen=True, slots=True)
class Store:
    """target[index] = value (or combined into it, atomically if `combine` and units may collide).

    `target` is a buffer or a local. The value is result number `result` of the phase's body.
    """

    target: str
    index: Index
    result: int
    combine: ReduceOp | None = None


@final
@dataclass(frozen=True, slots=True)
class Accumulate:
    """Combine result number `result` of the phase's body into the accumulator `target`.

    `over` are the phase's axes that are reduced; the others index the accumulator. Its start value is that of `op`;
    it may be read by later phases. `running`: a scan; the value after this point goes to `store_to` at `index`.
    `exp_sum`: beside a maximum, an accumulator like it, of the sum of exp(value - the whole maximum). It is NaN where
    the maximum is infinite or NaN, as it is in two passes.
    """

    target: str
    op: ReduceOp
    over: tuple[Axis, ...]
    index: Index
    result: int
    running: Store | None = None
    exp_sum: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Phase:
    """One loop nest: at each point of `axes` (outermost first) run `body`, then the effects in order.

    `vector`: position in `axes` of the axis that is vectorised, or None.
    Within one point, loads of a local or buffer that an earlier effect of the same point wrote are not allowed: the
    schedule forwards such values inside the body.
    """

    axes: tuple[Axis, ...]
    body: LoopBody
    effects: tuple[Store | Accumulate, ...]
    vector: int | None = None


@final
@dataclass(frozen=True, slots=True)
class KernelIR:
    """A kernel for one device. `params` are buffers in the order of its arguments, `writes` those it writes.

    `ints`: the size symbols it takes as arguments. `grain`: units that are worth a thread.
    Sizes of phase axes may use unit symbols: `(i1: min(32, n0 - 32*i0))` is what is left for the last unit.
    Values that do not change along an axis are computed outside of its loop by whoever prints the kernel.
    `strip`: if not 0, the last unit axis is the vectorised one: up to `strip` consecutive units of it go through each
    phase together, the innermost loop of the phase being over them (so a local has one copy per unit of the strip, and
    no phase names a vector axis). Pointwise kernels and column reductions are of this kind. 0: units go one by one.
    """

    name: str
    units: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    locals: tuple[Local, ...]
    params: tuple[Buffer, ...]
    writes: frozenset[str]
    ints: tuple[Int, ...]
    grain: Int = 1
    strip: int = 0
    origin: str = ""
