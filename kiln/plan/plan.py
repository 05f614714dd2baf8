"""The plan: what a compiled region does, as data.

    plan add_norm(%0: f32[s0, 768] "x", %1: f32[768] "self.weight")  where s0 = %0.size(0)
        %2 = allocate f32[s0, 768]
        launch k0(%0, %1, %2; s0) over s0
        %3 = aten.mm.default(%2, %1) -> f32[s0, 768]
        free %2
        return %3

One plan runs in the native executor, in the Python executor (tests compare the two), inside a CUDA graph and in
both halves of an autograd function; it is what the cache stores and what a package ships. Values live in numbered
slots; slots 0 .. len(inputs)-1 are the arguments. Sizes are expressions over the symbols that `symbols` binds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import torch

from kiln.symbolic import Int, Relation
from kiln.tensor.spec import TensorSpec

Slot = int


@final
@dataclass(frozen=True, slots=True)
class PlanInput:
    """Argument of the plan: a tensor (`spec`), or a Python number (`scalar`)."""

    name: str
    spec: TensorSpec | None
    scalar: Literal["int", "float", "bool"] | None = None


@final
@dataclass(frozen=True, slots=True)
class SymbolBinding:
    """Symbol `name` is a size, stride or the offset of input `slot`, or the value of a scalar input.

    A binding of kind "unbacked" has no input: a `HostRead` step defines it. Its value also lands in `slot`, for a
    `Ref` to it (-1: in none); a "float" read lands only there.
    """

    name: str
    kind: Literal["size", "stride", "offset", "scalar", "unbacked"]
    slot: Slot
    dim: int = 0


@final
@dataclass(frozen=True, slots=True)
class KernelParam:
    """A tensor parameter of a kernel. `access`: read, write, or both (in place)."""

    dtype: torch.dtype
    access: Literal["read", "write", "both"]


@final
@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel, or what it is compiled from.

    C++ kernels have one calling convention, so the executor needs no generated code:

        extern "C" void symbol(void* const* tensors, const int64_t* ints, const double* floats,
                               int64_t begin, int64_t end, void* scratch, int64_t* status)

    `tensors[i]` points at the first element of the tensor (its offset applied). `source` is self-contained; sources
    are concatenated into one translation unit, so a shared prelude carries an include guard and every other name
    derives from `symbol`. It handles units [begin, end) of the range that `Launch` gives; the executor splits the
    range over torch's intra-op pool in chunks of at least `grain` units. `scratch` is private to the call and
    64-byte aligned.
    `status[0]` is set to a nonzero code by a kernel that found an index out of range (1) or a division by zero (2).

    A Triton kernel's `source` is Python text that defines `symbol` with `@triton.jit`. Its parameters: a pointer per
    tensor (offset applied), the ints, the floats, with `status` a pointer to the status slot, then the constants.
    `meta`, sorted by name: "capability" of the GPUs that it is compiled for (90: 9.0); "constants", pairs (name,
    value); "divisible", places of parameters that are multiples of 16; "num_stages" and "num_warps"; "signature",
    Triton's type of each parameter that is no constant; "status".
    """

    symbol: str  # derived from the source: equal kernels have equal symbols
    language: Literal["cpp", "triton"]
    source: str
    params: tuple[KernelParam, ...]
    num_ints: int
    num_floats: int = 0
    scratch_bytes: int = 0  # static part; a Launch may ask for more
    meta: tuple[tuple[str, Any], ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Ref:
    """An argument of an ATen step that is the value of a slot."""

    slot: Slot


# ---------------------------------------------------------------------------------------------- steps


@final
@dataclass(frozen=True, slots=True)
class Allocate:
    """A fresh buffer; with `reuse`, the memory of that slot (dead from here on, at least as many bytes)."""

    out: Slot
    spec: TensorSpec
    reuse: Slot | None = None


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel over `units` indices. `ints` and `floats` are evaluated at run time (floats: Int, float or Ref)."""

    kernel: str
    tensors: tuple[Slot, ...]
    ints: tuple[Int, ...]
    floats: tuple[float | Ref, ...]
    units: Int
    grain: Int = 1
    scratch_bytes: Int = 0
    grid: tuple[Int, ...] = ()  # Triton only
    origin: str = ""


@final
@dataclass(frozen=True, slots=True)
class CallAten:
    """Call the overload `target` ("aten.mm.default"); arguments hold `Ref`, Int, float, bool, str, dtype, device,
    None and tuples of these. Each result is compared with its spec (None: no tensor there) and copied into the
    planned layout on a difference.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Slot | None, ...]
    specs: tuple[TensorSpec | None, ...]
    origin: str = ""


@final
@dataclass(frozen=True, slots=True)
class View:
    """`out` is `base`'s storage under other sizes, strides and offset (offset counts from the storage's start)."""

    out: Slot
    base: Slot
    spec: TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """Write the contents of `source` into `target` (an input that the region mutates); bumps its version."""

    target: Slot
    source: Slot


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """Slot `out` is the plan's constant number `index`."""

    out: Slot
    index: int


@final
@dataclass(frozen=True, slots=True)
class HostRead:
    """Read the one element of `source` on the host and bind it to symbol or scalar slot `symbol`."""

    symbol: str
    source: Slot
    kind: Literal["int", "float", "bool"]


@final
@dataclass(frozen=True, slots=True)
class Check:
    """Stop with `message` unless `relation` holds (or the bool tensor in slot `condition` is true)."""

    relation: Relation | None
    condition: Slot | None
    message: str


@final
@dataclass(frozen=True, slots=True)
class RandomSeed:
    """`out` is an int64[2] tensor (seed, offset) on `device`, drawn from torch's default generator of it."""

    out: Slot
    device: torch.device
    increment: Int


@final
@dataclass(frozen=True, slots=True)
class Free:
    """The slots are not used any more."""

    slots: tuple[Slot, ...]


@final
@dataclass(frozen=True, slots=True)
class Branch:
    """Run one of two nested plans, by the bool tensor in `condition`, on `args`."""

    condition: Slot
    if_true: Plan
    if_false: Plan
    args: tuple[Slot, ...]
    outs: tuple[Slot, ...]


Step = Allocate | Launch | CallAten | View | Copy | Constant | HostRead | Check | RandomSeed | Free | Branch


@final
@dataclass(frozen=True, slots=True)
class PlanOutput:
    """A result: a slot, a number, or None. `alias_input`/`alias_output`: rebuilt as a view (or the same object)."""

    slot: Slot | None = None
    value: Int | float | bool | None = None
    alias_input: int | None = None
    alias_output: int | None = None
    view: TensorSpec | None = None


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled region. `num_slots` counts arguments and temporaries; `mutated` names inputs whose version is bumped.

    `donated`: inputs whose memory the plan may reuse (saved tensors of a backward plan without retain_graph).
    """

    name: str
    inputs: tuple[PlanInput, ...]
    symbols: tuple[SymbolBinding, ...]
    steps: tuple[Step, ...]
    outputs: tuple[PlanOutput, ...]
    kernels: tuple[Kernel, ...]
    num_slots: int
    constants: tuple[str, ...] = ()  # content keys of constant tensors
    mutated: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
