"""Inputs of a recording: which tensors are accepted, their fakes, and their specs with symbols.

    f32[8, 128] with dim 0 a symbol, dim 1 static     =     f32[s0, 128], strides (128, 1)
    f32[8, 16 | 1, 8], both symbols                   =     f32[s0, s1 | 1, s0]

A stride is the product of the inner sizes if that is its value in this call, else an integer, or a symbol if it has
changed: f32[8, 16 | 24, 1] = f32[s0, s1 | s2, 1] of which s1 < s2 is guarded.
Fakes mirror `is_leaf`, `requires_grad` and `nn.Parameter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import cast, final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.constants import spec_of_real
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.outer import make_outer
from kiln.graph.trace.storage_view import FakeStorage, StorageView, extent, new_storage, root_of
from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass
from kiln.symbolic import Int, ShapeEnv
from kiln.symbolic.node import to_sym
from kiln.symbolic.policy import DimChoice, DimKind
from kiln.symbolic.relation import rel_lt
from kiln.symbolic.values import Given, Real, number_of
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

Dims = tuple[DimChoice, ...] | None
DERIVED = "_DerivedBackward"
"""The gradient function of an input that is not a leaf, see `InputTable._non_leaf`."""
OFFSETS = (0, 1 << 20, 1 << 62)
"""Of integers: small, so that multiples of expressions fit 64 bits, where that is enough."""


@final
@dataclass(slots=True)
class InputRecord:
    """An input in the order of registration. `used`: the graph has it as input `node`.

    `fake` is a FakeTensor, a SymInt or a SymFloat; `leaf` the leaf tensor that receives the input's gradient, whatever
    in-place ops do to `fake`.
    """

    name: str
    source: Source
    fake: FakeTensor | torch.SymInt | torch.SymFloat
    real: torch.Tensor | None
    node: Node
    spec: Spec
    own_view: StorageView | None = None
    """Where a tensor's elements were at first: `x.data = y` moves the fake."""
    real_is_leaf: bool = True
    requires_grad: bool = False
    _leaf: FakeTensor | None = None
    used: bool = False
    offset: int = 0
    """What the region takes an integer from outside increased by: symbols are not negative."""
    is_drawn: bool = False
    """It is drawn at random in front of the region, and differs in each call."""
    kept: bool = False
    """Whether it is an input of the graph even if no node reads it."""
    first_version: int = 0
    """Of the fake, before the first call."""

    def __post_init__(self) -> None:
        self.first_version = self.version

    @property
    def version(self) -> int:
        """How often calls have changed the tensor in place; a write through `.data` does not count."""
        is_counted = isinstance(self.fake, torch.Tensor) and not self.fake.is_inference()
        return cast(torch.Tensor, self.fake)._version if is_counted else 0

    @property
    def has_history(self) -> bool:
        """Whether in-place calls under autograd have changed it, so that its contents have a gradient function."""
        if not isinstance(self.fake, torch.Tensor) or not self.fake.requires_grad or self.fake.is_leaf:
            return False
        if self.real_is_leaf:
            return True
        node = self.fake.grad_fn
        assert node is not None
        before = node.next_functions[0][0] if node.name() == DERIVED and node.next_functions else None
        return getattr(before, "variable", None) is not self.leaf

    @property
    def leaf(self) -> FakeTensor:
        """Of a tensor."""
        assert self._leaf is not None
        return self._leaf

    @property
    def view(self) -> StorageView:
        """Of a tensor: its memory outside of the region."""
        assert self.own_view is not None
        return self.own_view

    @property
    def given(self) -> Given | None:
        """For a float: its symbol; the region receives it as a tensor of rank 0."""
        return self.fake.node.value.args[0] if isinstance(self.fake, torch.SymFloat) else None


@final
class InputTable:
    """The inputs of a recording, in the order of registration."""

    def __init__(self, mode: RecordingMode) -> None:
        self.mode = mode
        self.records: list[InputRecord] = []
        self._memory = SharedMemory()
        self._by_real: dict[int, InputRecord] = {}
        self._by_fake: dict[int, InputRecord] = {}
        self._accepted: set[tuple[type, int]] = set()
        """Types and dispatch keys of tensors that were found to be supported."""
        self._in_inference = torch.is_inference_mode_enabled()

    def as_outside(self) -> AbstractContextManager[object]:
        """Inputs are not tensors of an inference mode that the program entered since."""
        entered = torch.is_inference_mode_enabled() and not self._in_inference
        return torch.inference_mode(False) if entered else nullcontext()

    def __iter__(self) -> Iterator[InputRecord]:
        return iter(self.records)

    def find(self, real: torch.Tensor) -> InputRecord | None:
        return self._by_real.get(id(real))

    def accept(self, real: torch.Tensor, name: str, subclass: bool) -> None:
        """Raise UnsupportedInput unless it is a plain dense tensor; its type and dispatch keys tell.

        With `subclass`, of any class.
        """
        kind = type(real), torch._C._dispatch_keys(real).raw_repr()
        if kind not in self._accepted or real.dim() > MOST_DIMENSIONS:
            refuse_unsupported(real, name, subclass)
            self._accepted.add(kind)

    def spec(self, real: torch.Tensor, dims: Dims) -> TensorSpec:
        """The spec of an input, with symbols for its dynamic dimensions."""
        if dims is None or not any(map(is_free, dims)):
            return spec_of_real(real)
        self.mode.symbolic = True
        return symbolic_spec(self.mode.symbols.env, real, dims)

    def node(self, name: str, spec: TensorSpec | ScalarSpec) -> Node:
        return Node(PRIMS["input"], (), {"index": len(self.records), "name": name}, spec)

    def add(self, real: torch.Tensor, name: str, source: Source, spec: TensorSpec) -> InputRecord:
        """Register a tensor, with its own storage or in that of an overlapping input."""
        node = self.node(name, spec)
        # A write of a value with gradients makes a tensor of any dtype require them; none flow through integers.
        grad = real.requires_grad and (real.is_floating_point() or real.is_complex())
        with self.as_outside():
            fake = leaf = self.mode.fake(self._memory.view_of(real, node), grad)
            if grad and not real.is_leaf:
                fake = self._non_leaf(leaf)
        fake.is_input = True
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True
        record = InputRecord(name, source, fake, real, node, spec, leaf.storage_view, real.is_leaf, grad, leaf)
        self.records.append(record)
        self._by_real[id(real)] = self._by_fake[id(fake)] = record
        return record

    def add_outer(self, real: torch.Tensor, name: str, source: Source, known: FakeTensor | None = None) -> InputRecord:
        """Register a wrapper: no node reads it, but it may have a gradient. `known`: the outer fake that it has."""
        spec = TensorSpec(real.dtype, (), (), 0, real.device)
        node = self.node(name, spec)
        with self.as_outside():
            fake = leaf = known if known is not None else make_outer(real, real.requires_grad)
        if real.requires_grad and not real.is_leaf:
            with self.mode, torch.enable_grad():
                fake = _Derived.apply(leaf, lambda: make_outer(real))  # type: ignore[no-untyped-call]
        fake.is_input = True
        record = InputRecord(
            name, source, fake, real, node, spec, new_storage(node), real.is_leaf, real.requires_grad, leaf
        )
        self.records.append(record)
        self._by_real[id(real)] = self._by_fake[id(fake)] = record
        return record

    def add_part(self, record: InputRecord) -> InputRecord:
        """Register a wrapper once more: each part of its gradient is the gradient of one of its inputs."""
        assert isinstance(record.spec, TensorSpec)
        made = replace(record, node=self.node(record.name, record.spec), used=True)
        self.records.append(made)
        return made

    def record_of(self, fake: torch.Tensor) -> InputRecord | None:
        """The input of `fake`; None for what was made in the recording."""
        return self._by_fake.get(id(fake))

    def add_scalar(self, value: int, name: str, source: Source) -> InputRecord:
        """Register an integer as a symbol, which like a size is non-negative: to one below zero an offset is added, so
        that it may have either sign in other calls."""
        symbols = self.mode.symbols
        offset = next(power for power in OFFSETS if value + power >= 0)
        symbol = symbols.env.create_symbol(value + offset, lo=0)
        symbols.env.unbounded.add(symbol)
        spec = ScalarSpec(int, symbol)
        number = cast(torch.SymInt, symbols.sym(symbol))
        record = InputRecord(name, source, number, None, self.node(name, spec), spec, offset=offset)
        self.records.append(record)
        return record

    def add_float(self, given: Given, name: str, source: Source) -> InputRecord:
        """Register a float: in the graph it is a tensor of rank 0."""
        real = torch.scalar_tensor(number_of(given), dtype=torch.float64, device="cpu")
        spec = spec_of_real(real)
        node = self.mode.emit.givens[given] = self.node(name, spec)
        symbols = self.mode.symbols
        fake = to_sym(Real("given", (given,)), symbols.env, symbols.where)
        record = InputRecord(name, source, cast(torch.SymFloat, fake), real, node, spec)
        self.records.append(record)
        return record

    def _non_leaf(self, leaf: FakeTensor) -> FakeTensor:
        """A fake with a gradient function, which allows what eager forbids on leaves."""
        with self.mode, torch.enable_grad():
            made: FakeTensor = _Derived.apply(  # type: ignore[no-untyped-call]
                leaf, lambda: self.mode.fake(leaf.storage_view, False)
            )
        return made


class _Derived(torch.autograd.Function):
    """Another fake of the same view. A clone would not do: its strides may be others."""

    @staticmethod
    def forward(ctx: object, leaf: FakeTensor, make: Callable[[], FakeTensor]) -> FakeTensor:  # type: ignore[override]
        return make()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None


def is_wrapper_class(cls: type) -> bool:
    """Whether a subclass of Tensor defines what its tensors do below autograd."""
    plain = torch._C._disabled_torch_dispatch_impl
    return getattr(cls, "__torch_dispatch__", plain) is not plain


MOST_DIMENSIONS = 64
"""Which eager's own kernels and the guards on shapes take."""


def refuse_unsupported(real: torch.Tensor, name: str, subclass: bool) -> None:
    """Only plain dense tensors are accepted, and with `subclass` such of other classes."""
    if reason := refusal(real, subclass):
        raise UnsupportedInput(name=name, reason=reason)


def refusal(real: torch.Tensor, subclass: bool) -> str:
    """Why a tensor cannot be an input, "" if it can."""
    if torch._C._functorch.is_functorch_wrapped_tensor(real):
        return "it belongs to a function transform that has ended"
    if real.layout is not torch.strided or real.is_nested:
        return "it is a nested tensor" if real.is_nested else f"its layout is {real.layout}"
    if not subclass and type(real) not in (torch.Tensor, torch.nn.Parameter):
        return f"it is a {type(real).__qualname__}"
    if real.is_conj() or real.is_neg():
        return "it is a lazy conjugate or negation"
    if real.is_quantized:
        return "it is quantized"
    return f"it has {real.dim()} dimensions" if real.dim() > MOST_DIMENSIONS else ""


OVERLAPPING = "memory of partially overlapping inputs"
WRITTEN = "its memory is partly that of an input which was written before this one is read"


@final
class SharedMemory:
    """Which inputs share memory, so that a write to one changes the other.

    Of two that overlap, the one that contains the other is the root and the other a view of it, with an input node of
    its own until the first write. If neither contains the other, writes break the graph. So does a new input that a
    written one does not contain: nothing in the graph would see the write through it.
    """

    def __init__(self) -> None:
        self._views: dict[int, list[StorageView]] = {}

    def view_of(self, real: torch.Tensor, node: Node) -> StorageView:
        """The storage view of a new input."""
        view = new_storage(node)
        if real.is_inference() and not torch.is_inference_mode_enabled():
            view.storage.unwritable = "an inference tensor outside of inference mode"
        if not real.numel():
            return view
        others = self._views.setdefault(real.untyped_storage()._cdata, [])
        if any([other.storage.version and is_late(view, other) for other in others]):
            raise UnsupportedInput(name=node.attrs["name"], reason=WRITTEN)
        for other in others:
            self._relate(view, other)
        others.append(view)
        return view

    def _relate(self, new: StorageView, old: StorageView) -> None:
        if new.storage is old.storage:
            return
        mine, theirs = extent(new.spec), extent(old.spec)
        if mine is not None and theirs is not None and (mine[1] <= theirs[0] or theirs[1] <= mine[0]):
            return
        fresh = new.step is None and root_of(new.storage) is new and new.spec.dtype is old.spec.dtype
        if mine is None or theirs is None or not fresh:
            new.storage.unwritable = old.storage.unwritable = OVERLAPPING
        elif theirs[0] <= mine[0] and mine[1] <= theirs[1]:
            join(new, old.storage)
            make_view_of(new, root_of(old.storage))
        elif mine[0] <= theirs[0] and theirs[1] <= mine[1] and old.storage.version == 0 and old.step is None:
            join(new, old.storage)
            make_view_of(old, new)
            old.storage.root = new
        else:
            new.storage.unwritable = old.storage.unwritable = OVERLAPPING


def is_late(new: StorageView, written: StorageView) -> bool:
    """Whether memory of a new input may have been changed through another one that does not contain it."""
    mine, theirs = extent(new.spec), extent(written.spec)
    if mine is None or theirs is None:
        return True
    within = theirs[0] <= mine[0] and mine[1] <= theirs[1] and new.spec.dtype is written.spec.dtype
    return not within and mine[0] < theirs[1] and theirs[0] < mine[1]


def join(view: StorageView, storage: FakeStorage) -> None:
    """Move a root without views into another storage; it is stale if that has been written."""
    storage.unwritable = storage.unwritable or view.storage.unwritable
    storage.is_addressed |= view.storage.is_addressed
    storage.alignment = max(storage.alignment, view.storage.alignment)
    view.storage = storage
    view.version = 0


def make_view_of(view: StorageView, root: StorageView) -> None:
    """Make a root a view of another root."""
    spec = view.spec
    view.step = ("as_strided", {"sizes": spec.sizes, "strides": spec.strides, "offset": spec.offset})
    view.parent = root


def is_free(choice: DimChoice) -> bool:
    return choice.is_stride_free or choice.kind is not DimKind.STATIC


def symbolic_spec(env: ShapeEnv, real: torch.Tensor, dims: tuple[DimChoice, ...]) -> TensorSpec:
    """The spec of an input with a fresh symbol for each dynamic dimension, and for each free stride that leaves gaps.

    Gaps stay gaps: no element overlaps another in any call, and a dense tensor is another variant. `last` is the
    distance between the first and the last element of the axes so far.
    """
    sizes = tuple([_size(env, number, choice) for number, choice in zip(real.shape, dims, strict=True)])
    numbers = real.stride()
    strides: list[Int] = list(numbers)
    packed: Int = 1
    last: Int = 0
    expected = 1
    for axis in sorted(range(len(sizes)), key=lambda axis: (numbers[axis], -axis)):
        if numbers[axis] == expected:
            strides[axis] = packed
        elif dims[axis].is_stride_free and numbers[axis] > env.hint(last):
            strides[axis] = env.create_symbol(numbers[axis])
            env.assume(rel_lt(packed if numbers[axis] > expected else last, strides[axis]))
        last = last + strides[axis] * (sizes[axis] - 1)
        packed, expected = strides[axis] * sizes[axis], numbers[axis] * real.shape[axis]
    return TensorSpec(real.dtype, sizes, tuple(strides), int(real.storage_offset()), real.device)


def _size(env: ShapeEnv, number: int, choice: DimChoice) -> Int:
    if choice.kind is DimKind.STATIC:
        return number
    if choice.size is not None:
        return choice.size
    if choice.kind is DimKind.UNBACKED:
        return env.create_unbacked(lo=choice.lo, hi=choice.hi)
    return env.create_symbol(number, lo=choice.lo, hi=choice.hi)
