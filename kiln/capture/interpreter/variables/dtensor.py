"""DTensors: wrappers whose operators torch's own dispatcher takes apart, natively, on the fakes inside.

    y = x @ w       x, w: DTensors, Shard(1) and Shard(0)
                    1. autograd runs on their outer fakes, as for every wrapper (`subclass.py`)
                    2. below it, DTensor's dispatcher runs on DTensors of the inner fakes: it picks the placements of
                       the result, and calls `mm` and collectives on the fakes, which are recorded

Meshes, placements and specs are constants of the trace (`LayoutObject`), asked natively: a mesh is guarded by identity,
so a variant with one belongs to one rank and one process; placements are guarded by value.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol, cast, final

import torch
import torch.distributed as dist
from torch._ops import OpOverload

from kiln.capture.interpreter.breaks import UnsupportedAttribute, UnsupportedCall, UnsupportedValue
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    WRAPPERS,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
    handles,
)
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.subclass import (
    NATIVE_WRAPPERS,
    InnerCalls,
    NativeWrapper,
    new_subclass,
    subclassed,
)
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.outer import make_outer
from kiln.runtime.guards.constant import add_constants, is_constant
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, ItemSource, Source
from kiln.support.records import dataclass

TENSOR, PLACEMENTS = "torch.distributed.tensor", "torch.distributed.tensor.placement_types"
COLLECTIVES = "torch.distributed._functional_collectives"
PLACEMENT_CLASSES = ("Shard", "Replicate", "Partial")
LOCAL, SPEC = "_local_tensor", "_spec"


@final
class DTensorObject(Object):
    """A DTensor. Its two slots are in `attrs`, as attributes of other wrappers are."""

    __slots__ = ()

    def instance_names(self) -> list[str]:
        return [LOCAL, SPEC]

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        known = self.attrs.get(name) if name in (LOCAL, SPEC) else None
        return known if known is not None else super().get_attr(s, name, site)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        if name in (LOCAL, SPEC):
            raise UnsupportedAttribute(name=name, type=self.type_name(), why="it is what the tensor consists of")
        super().set_attr(s, name, value, site)

    def part(self, name: str) -> Value:
        found = self.attrs[name]
        assert found is not None
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class LayoutObject(Value):
    """A mesh, a placement or a spec: never changed, so that it is asked natively."""

    value: object
    source: Source | None = None

    is_constant = True

    def python_type(self) -> type:
        return type(self.value)

    def real(self) -> object:
        return self.value

    def constant(self, s: CaptureState) -> object:
        return self.value

    def torch_arg(self, s: CaptureState) -> object:
        return self.value

    def truth(self, s: CaptureState) -> bool:
        return True

    def key(self, s: CaptureState) -> Token:
        assert isinstance(self.value, Hashable)
        return self.value

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        try:
            found: object = getattr(self.value, name)
        except AttributeError as error:
            raise s.error(AttributeError, *error.args) from None
        return LayoutMethod(self, name) if callable(found) else known(s, found)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        return LayoutMethod(self, "__getitem__").call(s, [key], {})

    def emit(self, g: Codegen) -> None:
        if any(True for _ in buffers([self.value])):
            raise UnsupportedValue(type=self.type_name(), why="it belongs to a sharded embedding that is not reduced")
        g.body.const(self.value)


@final
class LayoutMethod(NamedMethod):
    """A method of a layout, called natively with constants."""

    __slots__ = ()
    owner: LayoutObject

    def python_type(self) -> type:
        return type(getattr(self.owner.value, self.name))

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return call_natively(s, getattr(self.owner.value, self.name), args, kwargs)


def call_natively(s: CaptureState, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """The answer of torch's code on constants."""
    given = [arg.torch_arg(s) for arg in args]
    named = {name: value.torch_arg(s) for name, value in kwargs.items()}
    if any(holds_tensor(value) for value in (*given, *named.values())):
        raise UnsupportedCall(function=getattr(function, "__qualname__", "a method"), why="it gets a tensor")
    try:
        return known(s, function(*given, **named))
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError, AssertionError) as error:
        raise s.error(type(error), *error.args) from None


def holds_tensor(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(holds_tensor, value))
    return isinstance(value, torch.Tensor | torch.SymInt)


def known(s: CaptureState, value: object) -> Value:
    """The value of what torch's code says of a layout."""
    if type(value) in LAYOUTS:
        return LayoutObject(value)
    if type(value) is list:
        return List([known(s, item) for item in value])
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return Tuple([known(s, item) for item in value], type(value))
    if is_constant(value) or isinstance(value, dist.ProcessGroup):
        return s.wrap(value, None)
    raise UnsupportedCall(function=f"{type(value).__name__} of a layout", why="its values are not modelled")


LAYOUTS: dict[type, None] = {}
"""Classes of meshes, placements and specs; filled once the program has imported DTensor."""


def wrap_layout(s: CaptureState, real: object, source: Source | None) -> Value:
    """A mesh or placement from outside."""
    if source is not None:
        guard_layout(s, real, source)
    return LayoutObject(real, source)


def guard_layout(s: CaptureState, value: object, source: Source) -> None:
    """Placements and what else is a constant are compared; a mesh is the same object."""
    if isinstance(value, tuple) and not is_constant(value):
        s.guard(source, GuardKind.TYPE_IS, s.reference(type(value)))
        s.guard(source, GuardKind.LENGTH, len(value))
        for number, item in enumerate(value):
            guard_layout(s, item, ItemSource(source, number))
    elif is_constant(value):
        s.guard(source, GuardKind.EQUALS, value)
    else:
        s.guard(source, GuardKind.IS, s.reference(value))


SPEC_PARTS = ("mesh", "placements", "shard_order", "use_strided_shard_as_shard_order")
"""Fields of a spec; sizes, strides and dtype are those of the tensor."""


# Tensors.


def from_outside(s: CaptureState, real: torch.Tensor, source: Source) -> Object:
    """The object of a DTensor from outside, not yet a tensor."""
    value = DTensorObject(type(real), source, real)
    spec = getattr(real, SPEC)
    for name in SPEC_PARTS:
        if hasattr(spec, name):
            guard_layout(s, getattr(spec, name), AttrSource(AttrSource(source, SPEC), name))
    value.attrs[LOCAL] = s.wrap(getattr(real, LOCAL), AttrSource(source, LOCAL))
    value.attrs[SPEC] = LayoutObject(spec)
    return value


def made_inside(mode: InnerCalls, real: torch.Tensor) -> Object:
    """A DTensor that torch's code has made of fakes."""
    s = mode.state
    value = DTensorObject(type(real))
    value.attrs[LOCAL] = mode.lift(arrived(mode, getattr(real, LOCAL)))
    value.attrs[SPEC] = LayoutObject(getattr(real, SPEC))
    return new_subclass(s, value, make_outer(real), None)


@final
class NativeArguments:
    """DTensors of the inner fakes for the values of one call, each made once."""

    def __init__(self, mode: InnerCalls) -> None:
        self.mode = mode
        self.values: dict[int, tuple[torch.Tensor, DTensorObject]] = {}

    def real(self, value: Value) -> object:
        s = self.mode.state
        if isinstance(value, DTensorObject):
            local, spec = self.static(cast(FakeTensor, value.part(LOCAL).torch_arg(s))), value.part(SPEC).constant(s)
            if local.requires_grad:  # as that of a parameter does, whose gradient is the DTensor's
                with self.mode:
                    local = local.detach()
            made: torch.Tensor = value.cls(local, spec, requires_grad=False)
            self.values[id(made)] = made, value
            return made
        if isinstance(value, List | Tuple):
            items = [self.real(item) for item in value.items(s)]
            return items if isinstance(value, List) else tuple(items)
        given = value.torch_arg(s)
        return self.static(given) if isinstance(given, FakeTensor) else given

    def static(self, fake: FakeTensor) -> torch.Tensor:
        """The tensor with integers as sizes, which rules of placements take."""
        if fake.symbols is None:
            return fake
        spec, number = fake.storage_view.spec, fake.symbols.specialise
        sizes, strides = list(map(number, spec.sizes)), list(map(number, spec.strides))
        with self.mode:
            return fake.as_strided(sizes, strides, number(spec.offset))

    def lift(self, result: object) -> Value:
        """The value of a result: an argument that was changed in place is itself."""
        mode = self.mode
        if isinstance(result, list | tuple):
            items = [self.lift(item) for item in result]
            return List(items) if isinstance(result, list) else Tuple(items)
        if not isinstance(result, torch.Tensor):
            return mode.state.wrap(result, None)
        _, value = self.values.get(id(result), (None, None))
        if value is None:
            return made_inside(mode, result) if type(result) in NATIVE_WRAPPERS else mode.lift(arrived(mode, result))
        if getattr(result, SPEC) != value.part(SPEC).real():
            raise UnsupportedCall(function="an operator in place", why="it changes the placements of a DTensor")
        return value


def run_natively(
    mode: InnerCalls, function: Callable[..., object], args: Sequence[Value], kwargs: Mapping[str, Value],
    before: tuple[object, ...] = (),
) -> Value:  # fmt: skip
    """Torch's code on DTensors of fakes; what it calls on the fakes is recorded. `before`: its first arguments."""
    given = NativeArguments(mode)
    arguments = [given.real(arg) for arg in args]
    named = {name: given.real(value) for name, value in kwargs.items()}
    masks = mode.state.part(Masks)
    try:
        masks.lend(specs_of(value for _, value in given.values.values()))
        with mode, torch.no_grad():
            result = function(*before, *arguments, **named)
        made = given.lift(result)
        masks.take_back(specs_of(subclassed(mode.state, [made])))
        return made
    except BaseException:
        masks.take_back(())
        forget_masks()
        raise


def specs_of(values: Iterable[Object]) -> list[object]:
    return [value.part(SPEC).real() for value in values if isinstance(value, DTensorObject)]


class MaskBuffer(Protocol):
    """Torch's."""

    data: object
    refcount: int


@final
@dataclass
class Masks:
    """What a sharded embedding leaves in a buffer of the placement of its result until that is reduced: a fake, which
    must not be there when eager comes. `held`: the buffers by `id`, with what they contain in this capture."""

    held: dict[int, tuple[MaskBuffer, object, int]] = field(default_factory=dict)
    lent: list[MaskBuffer] = field(default_factory=list)

    def lend(self, specs: Iterable[object]) -> None:
        for buffer in buffers(specs):
            self.lent.append(buffer)
            if id(buffer) in self.held:
                _, buffer.data, buffer.refcount = self.held[id(buffer)]

    def take_back(self, specs: Iterable[object]) -> None:
        """Also what is in those of the results."""
        for buffer in {id(buffer): buffer for buffer in (*self.lent, *buffers(specs))}.values():
            self.held[id(buffer)] = buffer, buffer.data, buffer.refcount
            buffer.data, buffer.refcount = None, 0
        self.lent.clear()


def forget_masks() -> None:
    """Torch's code failed: it may have left a fake in a buffer that nothing here refers to."""
    for buffer in gc.get_objects():
        if type(buffer).__name__ == "MaskBuffer" and type(getattr(buffer, "data", None)) is FakeTensor:
            buffer.data, buffer.refcount = None, 0


def buffers(specs: Iterable[object]) -> Iterator[MaskBuffer]:
    for spec in specs:
        for placement in getattr(spec, "placements", ()):
            if hasattr(placement, "mask_buffer"):
                yield placement.mask_buffer


def dispatch(mode: InnerCalls, func: OpOverload, args: Args, kwargs: Kwargs) -> Value:
    """An operator on DTensors, below autograd."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise UnsupportedCall(function=str(func), why="random numbers of a DTensor come from the states of its ranks")
    if func is torch.ops.aten.equal.default:
        raise UnsupportedCall(function=str(func), why="all ranks compare")
    return run_natively(mode, func, args, kwargs)


def arrived(mode: InnerCalls, tensor: torch.Tensor) -> torch.Tensor:
    """What a functional collective of eager gives, once it is there."""
    module = sys.modules.get(COLLECTIVES)
    if module is None or type(tensor) is not module.AsyncCollectiveTensor:
        return tensor
    if not tensor.completed:  # type: ignore[attr-defined]
        with mode:
            tensor.elem = torch.ops._c10d_functional.wait_tensor.default(tensor.elem)  # type: ignore[attr-defined]
        tensor.completed = True  # type: ignore[attr-defined]
    made: torch.Tensor = tensor.elem  # type: ignore[attr-defined]
    return made


def register_dtensors() -> None:
    """Fill the tables, once the program has imported DTensor, which loads much."""
    module = sys.modules.get(TENSOR)
    if module is None or getattr(module.__spec__, "_initializing", False):  # perhaps in another thread
        return
    if module.DTensor in NATIVE_WRAPPERS:
        return
    placements, specs = sys.modules[PLACEMENTS], sys.modules[f"{TENSOR}._dtensor_spec"]
    NATIVE_WRAPPERS[module.DTensor] = NativeWrapper(from_outside, dispatch, DTensorObject)
    names = (*PLACEMENT_CLASSES, "_StridedShard", "_MaskPartial")
    made = [getattr(placements, name) for name in names if hasattr(placements, name)]
    for kind in (module.DeviceMesh, *made):
        LAYOUTS[kind] = None
        WRAPPERS[kind] = wrap_layout
    LAYOUTS[specs.DTensorSpec] = None
    for kind in made:
        handles(kind)(natively(kind))
        if kind.__name__ != "_MaskPartial":  # which has a buffer
            add_constants(kind)
    check = getattr(sys.modules[f"{TENSOR}._utils"], "assert_no_mixed_partial_types", None)
    if check is not None:
        handles(check)(natively(check))


def natively(function: Callable[..., object]) -> Callable[[CaptureState, Args, Kwargs], Value]:
    return lambda s, args, kwargs: call_natively(s, function, args, kwargs)
