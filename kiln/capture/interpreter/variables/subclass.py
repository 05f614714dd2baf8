"""Tensors of subclasses: objects with attributes, which are tensors for the functions that get them.

    class Scaled(torch.Tensor)          a wrapper: `__torch_dispatch__`, inner tensors in its attributes, no memory
    class Tagged(torch.Tensor)          a tensor of another class, maybe with `__torch_function__`
    class Named                         an object that is no tensor, with `__torch_function__`: step 1 only

    torch.mm(a, w)                      1. `type(w).__torch_function__(torch.mm, types, (a, w), {})`, interpreted
                                        2. of a wrapper, `type(w).__torch_dispatch__(aten.mm, types, (a, w), {})`
                                           for each operator that the call consists of; else recorded on the tensor

A wrapper is represented in torch's own code by a fake tensor with its metadata, `outer`, which never reaches the
recorder: only calls on the tensors inside of it are recorded. Its inner tensors are inputs of the region by their path.
Of a class in `NATIVE_WRAPPERS` torch's own code is run in step 2, on wrappers of the inner fakes.
Calls through which gradients are needed are made by `builtins/outer_tensors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import cache
from types import FunctionType
from typing import cast, final

import torch
from torch._ops import OpOverload

from kiln.capture.interpreter.breaks import NotConstant, Raised, TorchCallFailed, UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    SUBCLASS_WRAPPERS,
    Args,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
)
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.input_names import InputNames
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple
from kiln.capture.interpreter.variables.tensor import (
    READABLE,
    SETTABLE,
    UNSEEN,
    Overrides,
    RegionInput,
    RegionInputs,
    Tensor,
    TensorMethod,
    from_torch,
    record,
)
from kiln.capture.interpreter.variables.tensor_names import (
    METADATA_ATTRIBUTES,
    METADATA_METHODS,
    RECORDED_ATTRIBUTES,
    VALUE_METHODS,
)
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.fake import FakeTensor, innermost
from kiln.graph.trace.inputs import is_wrapper_class, refusal
from kiln.graph.trace.log import Target, target_name
from kiln.graph.trace.outer import make_outer
from kiln.runtime.guards.guard import GuardKind, tensor_expectation
from kiln.runtime.guards.source import Source
from kiln.runtime.subclasses import WrapperLayout, make_wrapper
from kiln.support.dispatch_mode import DispatchMode
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

DEFAULT_FUNCTION = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
"""The `__torch_function__` that classes inherit: results of the class, for all but a few functions."""


@final
@dataclass
class Subclassed:
    """The tensors of subclasses in one capture: the objects of outer fakes, by `id`."""

    objects: dict[int, Object] = field(default_factory=dict)


@final
class TensorPart:
    """What an object of a subclass is as a tensor: `outer` has its metadata; `inner` is the tensor without its class,
    None for a wrapper."""

    def __init__(self, s: CaptureState, outer: FakeTensor, inner: Tensor | None) -> None:
        self.state = s
        self.outer = outer
        self.inner = inner

    def read(self, name: str) -> Value:
        s = self.state
        value = s.part(Subclassed).objects[id(self.outer)]
        override = function_override(value.cls)
        if self.asks(value):
            getter = Builtin(getattr(torch.Tensor, name).__get__)
            result = by_torch_function(s, getter.callable, [value], {}, [value])
            assert result is not None
            return result
        if name == "grad" and value.source is not None:  # the leaf knows what it had; `inner` has no source
            return READABLE[name](s, as_leaf(s, self.outer))
        if self.inner is not None:
            found = self.inner.get_attr(s, name)
            keeps = override is None or name == "grad" or s.part(Overrides).disabled
            return found if keeps else in_class(s, found, value.cls)
        if name in ("is_leaf", "grad_fn") and self.outer.requires_grad and value.source is not None:
            raise UnsupportedAttribute(name=name, type=value.type_name(), why="it cannot be guarded")
        if name in METADATA_ATTRIBUTES:
            return Tensor(self.outer).get_attr(s, name)
        if name == "grad_fn" and self.outer.grad_fn is None:
            return s.const(None)
        if name not in RECORDED_ATTRIBUTES:
            raise UnsupportedAttribute(name=name, type=value.type_name(), why="it is not read of a wrapper")
        return dispatched(s, getattr, [value, s.const(name)], {})

    def asks(self, value: Object) -> bool:
        """Whether its class has a `__torch_function__` of its own, which is to be asked."""
        override = function_override(value.cls)
        own = override is not None and getattr(override, "__func__", None) is not DEFAULT_FUNCTION
        return own and not self.state.part(Overrides).disabled

    def write(self, name: str, value: Value | None) -> bool:
        """Set an attribute of torch; False if that is not known."""
        written = self.state.part(Subclassed).objects[id(self.outer)]
        known = name == "grad" and written.source is not None and not self.asks(written)
        if known:
            SETTABLE[name](self.state, as_leaf(self.state, self.outer), value)
        return known

    def plain(self) -> object:
        return self.outer

    def emit(self, value: Value, g: Codegen) -> None:
        if self.inner is not None:
            g.make(None, torch.Tensor.as_subclass, self.inner, g.state.classes.written(value.python_type()))
        elif self.outer.requires_grad:  # with its autograd node, from the region
            g.tensor(self.outer)
        else:
            fake = self.outer
            parts = (tuple(fake.shape), fake.stride(), fake.storage_offset(), fake.dtype, fake.device)
            g.make(None, make_wrapper, g.state.classes.written(value.python_type()), *parts)
        g.remember(value)


def part_of(value: Value) -> TensorPart | None:
    """What a value is as a tensor of a subclass."""
    found = value.foreign if isinstance(value, Object) else None
    return found if isinstance(found, TensorPart) else None


def as_leaf(s: CaptureState, fake: FakeTensor) -> Tensor:
    """The tensor of a leaf; of a wrapper, its outer fake with the path to it."""
    wrapper = s.part(Subclassed).objects.get(id(fake)) if fake.is_outer else None
    if wrapper is None or wrapper.source is None:
        return s.part(RegionInputs).by_fake.setdefault(id(fake), Tensor(fake))
    assert isinstance(wrapper.original, torch.Tensor)
    return s.part(RegionInputs).by_fake.setdefault(id(fake), Tensor(fake, wrapper.source, wrapper.original))


def new_subclass(s: CaptureState, value: Object, outer: FakeTensor, inner: Tensor | None) -> Object:
    """Make `value` a tensor."""
    overrides = s.part(Overrides)
    overrides.call = call
    s.counters.unguarded += 1  # what its class does is not guarded as a whole, so that no layer is repeated
    value.foreign = TensorPart(s, outer, inner)
    s.part(Subclassed).objects[id(outer)] = value
    return value


def of_class(s: CaptureState, tensor: Tensor, cls: type) -> Object:
    """`tensor.as_subclass(cls)`, for a class without `__torch_dispatch__`."""
    known = s.part(Subclassed).objects.get(id(tensor.fake))
    if known is not None and known.cls is cls:  # a call that returns its argument returns the same object
        return known
    return new_subclass(s, Object(cls), tensor.fake, tensor)


def bare_layout(cls: type, outer: FakeTensor) -> WrapperLayout:
    """A wrapper without what is inside."""
    return WrapperLayout(
        cls, tuple(outer.shape), outer.stride(), int(outer.storage_offset()), outer.dtype, outer.device
    )  # fmt: skip


def wrap_subclass(s: CaptureState, real: torch.Tensor, source: Source | None) -> Value:
    """A tensor of a subclass from outside."""
    known = type(real).__module__.startswith(OF_TORCH) and type(real) not in NATIVE_WRAPPERS
    with torch._C.DisableTorchFunctionSubclass():  # what is read of it here is no call of the program
        if source is None or known or refusal(real, subclass=True):
            raise UnsupportedInput(name=source.text() if source is not None else "a tensor", reason=refused(real))
        return s.identities.same_object(real, source, lambda: subclass_input(s, real, source))


def refused(real: torch.Tensor) -> str:
    return refusal(real, subclass=True) or f"it is a {type(real).__qualname__}"


OF_TORCH = ("torch.distributed.", "torch.nested.", "torch.masked.", "torch._", "torch.fx.")
"""Modules of classes of torch that are more than their Python code: DTensor, nested and fake tensors."""
SUBCLASS_WRAPPERS.append((torch.Tensor, wrap_subclass))


@final
@dataclass(frozen=True)
class NativeWrapper:
    """A class of torch whose operators torch's own code takes apart."""

    from_outside: Callable[[CaptureState, torch.Tensor, Source], Object]
    """The object of an input, not yet a tensor."""
    dispatch: Callable[[InnerCalls, OpOverload, Args, Kwargs], Value]
    make: Callable[[type], Object]
    """An object of the class without attributes."""


NATIVE_WRAPPERS: dict[type, NativeWrapper] = {}


def subclass_input(s: CaptureState, real: torch.Tensor, source: Source) -> Value:
    cls = type(real)
    value = NATIVE_WRAPPERS[cls].from_outside(s, real, source) if cls in NATIVE_WRAPPERS else Object(cls, source, real)
    s.guard_type(value)
    if not is_wrapper_class(cls):
        inputs = s.part(RegionInputs)
        fake = s.recorder.add_tensor(real, s.part(InputNames).name(source), source, s.policy.dims(real, source), True)
        inner = inputs.by_fake[id(fake)] = Tensor(fake, source, real)
        inputs.tensors.append(RegionInput(inner.fake, source, real))
        return new_subclass(s, value, inner.fake, Tensor(fake))
    s.guard(source, GuardKind.TENSOR, tensor_expectation(real))
    if not real.requires_grad:
        return new_subclass(s, value, make_outer(real), None)
    record = s.recorder.table.add_outer(real, s.part(InputNames).name(source), source)
    assert isinstance(record.fake, FakeTensor)
    return new_subclass(s, value, record.fake, None)


# Calls.


def subclassed(s: CaptureState, values: Args) -> Iterator[Object]:
    """The tensors of subclasses among arguments, also in sequences, and in dicts made in the frame."""
    return (value for value in asked(s, values) if part_of(value) is not None)


def asked(s: CaptureState, values: Args) -> Iterator[Object]:
    """The tensors of subclasses among arguments, and other objects whose class answers torch calls."""
    for value in values:
        if part_of(value) is not None or answers_calls(value):
            assert isinstance(value, Object)
            yield value
        elif isinstance(value, List | Tuple):
            yield from asked(s, value.items(s))
        elif isinstance(value, Dict) and isinstance(value._items, dict):
            yield from asked(s, [item for _, item in value._items.values()])


def answers_calls(value: Value) -> bool:
    """Whether an object that is no tensor has a `__torch_function__`."""
    return isinstance(value, Object) and part_of(value) is None and function_override(value.cls) is not None


def takes_calls(s: CaptureState, value: Object) -> bool:
    """Whether the class of an object, which is no tensor, is to be asked from now on."""
    overrides = s.part(Overrides)
    if overrides.disabled or not answers_calls(value):
        return False
    if overrides.call is None:
        overrides.call = call
        s.counters.unguarded += 1  # as in `new_subclass`
    return True


INTERCEPTORS: list[Callable[[CaptureState, Target, Args, Kwargs], Value | None]] = []
"""Answer calls on tensors that are not dense (`sparse_tensor.py`)."""


def call(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value | None:
    """What a torch call on tensors of subclasses, or objects with `__torch_function__`, gives; None without any."""
    for intercept in INTERCEPTORS:
        if (result := intercept(s, target, args, kwargs)) is not None:
            return result
    found = list(asked(s, [*args, *kwargs.values()]))
    shown = not s.part(Overrides).disabled and not is_never_shown(target)
    if not shown:
        found = [value for value in found if part_of(value) is not None]
    if not found:
        return None
    if not isinstance(target, str) and getattr(target, "__module__", None) == "_operator":
        target, args = behind_operator(s, target, args)
    if shown:
        try:
            probe = OperatorProbe if any(part_of(value) is not None for value in found) else ObjectProbe
            if any(map(answers_calls, found)):
                check_arguments(s, target, args, kwargs, found[0])
            result = by_torch_function(s, shown_function(target, probe), args, kwargs, found)
        except Raised as raised:
            if not issubclass(raised.value.python_type(), TypeError) or not hides_type_errors(target):
                raise
            return s.const(NotImplemented)
        if result is not None:
            return result
    return below_torch_function(s, target, args, kwargs, found)


def by_torch_function(s: CaptureState, target: Target, args: Args, kwargs: Kwargs, found: list[Object]) -> Value | None:
    """Ask each class, most derived ones first; None if none has a `__torch_function__`."""
    classes = overloaded([value for value in found if function_override(value.cls) is not None])
    if not classes:
        return None
    function = Builtin(getattr(torch.Tensor, target)) if isinstance(target, str) else s.wrap(target, None)
    kinds = Tuple([s.wrap(value.cls, s.classes.path(value.cls)) for value in classes])
    for value in classes:
        override = s.classes.lookup(value.cls, "__torch_function__")
        assert override is not None
        bound = s.model.bound_attr(s, value, "__torch_function__", override[1], NOT_RESUMABLE)
        result = unwatched(s, bound, [function, kinds, Tuple(args), named(s, kwargs)])
        if not s.is_none(result, NotImplemented):
            return result
    names = [value.cls for value in classes]
    raise s.error(TypeError, f"no implementation found for '{target_name(target)}' on types that implement: {names}")


def is_never_shown(target: Target) -> bool:
    """Whether eager asks no `__torch_function__`: what makes tensors of data, and what `vmap` and `grad` call."""
    return target in NEVER_SHOWN or getattr(target, "__module__", None) in UNSEEN


NEVER_SHOWN = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy)


@cache
def hides_type_errors(target: Target) -> bool:
    """Whether it is a method of an operator that answers a TypeError of `__torch_function__` with NotImplemented."""
    if isinstance(target, str) or getattr(target, "__objclass__", None) not in TENSOR_BASES:
        return False
    probe = torch.empty(0, device="cpu").as_subclass(RefusingProbe)
    with suppress(TypeError):
        return target(probe, probe) is NotImplemented
    return False


@final
class RefusingProbe(torch.Tensor):
    """Shows what becomes of a TypeError."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:  # type: ignore[override]
        raise TypeError


TENSOR_BASES = torch.Tensor.__mro__[:-1]
"""The classes that have the methods of tensors."""


@final
class OperatorProbe(torch.Tensor):
    """Shows which function of torch an operator calls, with which arguments."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:  # type: ignore[override]
        return func, args


@final
class ObjectProbe:
    """The same of an object that is no tensor, which operators ask differently: `tensor == probe` is `Tensor.eq`."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        return func, args


@cache
def shown_function(target: Target, kind: type[OperatorProbe | ObjectProbe]) -> Target:
    """What `__torch_function__` gets for a method of tensors: `Tensor.mul` for `__rmul__`, `numel` for `nelement`."""
    method = getattr(torch.Tensor, target) if isinstance(target, str) else target
    if getattr(method, "__objclass__", None) not in TENSOR_BASES or not callable(method):
        return target
    empty = torch.empty(0, device="cpu")
    probe = empty.as_subclass(OperatorProbe)
    calls = [(probe,), (probe, probe)] if kind is OperatorProbe else [(empty, ObjectProbe())]
    for given in calls:
        with suppress(TypeError):
            found = method(*given)
            if isinstance(found, tuple):  # else NotImplemented
                return cast(Target, found[0])
    return target


def check_arguments(s: CaptureState, target: Target, args: Args, kwargs: Kwargs, first: Object) -> None:
    """Raise what a function written in C raises for arguments that it takes of no one, before it asks a class."""
    method = getattr(torch.Tensor, target) if isinstance(target, str) else target
    if isinstance(method, FunctionType):
        return
    try:
        given = [stand_in(s, arg) for arg in args]
        named = {name: stand_in(s, arg) for name, arg in kwargs.items()}
    except NotConstant:
        return
    try:
        method(*given, **named)
    except TypeError as error:
        text = str(error).replace(ObjectProbe.__name__, first.cls.__name__)
        raise s.error(TypeError, text) from None


def stand_in(s: CaptureState, value: Value) -> object:
    """A value of the kind of an argument."""
    if isinstance(value, List | Tuple):
        return value.python_type()([stand_in(s, item) for item in value.items(s)])
    if answers_calls(value):
        return ObjectProbe()
    if isinstance(value, Tensor) or part_of(value) is not None:
        return torch.empty(0, device="cpu")
    return value.constant(s) if value.is_constant or isinstance(value, Object) else value.python_type()(1)


def behind_operator(s: CaptureState, target: Target, args: Args) -> tuple[Target, Args]:
    """`tensor + w` is `Tensor.add(tensor, w)`, `2 - w` is `Tensor.__rsub__(w, 2)`."""
    assert not isinstance(target, str)
    values: dict[int, Value] = {}
    given: list[object] = []
    for arg in args:
        tensor = isinstance(arg, Tensor) or part_of(arg) is not None or answers_calls(arg)
        given.append(
            torch.Tensor._make_subclass(OperatorProbe, torch.empty(0, device="cpu")) if tensor else arg.torch_arg(s)
        )
        values[id(given[-1])] = arg
    found = target(*given)
    if not isinstance(found, tuple) or not callable(found[0]):
        return target, args
    return found[0], [values.get(id(arg)) or s.wrap(arg, None) for arg in found[1]]


def named(s: CaptureState, kwargs: Kwargs) -> Value:
    return Dict({name: (s.const(name), value) for name, value in kwargs.items()})


def overloaded(values: list[Object]) -> list[Object]:
    """One of each class, subclasses before their bases."""
    found: list[Object] = []
    for value in values:
        if any(value.cls is other.cls for other in found):
            continue
        after = [at for at, other in enumerate(found) if issubclass(value.cls, other.cls)]
        found.insert(after[0] if after else len(found), value)
    return found


def function_override(cls: type) -> object:
    own = getattr(cls, "__torch_function__", None)
    return None if own is torch._C._disabled_torch_function_impl else own


def below_torch_function(s: CaptureState, target: Target, args: Args, kwargs: Kwargs, found: list[Object]) -> Value:
    if any(is_wrapper_class(value.cls) for value in found):
        return dispatched(s, target, args, kwargs)
    plain = [without_class(s, arg) for arg in args]
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in METADATA_METHODS | VALUE_METHODS and plain and isinstance(plain[0], Tensor):
        return TensorMethod(plain[0], name).call(s, plain[1:], kwargs)
    result = record(s, target, plain, {name: without_class(s, value) for name, value in kwargs.items()})
    itself = [value for value in found if isinstance(result, Tensor) and result.fake is value.torch_arg(s)]
    return itself[0] if itself else result


def without_class(s: CaptureState, value: Value) -> Value:
    """Arguments with plain tensors for those of subclasses."""
    part = part_of(value)
    if part is not None and part.inner is not None:
        return part.inner
    if isinstance(value, List | Tuple):
        items = [without_class(s, item) for item in value.items(s)]
        if any(made is not item for made, item in zip(items, value.items(s), strict=True)):
            return List(items) if isinstance(value, List) else Tuple(items)
    return value


def dispatched(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value:
    """Run a call on outer fakes, in which the operators that reach the dispatcher are interpreted."""
    if torch.is_grad_enabled() and any(needs_grad(value.torch_arg(s)) for value in (*args, *kwargs.values())):
        [call_with_gradients] = WITH_GRADIENTS
        return call_with_gradients(s, target, args, kwargs)
    mode, result = run_dispatched(s, target, args, kwargs)
    return mode.lift(result)


def run_dispatched(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> tuple[InnerCalls, object]:
    """The mode, which knows the values of results, and the result of the call."""
    given = [arg.torch_arg(s) for arg in args]
    keywords = {name: value.torch_arg(s) for name, value in kwargs.items()}
    mode, cached = InnerCalls(s), torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # it would keep fakes
    try:
        with mode:
            if isinstance(target, str):
                return mode, getattr(given[0], target)(*given[1:], **keywords)
            return mode, target(*given, **keywords)
    except (KilnError, Raised):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TorchCallFailed.because_of(target_name(target), error) from error
    finally:
        torch.set_autocast_cache_enabled(cached)


WITH_GRADIENTS: list[Callable[[CaptureState, Target, Args, Kwargs], Value]] = []
"""Makes a call on wrappers through which gradients are needed (`builtins/outer_tensors.py`)."""


def needs_grad(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(needs_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


@final
class InnerCalls(DispatchMode):
    """Gives operators with a wrapper among their arguments to its `__torch_dispatch__`, and records the others."""

    def __init__(self, s: CaptureState, records: bool = True) -> None:
        super().__init__()
        self.state = s
        self.records = records
        """Whether operators on tensors that are no wrappers are calls of the log."""

    def __torch_dispatch__(  # type: ignore[override]
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        s = self.state
        if NATIVE_WRAPPERS and not NATIVE_WRAPPERS.keys().isdisjoint(types):
            return NotImplemented  # torch's own code is next, and calls operators on what is inside
        if NATIVE_WRAPPERS and FakeTensor not in types and is_computing_layouts():
            with without_modes():
                return func(*args, **(kwargs or {}))
        values = [self.lift(arg) for arg in args]
        keywords = {name: self.lift(arg) for name, arg in (kwargs or {}).items()}
        wrappers = [value for value in subclassed(s, [*values, *keywords.values()]) if is_wrapper_class(value.cls)]
        if not wrappers and not self.records:
            return func(*args, **(kwargs or {}))
        if not wrappers:
            return record(s, func, values, keywords).torch_arg(s)
        for value in overloaded(wrappers):
            native = NATIVE_WRAPPERS.get(value.cls)
            if native is not None:
                return lowered(s, native.dispatch(self, func, values, keywords))
            result = call_dispatch(s, value, func, [*values], keywords)
            if not s.is_none(result, NotImplemented):
                return lowered(s, result)
        raise s.error(TypeError, f"Multiple dispatch failed for '{func}': all `__torch_dispatch__` gave NotImplemented")

    def lift(self, value: object) -> Value:
        """The value of what torch's code has."""
        s = self.state
        if isinstance(value, list):
            return List([self.lift(item) for item in value])
        if type(value) is tuple:
            return Tuple([self.lift(item) for item in value])
        found = s.part(Subclassed).objects.get(id(value))
        if found is None and isinstance(value, torch.Tensor) and type(innermost(value)) is not FakeTensor:
            return Tensor(s.recorder.add_constant(value))  # C++ makes one of a number
        return found if found is not None else from_torch(s, value)


def is_computing_layouts() -> bool:
    """Whether torch's code runs operators on fake tensors of its own, to find the sizes of a result."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@contextmanager
def without_modes() -> Iterator[None]:
    """Take Kiln's modes, which torch asks first, off the stack."""
    taken: list[DispatchMode] = []
    while isinstance(torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1), DispatchMode):
        taken.append(torch._C._pop_torch_dispatch_stack(None))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for mode in reversed(taken):
            torch._C._push_on_torch_dispatch_stack(mode)


def call_dispatch(s: CaptureState, value: Object, func: OpOverload, args: Args, kwargs: Kwargs) -> Value:
    """`type(value).__torch_dispatch__(func, types, args, kwargs)`, interpreted below torch function and autograd."""
    override = s.classes.lookup(value.cls, "__torch_dispatch__")
    assert override is not None
    bound = s.model.bound_attr(s, value, "__torch_dispatch__", override[1], NOT_RESUMABLE)
    kinds = Tuple([s.wrap(value.cls, s.classes.path(value.cls))])
    return unwatched(s, bound, [Builtin(func), kinds, Tuple(args), named(s, kwargs)])


def unwatched(s: CaptureState, override: Value, args: Args) -> Value:
    """Call it, also in a backward: the tables of operators that it reads are the same then."""
    watch, s.watch = s.watch, None
    try:
        return override.call(s, args, {})
    finally:
        s.watch = watch


def lowered(s: CaptureState, value: Value) -> object:
    """What torch's code gets for a result."""
    if isinstance(value, Sequence):
        items = [lowered(s, item) for item in value.items(s)]
        return tuple(items) if isinstance(value, Tuple) else items
    return value.torch_arg(s)


def default_function(s: CaptureState, cls: type, function: Value, args: Value, kwargs: Value | None) -> Value:
    """`torch.Tensor.__torch_function__`."""
    overrides = s.part(Overrides)
    assert isinstance(args, Sequence)
    given = {str(key): value for key, (_, value) in kwargs.items(s).items()} if isinstance(kwargs, Dict) else {}
    before, overrides.disabled = overrides.disabled, True
    try:
        result = function.call(s, list(args.items(s)), given)
    finally:
        overrides.disabled = before
    if function.real() in torch.overrides.get_default_nowrap_functions():
        return result
    return in_class(s, result, cls)


def in_class(s: CaptureState, value: Value, cls: type) -> Value:
    """Results as tensors of the class."""
    part = part_of(value)
    if part is not None and part.inner is not None and not issubclass(value.python_type(), cls):
        value = part.inner  # an argument, of a base of the class
    if isinstance(value, Tensor) and cls is not torch.Tensor:
        if is_wrapper_class(cls):
            raise UnsupportedCall(function=cls.__name__, why="a plain tensor becomes a wrapper without inner tensors")
        return of_class(s, value, cls)
    if isinstance(value, List | Tuple):
        items = [in_class(s, item, cls) for item in value.items(s)]
        if any(made is not item for made, item in zip(items, value.items(s), strict=True)):
            return List(items) if isinstance(value, List) else Tuple(items, value.cls)
    return value
