"""Inputs of a recording: which tensors can be one, their fakes, and their specs with symbols.

    f32[8, 128] with dim 0 a symbol, dim 1 static     =     f32[s0, 128], strides (128, 1)
    f32[8, 16 | 1, 8], both symbols                   =     f32[s0, s1 | 1, s0]

A stride is the product of the sizes inside of it where that is its number in this call, else a plain number.
Fakes mirror leaf-ness, `requires_grad` and being a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.constants import spec_of_real
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.storage_view import FakeStorage, StorageView, extent, new_storage, root_of
from kiln.runtime.guards.source import Source
from kiln.symbolic import Int, ShapeEnv
from kiln.symbolic.node import to_sym
from kiln.symbolic.policy import DimChoice, DimKind
from kiln.symbolic.values import Given, Real
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

Dims = tuple[DimChoice, ...] | None
COPIED = "CloneBackward0"
"""The gradient function of an input that is no leaf, see `InputTable._non_leaf`."""


@final
@dataclass(slots=True)
class InputRecord:
    """An input in the order of registration. `used`: the graph has it as input `node`.

    `origin` is the leaf at which the gradient of the input arrives, whatever in-place ops do to `fake`.
    """

    name: str
    source: Source
    fake: Any  # a fake tensor, SymInt or SymFloat
    real: torch.Tensor | None
    node: Node
    spec: Spec
    real_is_leaf: bool = True
    requires_grad: bool = False
    origin: Any = None
    used: bool = False

    @property
    def has_history(self) -> bool:
        """Whether in-place calls that autograd saw have changed it: its contents have another gradient function."""
        if not isinstance(self.fake, torch.Tensor) or not self.fake.requires_grad or self.fake.is_leaf:
            return False
        if self.real_is_leaf:
            return True
        node: Any = self.fake.grad_fn
        before = node.next_functions[0][0] if node.name() == COPIED and node.next_functions else None
        return getattr(before, "variable", None) is not self.origin

    @property
    def given(self) -> Given | None:
        """The real number that it is; the region gets it as a tensor of rank 0."""
        return self.fake.node.value.args[0] if isinstance(self.fake, torch.SymFloat) else None


@final
class InputTable:
    """The inputs of one recording, in the order of registration."""

    def __init__(self, mode: RecordingMode) -> None:
        self.mode = mode
        self.records: list[InputRecord] = []
        self._memory = SharedMemory()
        self._by_real: dict[int, InputRecord] = {}
        self._by_fake: dict[int, InputRecord] = {}

    def __iter__(self) -> Iterator[InputRecord]:
        return iter(self.records)

    def find(self, real: torch.Tensor) -> InputRecord | None:
        return self._by_real.get(id(real))

    def spec(self, real: torch.Tensor, dims: Dims) -> TensorSpec:
        """The spec of an input; each dimension that is to be a symbol gets one."""
        if dims is None or all(one.kind is DimKind.STATIC for one in dims):
            return spec_of_real(real)
        self.mode.symbolic = True
        return symbolic_spec(self.mode.symbols.env, real, dims)

    def node(self, name: str, spec: TensorSpec | ScalarSpec) -> Node:
        return Node(PRIMS["input"], (), {"index": len(self.records), "name": name}, spec)

    def add(self, real: torch.Tensor, name: str, source: Source, spec: TensorSpec) -> InputRecord:
        """Register a tensor: a fake at a view of its own, or in the memory of an input that it overlaps."""
        node = self.node(name, spec)
        grad = real.requires_grad
        fake = origin = self.mode.fake(self._memory.view_of(real, node), grad)
        if grad and not real.is_leaf:
            fake = self._non_leaf(origin)
        fake.is_input = True
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True
        record = InputRecord(name, source, fake, real, node, spec, real.is_leaf, grad, origin)
        self.records.append(record)
        self._by_real[id(real)] = self._by_fake[id(fake)] = record
        return record

    def record_of(self, fake: torch.Tensor) -> InputRecord | None:
        """The input that `fake` stands for; None for what was made in the recording."""
        return self._by_fake.get(id(fake))

    def add_scalar(self, value: int, name: str, source: Source) -> InputRecord:
        """Register an integer as a symbol; like a size it is not negative."""
        symbols = self.mode.symbols
        return self._scalar(symbols.env.create_symbol(value, lo=0), name, source)

    def _scalar(self, symbol: Int, name: str, source: Source) -> InputRecord:
        spec = ScalarSpec(int, symbol)
        record = InputRecord(name, source, self.mode.symbols.sym(symbol), None, self.node(name, spec), spec)
        self.records.append(record)
        return record

    def add_float(self, given: Given, name: str, source: Source) -> InputRecord:
        """Register a real number: in the graph it is a tensor of rank 0."""
        real = torch.scalar_tensor(given.number, dtype=torch.float64, device="cpu")
        spec = spec_of_real(real)
        node = self.mode.emit.givens[given] = self.node(name, spec)
        symbols = self.mode.symbols
        fake = to_sym(Real("given", (given,)), symbols.env, symbols.where)
        record = InputRecord(name, source, fake, real, node, spec)
        self.records.append(record)
        return record

    def again(self, record: InputRecord) -> InputRecord:
        """Register the input of an earlier recording once more, under the same symbols."""
        if (given := record.given) is not None:
            return self.add_float(given, record.name, record.source)
        if isinstance(record.spec, ScalarSpec):
            assert record.spec.value is not None
            return self._scalar(record.spec.value, record.name, record.source)
        assert record.real is not None and isinstance(record.spec, TensorSpec)
        return self.add(record.real, record.name, record.source, record.spec)

    def _non_leaf(self, origin: FakeTensor) -> FakeTensor:
        """A fake with a history, so that what eager forbids on leaves is allowed on it."""
        with self.mode, torch.enable_grad():
            made: FakeTensor = origin.clone()  # type: ignore[assignment]
        made.storage_view = origin.storage_view
        return made


def refuse_strange(real: torch.Tensor, name: str) -> None:
    """Only plain dense tensors are inputs so far."""
    reason = ""
    if real.layout is not torch.strided or real.is_nested:
        reason = f"its layout is {real.layout}"
    elif type(real) not in (torch.Tensor, torch.nn.Parameter):
        reason = f"it is a {type(real).__qualname__}"
    elif real.is_conj() or real.is_neg():
        reason = "it is a lazy conjugate or negation"
    elif real.is_quantized or real.device.type == "meta":
        reason = "it is quantized" if real.is_quantized else "it is a meta tensor"
    if reason:
        raise UnsupportedInput(name=name, reason=reason)


@final
class SharedMemory:
    """Which inputs lie in the same memory: a write to one must be seen in the other.

    Of two that overlap, the one that contains the other is the root, the other a view of it (which keeps its own
    input node until the first write). Where neither does, a write breaks the graph.
    """

    def __init__(self) -> None:
        self._views: dict[int, list[StorageView]] = {}

    def view_of(self, real: torch.Tensor, node: Node) -> StorageView:
        """Where a new input is."""
        view = new_storage(node)
        if not real.numel():
            return view
        for other in self._views.setdefault(real.untyped_storage()._cdata, []):
            self._relate(view, other)
        self._views[real.untyped_storage()._cdata].append(view)
        return view

    def _relate(self, new: StorageView, old: StorageView) -> None:
        if new.storage is old.storage:
            return
        mine, theirs = extent(new.spec), extent(old.spec)
        if mine is not None and theirs is not None and (mine[1] <= theirs[0] or theirs[1] <= mine[0]):
            return
        fresh = new.step is None and root_of(new.storage) is new and new.spec.dtype is old.spec.dtype
        if mine is None or theirs is None or not fresh:
            new.storage.tangled = old.storage.tangled = True
        elif theirs[0] <= mine[0] and mine[1] <= theirs[1]:
            join(new, old.storage)
            hang(new, root_of(old.storage))
        elif mine[0] <= theirs[0] and theirs[1] <= mine[1] and old.storage.version == 0 and old.step is None:
            join(new, old.storage)
            hang(old, new)
            old.storage.root = new
        else:
            new.storage.tangled = old.storage.tangled = True


def join(view: StorageView, storage: FakeStorage) -> None:
    """Bring a view without views into another storage; what was written there before, it has not seen."""
    storage.tangled |= view.storage.tangled
    view.storage = storage
    view.version = 0


def hang(view: StorageView, root: StorageView) -> None:
    """Make a root a view over the storage of another."""
    spec = view.spec
    view.step = ("as_strided", {"sizes": spec.sizes, "strides": spec.strides, "offset": spec.offset})
    view.parent = root


def symbolic_spec(env: ShapeEnv, real: torch.Tensor, dims: tuple[DimChoice, ...]) -> TensorSpec:
    """The spec of an input with a fresh symbol for each dimension that is to have one."""
    sizes = tuple([_size(env, number, choice) for number, choice in zip(real.shape, dims, strict=True)])
    numbers = real.stride()
    strides: list[Int] = list(numbers)
    packed: Int = 1
    expected = 1
    for axis in sorted(range(len(sizes)), key=lambda axis: (numbers[axis], -axis)):
        if numbers[axis] == expected:
            strides[axis] = packed
        packed, expected = strides[axis] * sizes[axis], numbers[axis] * real.shape[axis]
    return TensorSpec(real.dtype, sizes, tuple(strides), int(real.storage_offset()), real.device)


def _size(env: ShapeEnv, number: int, choice: DimChoice) -> Int:
    if choice.kind is DimKind.STATIC:
        return number
    if choice.kind is DimKind.UNBACKED:
        return env.create_unbacked(lo=choice.lo, hi=choice.hi)
    return env.create_symbol(number, lo=choice.lo, hi=choice.hi)
