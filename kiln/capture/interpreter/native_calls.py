"""Calls of functions written in C that change nothing but their arguments: made while tracing, on real objects.

heapq.heappush(heap, (cost, node))       a list with the items of `heap`, a tuple with a proxy for `node`
bytes(Indexed())                         a proxy whose `__index__` is interpreted when C asks for it
a = array("i"); a.append(3)              the array itself, which only the frame knows: a NativeObject

C code gets constants as they are, mirrors of containers (equal ones, read back after the call and whenever it calls
the program), and proxies of all else: objects whose special methods interpret those of the value they stand for. So
the order of calls, the errors and the identities are those of the function itself.
"""

from __future__ import annotations

import functools
import sys
import traceback
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar, cast, final

import torch

from kiln.capture.interpreter.arity import error_of_call, refuse_unread
from kiln.capture.interpreter.breaks import AS_CONSTANT, PastStep, Raised, UnsupportedCall, UnsupportedOperation
from kiln.capture.interpreter.core import (
    MISSING,
    Args,
    CaptureState,
    Handler,
    Kwargs,
    Value,
)
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.pure import PURE_TYPES, holds, is_confined, is_confined_class, is_written_in_c
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.exception import Traceback
from kiln.capture.interpreter.variables.function import Cell
from kiln.capture.interpreter.variables.mapping import Dict, DictView
from kiln.capture.interpreter.variables.mirror import Mirror, Real, contents
from kiln.capture.interpreter.variables.native_object import PLAIN, Foreign, NativeObject, built_in_base
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Sequence, Slice, Tuple, all_items
from kiln.capture.interpreter.variables.set_tables import plain_set
from kiln.capture.interpreter.variables.sets import Set, take_order
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.heard_warnings import hearing
from kiln.support.records import dataclass

C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
NOT_LOWERED = (Cell, Traceback)
CONTAINERS = (OrderedDict, dict, list, set, frozenset, tuple)
ALWAYS = ("__repr__", "__reduce_ex__", "__reduce__", "__sizeof__", "__dir__")
"""What `object` says of a proxy would not be true of the value."""
NOT_CALLED = frozenset((
    *("__new__", "__init__", "__class__", "__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__dict__"),
    *("__doc__", "__module__", "__weakref__", "__slots__", "__init_subclass__", "__subclasshook__", "__del__"),
    *("__class_getitem__", "__set_name__", "__annotations__", "__qualname__", "__match_args__", "__get__", "__set__"),
    *("__firstlineno__", "__static_attributes__", "__replace__", "__slotnames__"),
))  # fmt: skip
"""Double-underscore names that are not special methods of instances, or that C code does not call."""
UNSHARED = 2
"""`sys.getrefcount` in `Natives.lift` of what C code has just made."""
MIRRORED = frozenset((list, dict, OrderedDict, defaultdict, set))
TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Hashed by identity, as their proxies are."""
PLAIN_RESULTS = frozenset((*PURE_TYPES, types.CodeType, type(NotImplemented))) - {tuple, frozenset, slice}
R = TypeVar("R")
OPERATIONS: dict[str, Callable[[CaptureState, Value, Args, Kwargs], Value | None]] = {
    "__iter__": lambda s, value, args, kwargs: value.iterate(s),
    "__next__": lambda s, value, args, kwargs: value.next(s),
    "__call__": lambda s, value, args, kwargs: value.call(s, args, kwargs),
    "__eq__": lambda s, value, args, kwargs: s.const(s.model.equal(s, value, args[0])),
}
"""Special methods of values that are no instances of classes of the program."""


def c_base(value: Object) -> type | None:
    """The class written in C from which the class of an object derives; None if a proxy cannot derive from it."""
    found = next(kind for kind in value.cls.__mro__ if is_written_in_c(kind))
    modelled = found is object or (found in CONTAINERS and value.native is not None)
    return found if modelled and value.cls is not found else None


@final
class Natives:
    """What C code has seen and made in one capture. `call` is the entry; `lower` and `lift` translate."""

    def __init__(self, s: CaptureState) -> None:
        self.state = s
        self.reals: dict[int, tuple[Value, object]] = {}
        """By the `id` of a value: the object that C code gets."""
        self.values: dict[int, tuple[object, Value]] = {}
        """By the `id` of such an object, or of one that C made."""
        self.mirrors: dict[int, Mirror] = {}
        self.classes: dict[tuple[int, type], type] = {}
        """The class of proxies for a class and the built-in class that it derives from."""
        self.errors: dict[int, tuple[BaseException, Value]] = {}
        self.stop: BaseException | None = None
        """What ends the capture, raised in code that C has called and may have caught."""
        self.made_at: PastStep | None = None
        self.holds = False
        """Whether the running function only holds its arguments: numbers that sizes decide stay symbols."""

    def call(self, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
        """`function(*args, **kwargs)`, which is confined."""
        return self.lift(self.run(function, args, kwargs))

    def run(self, function: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """The same as a real object."""
        s, frame = self.state, running_frame(self.state)
        self.holds = holds(function)
        given = [self.lower(arg) for arg in args]
        named = {name: self.lower(arg) for name, arg in kwargs.items()}
        refuse_other_model(function, args, given)
        self.refresh()
        s.counters.consumed += 1  # a break behind this point is one in front of the whole instruction
        outer = self.stop, self.made_at
        self.stop, self.made_at = None, PastStep(frame.number, frame.step, frame.location())
        try:
            with hearing() as warned:
                result = function(*given, **named)
            if self.stop is not None:
                raise self.stop
            self.read_back()
        except Exception as error:
            self._raise(error)
        finally:
            self.stop, self.made_at = outer[0], self.made_at if outer[1] is None else outer[1]
        if warned:
            raise unsupported(function, "it warns")
        return result

    def _raise(self, error: Exception) -> None:
        """Raise what C code has raised, in the program."""
        if self.stop is not None:
            raise self.stop
        self.read_back()
        known = self.errors.get(id(error))
        if known is not None:
            raise Raised(known[1]) from None
        if isinstance(error, RecursionError):
            raise error
        made = self.state.error(type(error), *[self.lift(arg) for arg in error.args])
        cause = self.errors.get(id(error.__cause__))
        if cause is not None:
            made.value.attrs["__cause__"] = cause[1]
        raise made from None

    def enter(self, proxy: object, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """C code calls a special method of a proxy: interpret it."""
        s, value = self.state, self.values[id(proxy)][1]
        self.read_back()
        try:
            given, named = [self.lift(arg) for arg in args], {key: self.lift(arg) for key, arg in kwargs.items()}
            operation = OPERATIONS.get(name) if not isinstance(value, Object) else None
            if name == "__getattr__":
                found: Value | None = value.get_attr(s, given[0].constant(s))
            elif operation is not None:
                found = operation(s, value, given, named)
            else:
                found = s.call_special(value, name, given, named)
            if found is None:
                raise s.error(StopIteration)
            result = self.lower(found)
            self.refresh()
            return result
        except Raised as raised:
            error = self.exception(raised.value)
            self.refresh()
        except BaseException as stop:
            self.stop = stop
            raise
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame

    def exception(self, value: Value) -> BaseException:
        """A real exception of the class of one of the program."""
        known = self.reals.get(id(value))
        if known is not None and isinstance(known[1], BaseException):
            return known[1]
        cls = value.python_type()
        base = next(kind for kind in cls.__mro__ if is_written_in_c(kind))
        args = all_items(self.state, value.get_attr(self.state, "args"))
        make: Callable[..., BaseException] = base.__new__
        made = make(cls, *[self.lower(arg) for arg in args])
        self.reals[id(value)], self.errors[id(made)] = (value, made), (made, value)
        return made

    def lower(self, value: Value) -> object:
        """The object that C code gets for a value."""
        if value.is_constant:
            return value.constant(self.state)
        known = self.reals.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, NativeObject):
            return value.object
        if isinstance(value, Slice):
            return slice(*[self.lower(part) for part in value.parts])
        if isinstance(value, DictView):
            return getattr(self.lower(value.mapping), value.what)()
        if isinstance(value, Sequence | Dict | Set):
            return self.container(value)
        return self._callable_or_proxy(value)

    def _callable_or_proxy(self, value: Value) -> object:
        s = self.state
        real = value.real()
        if issubclass(type(real), type):  # `isinstance` asks a proxy, whose object may be gone
            value.constant(s)
            if is_confined_class(real) or is_named_tuple(real):
                return real
            raise UnsupportedCall(function=real.__qualname__, why="C code gets a class of the program")
        if type(real) in C_FUNCTIONS and is_confined(real):
            return value.constant(s)
        if isinstance(value, BoundMethod) and type(value.function.real()) in C_FUNCTIONS:
            owner = self.lower(value.self_)
            return getattr(owner, value.function.real().__name__)
        if value.python_type() in PLAIN_RESULTS:  # a number or a text that is not known yet
            return self.proxy(value) if self.holds else value.constant(s)
        if isinstance(value, NOT_LOWERED):
            raise value.unsupported("use in C code", "it has no proxy")
        if isinstance(value, Object) and issubclass(value.cls, BaseException):
            return self.exception(value)
        if isinstance(value, Object) and c_base(value) is None:
            if plain_value(s, value) is MISSING:
                return value.constant(s)
            if id(value) not in self.reals:
                raise value.unsupported("use in C code", "it is a tensor of a subclass")
            return self.reals[id(value)][1]
        return self.proxy(value)

    def container(self, value: Sequence | Dict | Set) -> object:
        """A real container with the items of `value`."""
        s, cls = self.state, value.python_type()
        if cls in MIRRORED and not (isinstance(value, Dict) and isinstance(value.real(), types.MappingProxyType)):
            real: Any = cls()
            if isinstance(value, Dict) and value.factory is not None:
                real.default_factory = self.lower(value.factory)
            return self.mirror(value, self.keep(value, real))
        if isinstance(value, Tuple) and (cls in (tuple, torch.Size) or is_named_tuple(cls)):
            items = [self.lower(item) for item in value.items(s)]
            made = torch.Size(cast("list[int]", items)) if cls is torch.Size else tuple.__new__(cls, items)
            return self.keep(value, made) if items else cls()
        if isinstance(value, Set) and cls is frozenset:
            return self.keep(value, frozenset([self.lower(item) for item in value.items(s).values()]))
        raise value.unsupported("use in C code", "its class is not modelled")

    def mirror(self, value: Sequence | Dict | Set, real: R) -> R:
        made = self.mirrors[id(value)] = Mirror(value, cast(Real, real))
        made.fill(self.state, self.lower)
        return real

    def keep(self, value: Value, real: R) -> R:
        self.reals[id(value)] = value, real
        self.values[id(real)] = real, value
        return real

    def refresh(self) -> None:
        """Before C code runs: containers get what the program has changed."""
        for mirror in list(self.mirrors.values()):
            mirror.fill(self.state, self.lower)

    def read_back(self) -> None:
        """After C code: values get what it has changed."""
        for mirror in list(self.mirrors.values()):
            mirror.read_back(self.state, self.lift)

    def lift(self, real: Any) -> Value:
        """The value of an object that C code has returned or passed."""
        known = self.values.get(id(real)) or self.errors.get(id(real))
        if known is not None:
            return known[1]
        kind = type(real)
        if kind in (list, dict, OrderedDict, defaultdict, set):
            made = self._lift_container(real, kind)
            if sys.getrefcount(real) > UNSHARED:  # an object of C holds it, too
                self.mirrors[id(made)] = Mirror(made, self.keep(made, real), contents(real))
            elif isinstance(made, Set):
                take_order(self.state, made, real)
            return made
        if kind is tuple or is_named_tuple(kind):
            return Tuple([self.lift(item) for item in tuple.__iter__(real)], kind)
        if kind is frozenset:
            return self._lift_frozen(real)
        if kind is slice:
            return Slice([self.lift(part) for part in (real.start, real.stop, real.step)])
        return self._lift_object(real)

    def _lift_frozen(self, real: frozenset[object]) -> Set:
        """The items, in their order, of a frozenset or of a proxy that derives from it."""
        plain = real if type(real) is frozenset else plain_set(real)
        items = [self.lift(item) for item in frozenset.__iter__(real)]
        made = Set({item.key(self.state): item for item in items}, frozenset)
        if plain is None:
            raise made.unsupported("use in C code", "the order of its items is not known")
        take_order(self.state, made, plain)
        return made

    def _lift_container(self, real: Real, kind: type) -> List | Dict | Set:
        if isinstance(real, list):
            return List([self.lift(item) for item in real])
        if not isinstance(real, dict):
            items = [self.lift(item) for item in real]
            return Set({item.key(self.state): item for item in items}, kind)
        pairs = [(self.lift(key), self.lift(item)) for key, item in real.items()]
        made = Dict({key.key(self.state): (key, value) for key, value in pairs}, kind)
        if isinstance(real, defaultdict) and real.default_factory is not None:
            made.factory = self.lift(real.default_factory)
        return made

    def _lift_object(self, real: object) -> Value:
        kind: type = type(real)
        if kind in PLAIN_RESULTS or isinstance(real, type):
            return self.state.wrap(real, None)
        if kind is types.BuiltinFunctionType and id(getattr(real, "__self__", None)) not in self.values:
            return self.state.wrap(real, None)
        if not is_confined_class(kind):
            raise UnsupportedCall(function=kind.__qualname__, why="C code returns what is not modelled")
        assert self.made_at is not None
        made = NativeObject(self, real, self.made_at)
        self.values[id(real)] = real, made
        return made

    def proxy(self, value: Value) -> object:
        """An object whose special methods are those of the value."""
        cls = value.python_type()
        native = value.native if isinstance(value, Object) else None
        base = (c_base(value) or object) if isinstance(value, Object) else object
        kind = self.proxy_class(cls, base)
        if isinstance(native, Tuple) or (isinstance(native, Set) and base is frozenset):
            items = native.items(self.state)
            held = list(items.values()) if isinstance(items, dict) else items
            immutable = tuple if base is tuple else frozenset
            return self.keep(value, immutable.__new__(kind, [self.lower(item) for item in held]))
        made: object = self.keep(value, functools.partial(base.__new__, kind)())
        if isinstance(native, List | Dict | Set):
            self.mirror(native, made)
        return made

    def proxy_class(self, cls: type, base: type) -> type:
        found = self.classes.get((id(cls), base))
        if found is None:
            found = self.classes[id(cls), base] = new_proxy_class(self.state, cls, base, self.enter)
            s = self.state
            self.values[id(found)] = found, s.wrap(cls, s.classes.path(cls))  # C code may return `type(self)`
        return found

    def construct(self, cls: type, base: type, args: Args, kwargs: Kwargs) -> Object:
        """`base.__new__(cls, ...)`, for a class of the program that derives from one written in C."""
        made = Object(cls)
        real = self.run(functools.partial(base.__new__, self.proxy_class(cls, base)), args, kwargs)
        assert self.made_at is not None
        self.keep(made, real)
        made.foreign = Foreign(self, real, self.made_at)
        if isinstance(real, frozenset):
            made.native = self._lift_frozen(real)
        return made


Enter = Callable[[object, str, tuple[object, ...], dict[str, object]], object]


def new_proxy_class(s: CaptureState, cls: type, base: type, enter: Enter) -> type:
    """The class of proxies: its special methods `enter` the interpreter."""
    names: dict[str, object] = {"__getattr__": trampoline("__getattr__", enter), "__module__": cls.__module__}
    special = {name for kind in cls.__mro__ for name in vars(kind) if name[:2] == name[-2:] == "__"} - NOT_CALLED
    for name in special:
        found = s.classes.lookup(cls, name)
        if found is not None and found[0] not in base.__mro__ and not (name == "__hash__" and cls in TENSORS):
            names[name] = None if found[1] is None else trampoline(name, enter)
    if "__eq__" in names:  # which does not decide on the hash of a class that exists
        names.setdefault("__hash__", base.__hash__)
    for name in ("__new__", "__init__"):
        found = s.classes.lookup(cls, name)
        if found is not None and not is_written_in_c(found[0]):  # C code may refuse arguments where there is none
            names[name] = not_run
    if base is object:
        names.update({name: trampoline(name, enter) for name in ALWAYS})
    return type(cls.__name__, (base,), names)


def not_run(*args: object, **kwargs: object) -> None:
    """Stands for a method of the program that C code asks for and does not call."""


def trampoline(name: str, enter: Enter) -> Callable[..., object]:
    def method(self: object, /, *args: object, **kwargs: object) -> object:
        return enter(self, name, args, kwargs)

    return method


@final
@dataclass
class NativeCalls:
    """The `Natives` of one capture, made when C code is first called."""

    natives: Natives | None = None


def release(s: CaptureState) -> None:
    """When the capture is over: nothing of the program is kept alive."""
    found = s.part(NativeCalls).natives
    if found is not None:
        for table in (found.reals, found.values, found.mirrors, found.classes, found.errors):
            table.clear()
        del found.state  # classes of proxies, which wait for the collector, refer to this object
        s.part(NativeCalls).natives = None


def natives(s: CaptureState) -> Natives:
    found = s.part(NativeCalls)
    if found.natives is None:
        found.natives = Natives(s)
    return found.natives


def plain_value(s: CaptureState, value: Object) -> object:
    """The number, string or tensor that an instance of a derived class is, MISSING if it is none; outside, its identity
    is guarded."""
    if value.foreign is not None:  # also what a tensor of a subclass is
        return value.foreign.plain()
    base = built_in_base(value.cls)
    if base is None or value.original is MISSING or s.classes.lookup(value.cls, "__del__") is not None:
        return MISSING  # of a `__del__` the program sees how long the object itself lives
    found, frame = natives(s), running_frame(s)
    s.guard(value.source, GuardKind.IS, s.reference(value.original))
    kind = found.proxy_class(value.cls, next(kind for kind in value.cls.__mro__ if is_written_in_c(kind)))
    real = found.keep(value, base.__new__(kind, PLAIN[base](value.original)))
    value.foreign = Foreign(found, real, PastStep(frame.number, frame.step, frame.location()))
    return value.foreign.plain()


def is_named_tuple(cls: type) -> bool:
    """Whether the class is as `collections.namedtuple` makes it: its methods may run while tracing."""
    return issubclass(cls, tuple) and cls.__bases__ == (tuple,) and hasattr(cls, "_fields") and hasattr(cls, "_make")


def iterator_slot(s: CaptureState, function: Callable[..., object], args: Args) -> Value | None:
    """`__iter__` or `__next__` of an iterator that has a model; None for other calls."""
    name = getattr(function, "__name__", "")
    if len(args) != 1 or isinstance(args[0], Object | NativeObject) or args[0].is_constant:
        return None
    if not issubclass(args[0].python_type(), getattr(function, "__objclass__", ())):
        return None
    if name == "__iter__" and s.classes.lookup(args[0].python_type(), "__next__") is not None:
        return args[0]
    if name != "__next__":
        return None
    item = args[0].next(s)
    if item is None:
        raise s.error(StopIteration)
    return item


def refuse_other_model(function: Callable[..., object], args: Args, given: list[object]) -> None:
    """A method written in C of a class whose instances have a model: it cannot work on a proxy."""
    owner = getattr(function, "__objclass__", None)
    if owner is not None and given and not isinstance(given[0], owner) and issubclass(args[0].python_type(), owner):
        raise unsupported(function, f"it works on a {args[0].type_name()} itself")


def unsupported(function: Callable[..., object], why: str) -> UnsupportedCall:
    return UnsupportedCall(function=getattr(function, "__qualname__", None) or repr(function), why=why)


HANDLER_FRAMES = 3
"""Of `call_handler`, a handler, and what the handler of a method wraps: deeper ones are faults of the compiler."""
COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def call_handler(
    s: CaptureState, function: Callable[..., object], handler: Handler, args: Args, kwargs: Kwargs
) -> Value:
    """The handler of a builtin; the function itself where the arguments are others than those that it models."""
    if (refused := error_of_call(function, len(args), kwargs)) is not None:
        raise s.error(TypeError, *refused.args)
    refuse_unread(function, handler, kwargs)
    begun = progress(s)
    try:
        return handler(s, args, kwargs)
    except (IndexError, ValueError, TypeError, OverflowError) as error:
        frames = traceback.extract_tb(error.__traceback__, HANDLER_FRAMES + 2)
        if sum(frame.name not in COMPREHENSIONS for frame in frames) > HANDLER_FRAMES:
            raise
        if not is_confined(function) or progress(s) != begun:
            s.counters.consumed += 1  # the handler may have changed something
            raise unsupported(function, "its arguments do not fit") from error
    except UnsupportedOperation as stop:
        if stop.details["operation"] != AS_CONSTANT or not is_confined(function) or progress(s) != begun:
            raise
    return natives(s).call(function, args, kwargs)


def progress(s: CaptureState) -> tuple[int, int, int]:
    """What grows when code of the program is interpreted or iterators are advanced."""
    return s.counters.frames, s.counters.consumed, len(s.recorder.calls)
