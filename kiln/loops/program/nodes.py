"""The loop IR: what is computed into each buffer, before it is decided in which kernel.

    x: f32[4096, 1024] = input 0
    mean: f32[4096]      = reduction sum over (i1: 1024) keeping (i0: 4096): load x[i0, i1]
    out: f32[4096, 1024] = pointwise (i0: 4096, i1: 1024): sub(load x[i0, i1], load mean[i0])
    y: f32[4096, 768]    = extern aten.mm.default(out, w)

One node writes one buffer (extern nodes several). Sizes are symbolic expressions. A node's own loop symbols are
bound by its axes; every other symbol is a size of the region.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, final

from kiln.loops.body.body import Index, LoopBody
from kiln.loops.body.indexing import Axis
from kiln.support.errors import require
from kiln.support.records import dataclass
from kiln.symbolic import Symbol
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory; with `base` it shares that buffer's storage (a view that could not become an index)."""

    name: str
    spec: TensorSpec
    base: str | None = None

    @property
    def is_part(self) -> bool:
        """Is its place in the memory of another buffer fixed?"""
        return self.base is not None or self.spec.offset != 0


class ReduceOp(Enum):
    """How two partial results combine; the values are the names of torch's functions."""

    SUM = "sum"
    PROD = "prod"
    MAX = "amax"
    MIN = "amin"
    ANY = "any"
    ALL = "all"
    ARGMAX = "argmax"
    ARGMIN = "argmin"

    @property
    def is_splittable(self) -> bool:
        """Do partial results combine to the whole by the same op?"""
        return self not in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)


@final
@dataclass(frozen=True, slots=True)
class Pointwise:
    """out[axes] = body."""

    out: Buffer
    axes: tuple[Axis, ...]
    body: LoopBody
    origin: str = ""

    def __post_init__(self) -> None:
        require(len(self.axes) == self.out.spec.rank, "a pointwise node has one axis per dimension of its buffer")


@final
@dataclass(frozen=True, slots=True)
class Reduction:
    """out[kept] = combine body over `reduced`. Kept axes are the dimensions of `out` in order.

    ARGMAX and ARGMIN have one reduced axis and give its index (the first of equals; NaN wins).
    """

    out: Buffer
    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    op: ReduceOp
    body: LoopBody
    origin: str = ""

    def __post_init__(self) -> None:
        require(self.reduced, "a reduction reduces at least one axis")
        require(not set(self.kept) & set(self.reduced), "an axis is kept or reduced, not both")


@final
@dataclass(frozen=True, slots=True)
class Scan:
    """out[axes] = body combined over the axis `axes[along]` up to and including this point."""

    out: Buffer
    axes: tuple[Axis, ...]
    along: int
    op: ReduceOp
    body: LoopBody
    origin: str = ""


@final
@dataclass(frozen=True, slots=True)
class Scatter:
    """out[index] = body (or combined with it), for every point of `axes`; `index` uses symbols that the body binds.

    `out` holds its initial contents already: it is the memory of `init`, or a copy of it made by a Pointwise node.
    """

    out: Buffer
    init: str
    axes: tuple[Axis, ...]
    index: Index
    combine: ReduceOp | None
    body: LoopBody
    origin: str = ""


@final
@dataclass(frozen=True, slots=True)
class BufferArg:
    """A buffer among the arguments of an extern call, read through the view `spec` if given."""

    name: str
    spec: TensorSpec | None = None


CHECK = "kiln.assert"
LOCAL_SCALAR = "kiln.local_scalar"
WAIT = "kiln.wait"
COND, WHILE_LOOP, SCAN = "kiln.cond", "kiln.while_loop", "kiln.scan"


@final
@dataclass(frozen=True, slots=True)
class Extern:
    """A call of an ATen overload; `args` and `kwargs` hold `BufferArg` and constants (as in `plan.CallAten`).

    `mutates`: names of argument buffers that it writes. An out with a `base` is a view: no copy, no memory. `ordered`:
    it keeps its place among such calls, as it draws random numbers or has effects.

    Targets that are no ATen overloads, each a step of its own in the plan:
        "kiln.empty"         outs[0] is fresh memory with any contents
        "kiln.view"          outs[0] is its base under another layout
        "kiln.random_seed"   outs[0] is int64[2] (seed, offset); args = (device, increment)
        CHECK                args = (buffer, message)
        WAIT                 args = (buffer, held): the call that writes the buffer has ended; `mutates` its results
        LOCAL_SCALAR         args = (buffer, kind, symbol, checks): the host reads a number
        COND                 args = (condition, buffers, sizes); `nested` = (true, false), on buffers and sizes
        WHILE_LOOP           args = (carried, buffers, sizes); `nested` = (test, body), on carried, buffers and sizes
        SCAN                 args = (carried, rows, buffers, sizes, count); `nested` = (body,); see `plan.LoopStep`
    """

    outs: tuple[Buffer | None, ...]
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    mutates: tuple[str, ...] = ()
    origin: str = ""
    nested: tuple[LoopProgram, ...] = ()
    ordered: bool = False


LoopNode = Pointwise | Reduction | Scan | Scatter | Extern


@final
@dataclass(frozen=True, slots=True)
class LoopOutput:
    """A result: `buffer` (through `view` if given), an alias of an input or of an earlier output, or a host number."""

    buffer: str | None = None
    view: TensorSpec | None = None
    alias_input: int | None = None
    alias_output: int | None = None
    value: Any = None


@final
@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A region: nodes in a legal order, arguments, constants, results and writes to arguments."""

    name: str
    inputs: tuple[Buffer | Symbol, ...]
    constants: tuple[tuple[Buffer, str], ...]
    nodes: tuple[LoopNode, ...]
    outputs: tuple[LoopOutput, ...]
    writes: tuple[tuple[str, str], ...]  # (input buffer, buffer with its new contents)
