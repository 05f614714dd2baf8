"""Callables written in C, torch's functions, and Python modules.

len(x)               a handler of HANDLERS
torch.abs(x)         recorded
math.sqrt(2.0)       in the table of pure functions: computed
"a b".split()        a method of an immutable built-in type, on constants: computed
time.time()          none of these: graph break
"""

from __future__ import annotations

import _thread
import collections
import functools
import sys
import types
from collections.abc import Callable
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.breaks import AS_CONSTANT, SideEffectCall, UnsupportedCall, UnsupportedOperation
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
    wraps,
)
from kiln.capture.interpreter.effects import Container
from kiln.capture.interpreter.native_calls import call_handler, iterator_slot, natives, progress
from kiln.capture.interpreter.process_hashes import guard_hashes
from kiln.capture.interpreter.pure import (
    holds,
    is_bound_outside,
    is_confined,
    is_exit_of_context,
    is_pure,
    is_torch_call,
    is_world,
)
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.cached_function import CACHED, call_cached
from kiln.capture.interpreter.variables.deferred_text import text_of, text_of_format
from kiln.capture.interpreter.variables.function import handler_of, namespace
from kiln.capture.interpreter.variables.mapping import fresh
from kiln.capture.interpreter.variables.tensor import record
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, ImportSource, ModuleGlobalSource, Source
from kiln.support.records import dataclass

ERRORS = (TypeError, ValueError, ZeroDivisionError, OverflowError, IndexError, KeyError, AttributeError, StopIteration)


OPERATORS = (type(torch.ops.aten.add),)
"""Operator packets, whose attributes are their overloads."""
HIGHER_ORDER = torch._ops.HigherOrderOperator
"""Operators that take functions; graphs that torch.compile hands over contain them."""


class Unique(Value):
    """A function written in C, a class or a module: guarded to be the same object."""

    __slots__ = ("_checked", "source")

    def __init__(self, source: Source | None) -> None:
        self.source = source
        self._checked = source is None

    def python_type(self) -> type:
        return type(self.real())

    def check(self, s: CaptureState) -> None:
        """Guard it once."""
        if not self._checked:
            self._checked = True
            s.guard(self.source, GuardKind.IS, s.reference(self.real()))

    def identified(self) -> Value:
        self._checked = True
        return self

    def key(self, s: CaptureState) -> Token:
        token: Token = self.constant(s)
        return token

    def truth(self, s: CaptureState) -> bool:
        return True

    def emit(self, g: Codegen) -> None:
        g.emit(self.real())


@final
class Builtin(Unique):
    """A callable that is not Python code."""

    __slots__ = ("callable",)

    def __init__(self, callable_: Callable[..., object], source: Source | None = None) -> None:
        super().__init__(source)
        self.callable = callable_

    def real(self) -> object:
        return self.callable

    def constant(self, s: CaptureState) -> Callable[..., object]:
        self.check(s)
        return self.callable

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        """Torch makes an overload of an operator when the attribute is first read."""
        if isinstance(self.callable, OPERATORS) and not name.startswith("__"):
            try:
                return Builtin(getattr(self.constant(s), name))
            except AttributeError as error:
                raise s.error(AttributeError, *error.args) from None
        return super().get_attr(s, name, site)

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        if is_exit_of_context(self.callable) and self.source is not None:  # bound anew in each call
            s.guard_type(self)
            raise UnsupportedCall(function=self.callable.__qualname__, why="the context was entered before the frame")
        function = self.constant(s)
        if s.see is not None and (seen := s.see(s, function, args, kwargs, False)) is not None:
            return seen
        handler = handler_of(function)
        if handler is not None:
            return call_handler(s, function, handler, args, kwargs)
        if type(function) is CACHED:
            return call_cached(s, function, self.source, args, kwargs)
        if HIGHER_ORDER in type(function).__mro__:  # an abstract class: `isinstance` is slow
            raise UnsupportedCall(function=str(function), why="it is an operator that calls functions")
        if is_torch_call(function):
            return record(s, function, args, kwargs)
        return call_unknown(s, function, args, kwargs)


FORMAT = str.format


def call_unknown(s: CaptureState, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """Pure functions of constants are computed, confined ones called on stand-ins; anything else breaks."""
    name = getattr(function, "__qualname__", None) or repr(function)
    given = (*args, *kwargs.values())
    if any(arg.is_torch and getattr(arg, "fake", None) is not None for arg in given) and not holds(function):
        raise UnsupportedCall(function=name, why="it is a C function, not one of torch, and gets a tensor")
    if is_world(function):
        raise SideEffectCall(function=name, why="it depends on more than its arguments, or has side effects")
    if not is_confined(function):
        raise UnsupportedCall(function=name, why="it is a C function that Kiln has no model of")
    if is_bound_outside(function):
        raise UnsupportedCall(function=name, why="it may change the object to which it was bound outside")
    if (item := iterator_slot(s, function, args)) is not None:
        return item
    makes_text = function is format or getattr(function, "__objclass__", None) is str
    if function is FORMAT and kwargs and (text := text_of_format(s, args, kwargs)) is not None:
        return text
    if makes_text and not kwargs and (text := text_of(s, function, args)) is not None:
        return text
    if not is_pure(function) or any(isinstance(arg, Container) for arg in args):
        return natives(s).call(function, args, kwargs)
    begun = progress(s)
    try:
        plain = [arg.constant(s) for arg in args]
        named = {key: arg.constant(s) for key, arg in kwargs.items()}
    except UnsupportedOperation as stop:
        if stop.details["operation"] != AS_CONSTANT or progress(s) != begun:
            raise
        return natives(s).call(function, args, kwargs)
    if function in (hash, object.__hash__):
        guard_hashes(s, plain)
    if function is not len:
        guard_hashes(s, [item for held in plain if isinstance(held, frozenset) and len(held) > 1 for item in held])
    try:
        result = function(*plain, **named)
    except Exception as error:
        raise s.error(type(error), *error.args) from None
    return natives(s).call(function, args, kwargs) if hasattr(type(result), "__next__") else fresh(s, result)


PLAIN_MODULE = (None, (types.ModuleType, types.ModuleType.__setattr__), (object, object.__setattr__))
READ_BY_C = frozenset(("torch", "numpy", "builtins", "kiln"))


@final
class PythonModule(Unique):
    """A Python module, whose names are read like globals."""

    __slots__ = ("_found", "module")

    def __init__(self, module: types.ModuleType, source: Source | None) -> None:
        super().__init__(source)
        self.module = module
        self._found: dict[str, Value] = {}

    def real(self) -> object:
        return self.module

    def constant(self, s: CaptureState) -> types.ModuleType:
        self.check(s)
        return self.module

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        space = self.module.__dict__
        if s.effects.find(("global", id(space), name)) is not None:
            return namespace(s, space).load(s, name)
        found = self._found.get(name)
        if found is None:
            self.constant(s)
            if name in space:
                found = s.wrap(space[name], self._source_of(name))
            else:
                found = self._computed(s, name, site)
            self._found[name] = found
        return found

    def _source_of(self, name: str) -> Source | None:
        """Through the module's name, or for a namespace that is not imported (`torch.ops`) through its own path."""
        own = self.module.__dict__.get("__name__")
        if isinstance(own, str) and sys.modules.get(own) is self.module:
            return ModuleGlobalSource(own, name)
        return None if self.source is None else AttrSource(self.source, name)

    def _computed(self, s: CaptureState, name: str, site: CallSite) -> Value:
        """A property of the module's class, a lazy name, or the answer of a `__getattr__`, which is interpreted."""
        found = s.classes.lookup(type(self.module), name)
        if found is not None:
            return s.model.get_attr(s, self, name, site)
        hook = self.module.__dict__.get("__getattr__")
        if type(hook) is types.FunctionType and hook.__globals__ is not vars(torch):
            s.guard(self._source_of(name), GuardKind.ABSENT)
            return s.wrap(hook, self._source_of("__getattr__")).call(s, [s.const(name)], {}, site)
        return self._lazy(s, name, site)

    def _lazy(self, s: CaptureState, name: str, site: CallSite) -> Value:
        """The first look-up of a name may keep its result in the module: packages that import their parts when they
        are read, `torch.ops`. Then the guard is on that result.
        """
        try:
            value = getattr(self.module, name)
        except AttributeError as error:
            s.guard(self._source_of(name), GuardKind.ABSENT)
            raise s.error(AttributeError, *error.args) from None
        if name in self.module.__dict__:
            return s.wrap(value, self._source_of(name))
        s.guard(self._source_of(name), GuardKind.ABSENT)
        if s.classes.lookup(type(self.module), "__getattr__") is not None:
            return s.model.get_attr(s, self, name, site)
        return s.wrap(value, None)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        """A global variable of the module. C code and torch calls that are recorded whole would not see it."""
        own = vars(self.module).get("__name__")
        plain = all(s.classes.lookup(type(self.module), entry) in PLAIN_MODULE for entry in (name, "__setattr__"))
        if value is None or not plain or not isinstance(own, str) or own.partition(".")[0] in READ_BY_C:
            raise UnsupportedCall(
                function=f"setattr({own}, {name!r})", why="code that is not interpreted may read the attribute"
            )
        self.constant(s)
        namespace(s, self.module.__dict__).store(s, name, value)


@final
@dataclass
class PythonModules:
    """The modules that were found in one capture, by `id`."""

    known: dict[int, PythonModule] = field(default_factory=dict)


BUILTIN_TYPES = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor), type(torch.manual_seed), functools._lru_cache_wrapper),
)


HELD = (torch.Tensor, str, bytes, tuple, list, dict, set, collections.deque, _thread.LockType, _thread.RLock)
"""Their methods may be bound before the frame: `append = items.append`. So may class methods: `relu = MyReLU.apply`."""


def bound_descriptor(owner: object, name: str) -> Callable[..., object] | None:
    """The descriptor in C behind a method that was bound before the frame, if calls are to get `owner` as a value."""
    if isinstance(owner, HELD):
        function = getattr(type(owner), name, None)
        return function if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType) else None
    if not isinstance(owner, type):
        return None
    function = next((vars(cls)[name] for cls in owner.__mro__ if name in vars(cls)), None)
    modelled = isinstance(function, types.ClassMethodDescriptorType) and handler_of(function) is not None
    return function if modelled else None


def wrap_builtin(s: CaptureState, real: Callable[..., object], source: Source | None) -> Value:
    owner = getattr(real, "__self__", None)
    function = bound_descriptor(owner, real.__name__) if source is not None else None
    if source is None or function is None:
        return Builtin(real, source)
    value = BoundMethod(Builtin(function), s.wrap(owner, AttrSource(source, "__self__")), source, real)
    s.guard_type(value)
    s.guard_type(value.self_)
    s.wrap(real.__name__, AttrSource(source, "__name__")).constant(s)
    return value


for _type in BUILTIN_TYPES:
    if _type is not types.FunctionType:
        wraps(_type)(wrap_builtin)
wraps(HIGHER_ORDER, subclasses=True)(wrap_builtin)


@wraps(types.ModuleType, subclasses=True)
def wrap_python_module(s: CaptureState, real: types.ModuleType, source: Source | None) -> Value:
    """One value per module; each path to it is guarded."""
    known = s.part(PythonModules).known
    found = known.get(id(real))
    if found is None:
        found = known[id(real)] = PythonModule(real, source)
    elif source is not None and not isinstance(source, ImportSource):
        s.guard(source, GuardKind.IS, s.reference(real))
    return found
