"""A scheduled kernel: units of work, and the phases that each unit goes through.

    kernel add_norm(x, r, w, b -> out)  units (i0: 4096)
        phase (i1: 1024):
            t[i1]  = add(load x[i0, i1], load r[i0, i1])          # local row
            total += load t[i1]                                   # SUM
        phase ():
            mean   = mul(load total, 1/1024)                      # local number
        phase (i1: 1024):
            out[i0, i1] = ...

Units are independent; they are split over threads (C++) or programs (Triton). A phase is a loop nest inside a unit; its
statements run in order at each point. Locals never reach memory: a number (no axes), a row indexed by inner axes, or
accumulators (a reduction with kept inner axes has one per point of them).
"""

from __future__ import annotations

from typing import final

import torch

from kiln.loops.body.body import Index, LoopBody
from kiln.loops.body.indexing import Axis
from kiln.loops.program.nodes import Buffer, ReduceOp
from kiln.support.records import dataclass
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

    `target` is a buffer or a local; the value is result number `result` of the phase's body.
    """

    target: str
    index: Index
    result: int
    combine: ReduceOp | None = None


@final
@dataclass(frozen=True, slots=True)
class Accumulate:
    """Combine result number `result` of the phase's body into the accumulator `target`.

    `over`: the phase's axes that are reduced; the others index the accumulator. It starts from the identity of `op`.
    `running`: a scan; the value after each point is stored as it says. `exp_sum`: next to a maximum, the accumulator of
    the sum of exp(value - maximum), NaN where the maximum is infinite or NaN, as in two passes.
    """

    target: str
    op: ReduceOp
    over: tuple[Axis, ...]
    index: Index
    result: int
    running: Store | None = None
    exp_sum: str | None = None


Effect = Store | Accumulate


@final
@dataclass(frozen=True, slots=True)
class Phase:
    """A loop nest: at each point of `axes` (outermost first) run `body`, then the effects in order.

    `vector`: position in `axes` of the vectorised axis, or None. A point loads nothing that its own effects write: the
    schedule forwards such values inside the body.
    """

    axes: tuple[Axis, ...]
    body: LoopBody
    effects: tuple[Effect, ...]
    vector: int | None = None


@final
@dataclass(frozen=True, slots=True)
class KernelIR:
    """A kernel for one device. `params`: buffers in argument order; `writes`: those it writes; `ints`: size arguments.

    `grain`: units that are worth a thread. Sizes of phase axes may use unit symbols: `(i1: min(32, n0 - 32*i0))` is
    the rest for the last unit. Printers move what is constant along an axis out of its loop. `strip`: if not 0, up to
    so many consecutive units of the last unit axis go through each phase together, in vectors (a local then has a copy
    per unit, and no phase names a vector axis): pointwise kernels and column reductions.
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
