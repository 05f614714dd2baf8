"""The plan: what a compiled region does, as data.

    plan add_norm(%0: f32[s0, 768] "x", %1: f32[768] "self.weight")  where s0 = %0.size(0)
        %2 = allocate f32[s0, 768]
        launch k0(%0, %1, %2; s0) over s0
        %3 = aten.mm.default(%2, %1) -> f32[s0, 768]
        free %2
        return %3

The same plan runs in the native executor, in the Python executor (tests compare the two), in CUDA graphs and as the
forward or backward of an autograd function; the cache stores it and packages ship it. Values live in numbered slots;
slots 0 .. len(inputs)-1 hold the arguments. Sizes are expressions over the symbols bound in `symbols`.
The kinds of steps are in `kiln/plan/steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, final

import torch

from kiln.plan.program_format import Record, ScalarKind
from kiln.support.records import dataclass
from kiln.symbolic import Int
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

    An "unbacked" symbol has no input: a `HostReadStep` defines it and also stores its value in `slot`, where a `Ref`
    finds it (-1: nowhere). A value of kind "float" is stored in the slot only.
    """

    name: str
    kind: Literal["size", "stride", "offset", "scalar", "unbacked"]
    slot: Slot
    dim: int = 0


@final
@dataclass(frozen=True, slots=True)
class KernelParam:
    """A tensor parameter of a kernel; `access` "both" means in place."""

    dtype: torch.dtype
    access: Literal["read", "write", "both"]


@final
@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel, or what it is compiled from.

    C++ kernels have one calling convention, so the executor needs no generated code:

        extern "C" void symbol(void* const* tensors, const int64_t* ints, const double* floats,
                               int64_t begin, int64_t end, void* scratch, int64_t* status)

    `tensors[i]` points at the first element of the tensor, its offset applied. Sources are concatenated into one
    translation unit: a shared prelude has an include guard, all other names derive from `symbol`. A call handles units
    [begin, end) of the range given by the `LaunchStep`; the executor splits the range over torch's intra-op pool in
    chunks of at least `grain` units. `scratch` is private to the call and 64-byte aligned. The kernel sets `status[0]`
    to 1 for an index out of range and to 2 for a division by zero.

    A Triton kernel's `source` is Python text that defines `symbol` with `@triton.jit`. Its parameters: a pointer per
    tensor (offset applied), the ints, the floats, with `status` a pointer to the status slot, then the constants.
    `meta`, sorted by name: "capability" of the GPUs it is compiled for (90: 9.0); "constants", pairs (name, value);
    "divisible", positions of parameters that are multiples of 16; "num_stages" and "num_warps"; "signature", Triton's
    type of each parameter that is not a constant: of a tensor that is no pointer, a launch passes the element, which is
    on the CPU; "status".
    """

    symbol: str  # derived from the source: equal kernels have equal symbols
    language: Literal["cpp", "triton"]
    source: str
    params: tuple[KernelParam, ...]
    num_ints: int
    num_floats: int = 0
    scratch_bytes: int = 0  # static part; a LaunchStep may ask for more
    meta: tuple[tuple[str, Any], ...] = ()

    def written(self, tensors: Sequence[Slot]) -> list[Slot]:
        """Those of the arguments of a launch, row by row, that the kernel writes."""
        return [slot for slot, param in zip(tensors, cycle(self.params), strict=False) if param.access != "read"]

    def passed_by_value(self) -> frozenset[int]:
        """Positions of the tensors whose element is passed, not its address."""
        types = dict(self.meta).get("signature", ())[: len(self.params)]
        return frozenset([position for position, kind in enumerate(types) if not kind.startswith("*")])


@final
@dataclass(frozen=True, slots=True)
class Ref:
    """An argument of an ATen step that is the value of a slot."""

    slot: Slot


class KernelArguments(NamedTuple):
    """What one launch of a kernel gets; the grid is a GPU's."""

    tensors: Sequence[torch.Tensor]
    ints: Sequence[int]
    floats: Sequence[float]
    grid: Sequence[int]


Rename = Callable[[Slot], Slot]


def slots_in(value: Any, found: list[Slot], *, refs_only: bool = False) -> list[Slot]:
    """Adds the slots that a field names, nested in tuples: all numbers (but None), or only those in a `Ref`."""
    kind = type(value)
    if kind is Ref:
        found.append(value.slot)
    elif kind is tuple or kind is list:
        for item in value:
            slots_in(item, found, refs_only=refs_only)
    elif not refs_only and value is not None:
        found.append(value)
    return found


def rename_in(value: Any, rename: Rename, *, refs_only: bool = False) -> Any:
    """The same field with `rename` applied to the slots that `slots_in` finds."""
    if type(value) is int:
        return value if refs_only else rename(value)
    if isinstance(value, tuple):
        return tuple([rename_in(item, rename, refs_only=refs_only) for item in value])
    if isinstance(value, Ref):
        return Ref(rename(value.slot))
    return value if refs_only or value is None else rename(value)


class Step:
    """One step of a plan: frozen data, and what each stage needs to know of its kind.

    A new kind is a subclass listed in `kiln.plan.steps.STEPS`, its records in `kiln/plan/program_format.py`, and a
    `Run::run` for each record in csrc/executor/run.cpp. No ABC: that would make `isinstance` four times as slow.
    """

    __slots__: tuple[str, ...] = ()
    origin: str = ""
    """The user's source line, where one is known."""

    uses: ClassVar[tuple[str, ...]] = ()  # fields that hold slots which must be live before the step
    refers: ClassVar[tuple[str, ...]] = ()  # fields with `Ref`s to such slots
    defines: ClassVar[tuple[str, ...]] = ()  # fields that hold the slots which it defines

    def reads(self) -> list[Slot]:
        found: list[Slot] = []
        for name in self.uses:
            value = getattr(self, name)
            if type(value) is tuple:
                found += value
            elif value is not None:
                found.append(value)
        for name in self.refers:
            slots_in(getattr(self, name), found, refs_only=True)
        return found

    def writes(self) -> list[Slot]:
        found: list[Slot] = []
        for name in self.defines:
            slots_in(getattr(self, name), found)
        return found

    def renamed(self, rename: Rename) -> Self:
        """The same step on other slots. `rename` is called once per mention of a slot, in an order that depends only on
        the kind of step, so that the mentions of two similar steps can be compared pairwise."""
        kind = type(self)
        fields = {name: getattr(self, name) for name in kind.__match_args__}  # type: ignore[attr-defined]
        for name in (*kind.uses, *kind.defines):
            fields[name] = rename_in(fields[name], rename)
        for name in kind.refers:
            fields[name] = rename_in(fields[name], rename, refs_only=True)
        return kind(**fields)

    def reads_host(self) -> bool:
        """Does the host wait for a value in device memory?"""
        return False

    def text(self) -> str:
        """Its line in the text of the plan; nested plans take several."""
        raise NotImplementedError

    def python(self, printer: PlanPrinter) -> str:
        """A Python statement with the same meaning."""
        raise NotImplementedError

    def native(self, encoder: PlanEncoder) -> Record:
        """Its record in the native program."""
        raise NotImplementedError

    def run(self, run: PlanRun) -> None:
        """Do the step, in the reference executor."""
        raise NotImplementedError


class PlanPrinter(Protocol):
    """What a step can ask of the printer of the Python view."""

    @property
    def plan(self) -> Plan: ...
    @property
    def names(self) -> Sequence[str]: ...  # of the slots
    def slots(self, slots: Iterable[Slot]) -> str: ...
    def argument(self, value: object) -> str: ...
    def nested(self, plan: Plan) -> str: ...  # defines a function; its name


class PlanEncoder(Protocol):
    """What a step can ask of the encoder of the native program."""

    def is_raw(self, slot: Slot) -> bool: ...
    def raw_buffer(self, slot: Slot) -> int: ...
    def offset_in(self, slot: Slot, dtype: torch.dtype) -> Int: ...
    def view_layout(self, spec: TensorSpec, base: Slot) -> TensorSpec: ...
    def kernel(self, symbol: str) -> Kernel: ...
    def launch_device(self, tensors: Iterable[Slot]) -> torch.device | None: ...
    def host_scalar(self, symbol: str, kind: ScalarKind) -> tuple[int, int]: ...


class PlanRun(Protocol):
    """What a step can ask of a call in the reference executor."""

    @property
    def plan(self) -> Plan: ...
    @property
    def values(self) -> list[Any]: ...  # tensors and numbers, by slot
    @property
    def symbols(self) -> dict[str, int]: ...
    @property
    def constants(self) -> Sequence[torch.Tensor]: ...
    @property
    def specs(self) -> Mapping[Slot, TensorSpec]: ...
    def number(self, value: Int) -> int: ...
    def numbers(self, values: Sequence[Int]) -> tuple[int, ...]: ...
    def argument(self, value: object) -> Any: ...
    def empty(self, spec: TensorSpec) -> torch.Tensor: ...
    def as_planned(self, result: torch.Tensor, spec: TensorSpec, shared: bool) -> torch.Tensor: ...
    def over_storage(
        self, of: torch.Tensor, spec: TensorSpec, offset: int, base: TensorSpec | None = None
    ) -> torch.Tensor: ...
    def shifted(self, base: torch.Tensor, view: TensorSpec, base_spec: TensorSpec | None) -> int: ...
    def launch(self, symbol: str, arguments: KernelArguments, units: int, scratch_bytes: int) -> int: ...  # status
    def nested(self, plan: Plan, args: Sequence[object]) -> tuple[Any, ...]: ...


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
    """A compiled region. `num_slots` counts arguments and temporaries; `mutated`: inputs that it writes to; `bumped`:
    inputs and results whose version rises, once for each entry, None for each of `mutated`; `donated`: inputs whose
    memory the plan may reuse (saved tensors of a backward plan without retain_graph).
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
    bumped: tuple[int, ...] | None = None

    @property
    def version_bumps(self) -> tuple[int, ...]:
        """As `bumped`."""
        return self.mutated if self.bumped is None else self.bumped

    def landing_slot(self, symbol: str) -> Slot | None:
        """Where a `HostReadStep` stores the value of `symbol`, if anywhere."""
        slots = (binding.slot for binding in self.symbols if binding.name == symbol and binding.slot >= 0)
        return next(slots, None)
