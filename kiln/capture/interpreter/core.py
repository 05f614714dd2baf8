"""What the interpreter computes with (`Value`) and the state of one capture (`CaptureState`).

    x + 1           Tensor(fake f32[8], source=x)   Constant(1)
    self.layer      Object(<Linear>, source=self.__dict__['_modules']['layer'])

A value knows its `source` (where it was found before the frame ran) or None (it was made in the frame, or is
a constant of the program). Each kind of value is a class in `variables/`. A question that a kind does not
answer means "not supported": the defaults here break the graph with a reason, never silently.

Tables that kinds and handlers register in:
    WRAPPERS   exact type of an object -> value       (`@wraps(list)`)
    SUBCLASS_WRAPPERS  the same for subclasses, first match wins
    HANDLERS   builtin or torch callable -> handler   (`@handles(len)`)
    OPERATORS  (operator, type of the left operand) -> handler
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, final

from kiln.capture.guards.collector import GuardCollector
from kiln.capture.interpreter.breaks import (
    GraphBreak,
    Raised,
    UnsupportedAttribute,
    UnsupportedOperation,
    UnsupportedValue,
)
from kiln.runtime.guards.constant import reference
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, DictAttrSource, Source, TypeSource
from kiln.support.events import EventSink
from kiln.support.location import Location

Args = list["Value"]
Kwargs = dict[str, "Value"]
GENERATED = "namedtuple_"
"""`collections.namedtuple` makes its constructors in namespaces of their own; the class's module tells all of it."""
HEAP_TYPE = 1 << 9
"""The flag of classes whose attributes can be set."""
MADE_WITH_CLASS = frozenset(("__dataclass_fields__", "__dataclass_params__"))
"""What a decorator notes on a class for itself: not guarded, changing it later changes nothing of the class."""
TYPE_IS = GuardKind.TYPE_IS.value
MISSING: Any = object()
"""No such attribute, key or item."""


class Codegen(Protocol):
    """What `Value.emit` may use to build itself when the transformed code runs; see `codegen.py`."""

    @property
    def state(self) -> CaptureState: ...
    def emit(self, value: Value) -> None: ...
    def const(self, value: object) -> None: ...
    def op(self, name: str, arg: Any = ...) -> None: ...
    def call(self, count: int) -> None: ...
    def tensor(self, value: Value) -> None: ...
    def remember(self, value: Value) -> None: ...
    def number(self, value: Any) -> None: ...
    def cell(self, value: Value) -> None: ...
    def constant(self, value: object) -> Value: ...
    def call_keywords(self, count: int, names: tuple[str, ...]) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class CallSite:
    """How an opcode goes on after a call that is inlined, if a graph break in there can resume it at all.

        y = f(x)            PUSH                the result is pushed
        self.size = 3       DISCARD             a `__setattr__` of the program: its result is dropped
        p = Point(1, 2)     discarding(<p>)     `__init__`: its result is dropped, the instance pushed

    An opcode that has popped its operands hands its site down to `inline`, which keeps it as the continuation of the
    new frame. Whoever does more with the result than return it must not hand the site on: by default a call
    cannot be resumed, and a break inside of it breaks in front of the opcode.
    """

    resumable: bool
    keeps_result: bool
    instead: Value | None = None
    """What is pushed in place of a result that is dropped."""

    def discarding(self, instead: Value | None = None) -> CallSite:
        """The site of a call whose result is dropped."""
        return CallSite(True, False, instead) if self.resumable else self


NOT_RESUMABLE = CallSite(False, False)
PUSH = CallSite(True, True)
DISCARD = CallSite(True, False)


class Value:
    """Base of all values. Methods take the state first: answering may guard, record or inline."""

    __slots__ = ("source",)

    is_torch: ClassVar[bool] = False
    """An operation on it is a torch call (tensors, symbolic numbers)."""
    is_constant: ClassVar[bool] = False

    source: Source | None

    def python_type(self) -> type:
        """The class, without a guard."""
        raise NotImplementedError

    def real(self) -> Any:
        """The object as it was before the frame ran; MISSING for one that was made in the frame."""
        return MISSING

    def constant(self, s: CaptureState) -> Any:
        """Its Python value, guarded."""
        raise self.unsupported("use as a constant", "its value is not known while tracing")

    def identified(self) -> Value:
        """Itself, where a guard already tells which object it is."""
        return self

    def torch_arg(self, s: CaptureState) -> Any:
        """What a torch call gets for it: a fake, or a plain Python object."""
        return self.constant(s)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        return s.hooks.get_attr(s, self, name, site)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        """None deletes."""
        raise UnsupportedAttribute(name=name, type=self.type_name(), why="it cannot be written")

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return s.call_special(self, "__call__", args, kwargs, site)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        return s.call_special(self, "__getitem__", [key], {}, site)

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        s.call_special(self, "__setitem__", [key, value], {}, site)

    def del_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> None:
        s.call_special(self, "__delitem__", [key], {}, site)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        """An iterator: a value with `next`."""
        return s.call_special(self, "__iter__", [], {}, site)

    def next(self, s: CaptureState) -> Value | None:
        """The next item of an iterator, None at its end."""
        try:
            return s.call_special(self, "__next__", [], {})
        except Raised as raised:
            if issubclass(raised.value.python_type(), StopIteration):
                return None
            raise

    def length(self, s: CaptureState) -> int:
        return int(s.call_special(self, "__len__", [], {}).constant(s))

    def truth(self, s: CaptureState) -> bool:
        for name in ("__bool__", "__len__"):
            if s.lookup(self.python_type(), name) is not None:
                return bool(s.call_special(self, name, [], {}).constant(s))
        s.guard_type(self)
        return True

    def key(self, s: CaptureState) -> Any:
        """What stands for it among the keys of a dict: equal tokens are equal keys."""
        raise self.unsupported("hash", "its hash is not known while tracing")

    def emit(self, g: Codegen) -> None:
        """Push it when the transformed code runs."""
        raise UnsupportedValue(type=self.type_name(), why="no rule builds one")

    def type_name(self) -> str:
        return self.python_type().__qualname__

    def unsupported(self, operation: str, why: str) -> UnsupportedOperation:
        return UnsupportedOperation(operation=operation, type=self.type_name(), why=why)

    def __repr__(self) -> str:
        where = f" at {self.source.text()}" if self.source else ""
        return f"<{type(self).__name__} {self.type_name()}{where}>"


LACKING = {
    "__getitem__": "'{}' object is not subscriptable",
    "__setitem__": "'{}' object does not support item assignment",
    "__delitem__": "'{}' object doesn't support item deletion",
    "__call__": "'{}' object is not callable",
    "__iter__": "'{}' object is not iterable",
    "__next__": "'{}' object is not an iterator",
    "__len__": "object of type '{}' has no len()",
    "__neg__": "bad operand type for unary -: '{}'",
    "__pos__": "bad operand type for unary +: '{}'",
    "__invert__": "bad operand type for unary ~: '{}'",
}
"""What Python says where the class of an object lacks a special method."""

Wrapper = Callable[["CaptureState", Any, "Source | None"], Value]
Handler = Callable[["CaptureState", Args, Kwargs], Value]
Operator = Callable[["CaptureState", Value, Value], "Value | None"]

WRAPPERS: dict[type, Wrapper] = {}
SUBCLASS_WRAPPERS: list[tuple[type, Wrapper]] = []
HANDLERS: dict[Any, Handler] = {}
OPERATORS: dict[tuple[Any, type[Value]], Operator] = {}


def wraps(*types: type, subclasses: bool = False) -> Callable[[Wrapper], Wrapper]:
    """Register how objects of `types` become values."""

    def register(wrapper: Wrapper) -> Wrapper:
        for one in types:
            WRAPPERS[one] = wrapper
            if subclasses:
                SUBCLASS_WRAPPERS.append((one, wrapper))
        return wrapper

    return register


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register the handler of builtin callables (functions, types, unbound methods such as `list.append`)."""

    def register(handler: Handler) -> Handler:
        for one in functions:
            HANDLERS[one] = handler
        return handler

    return register


class Effect(Protocol):
    """A change of the world that the transformed code makes after the region: see `effects.py`."""

    def emit(self, g: Codegen) -> None: ...


@dataclass(frozen=True)
class Hooks:
    """Functions of higher modules that values need; handed in so that imports point downward."""

    get_attr: Callable[[CaptureState, Value, str, CallSite], Value]
    record: Callable[[CaptureState, Any, Args, Kwargs], Value]
    new_exception: Callable[[CaptureState, type, tuple[Any, ...]], Value]
    make_constant: Callable[[Any, Source | None], Value]
    make_list: Callable[[list[Value]], Value]
    make_tuple: Callable[[list[Value]], Value]
    sealed: Wrapper
    plain_setattr: Callable[[Value, str, Value | None], bool]
    """Whether a class's own `__setattr__` does what `object.__setattr__` does for this name and value."""
    number_input: Callable[[CaptureState, Any, Source], Value]
    native_getattr: Callable[[CaptureState, Value, str, Any], Value | None]
    """A `__getattr__` that is modelled here (nn.Module's), None for others."""
    native_get: Callable[[CaptureState, Value, str, Any], Value | None]
    """A descriptor of CPython that is modelled here, None for others."""
    call_module: Callable[[CaptureState, Any, Args, Kwargs, CallSite], Value]
    """Call an nn.Module: interpret it, or repeat what an equal one did (`blocks/`)."""


@dataclass(eq=False)
class CaptureState:
    """The state of one capture: what was asked (guards), recorded (recorder) and changed (effects)."""

    hooks: Hooks
    recorder: Any
    events: EventSink
    globals: dict[str, Any]
    dims: Callable[[Any, Source], Any] = lambda real, source: None
    """Which sizes of a new input become symbols (the recorder's `dims`)."""
    scalars: Callable[[int | float, Source], bool] | None = None
    """Which numbers become inputs of the region; None: no number that was seen has changed."""
    is_compiling: bool = False
    speculate: bool = False
    """Whether a test of values of integer inputs may be answered now and checked in front of the region."""
    speculations: dict[Any, Any] = field(default_factory=dict)
    """The tested graph node -> what was assumed (`speculation.py`)."""
    guards: GuardCollector = field(default_factory=GuardCollector)
    frame: Any = None
    """The symbolic frame that runs now."""
    frames: int = 0
    steps: int = 0
    repeated_steps: int = 0
    """Opcodes of calls that were repeated instead of interpreted (`blocks/`)."""
    stop_at: dict[tuple[int, int], GraphBreak] = field(default_factory=dict)
    """(number of a frame, step in it) -> the break to raise there."""
    effects: dict[Any, Effect] = field(default_factory=dict)
    """In order of the first change of each thing."""
    state: dict[Any, Any] = field(default_factory=dict)
    """Torch's modes that the program changed, and caches of kinds of values."""
    unguarded: int = 0
    """How often the program asked for what no guard covers: values of tensors, context variables."""
    blocks: dict[type, Any] = field(default_factory=dict)
    """Class of modules -> what calls of such did (`blocks/`)."""
    objects: dict[int, Value] = field(default_factory=dict)
    """Mutable objects from outside, in the order in which they were first reached, by `id`."""
    owners: dict[int, Value] = field(default_factory=dict)
    """Instance dict, by `id` -> the object whose attributes it holds."""
    other_paths: list[tuple[Value, Source]] = field(default_factory=list)
    """Objects that were reached on another path than their own, with that path."""
    _wrappers: dict[type, Wrapper] = field(default_factory=lambda: dict(WRAPPERS))
    _lookups: dict[tuple[type, str], tuple[type, Any] | None] = field(default_factory=dict)
    _class_attrs: dict[tuple[type, str], Value] = field(default_factory=dict)
    _lacking: set[tuple[type, str]] = field(default_factory=set)
    class_sources: dict[type, Source] = field(default_factory=dict)
    """Paths to classes that the program named: instances made in the frame have no other."""
    protocols: set[Any] = field(default_factory=set)
    """Classes whose way of finding attributes is guarded."""
    distinct: list[tuple[Value, Value]] = field(default_factory=list)
    """Values from outside that were compared and are not the same object."""
    cell_paths: dict[int, list[Source]] = field(default_factory=dict)
    """The paths to each cell that was found (to the cell, not to its contents)."""

    def wrap(self, real: Any, source: Source | None) -> Value:
        """The value of an object that exists outside of the frame."""
        kind = type(real)
        wrapper = self._wrappers.get(kind)
        if wrapper is None:
            wrapper = self._wrappers[kind] = self._wrapper_of(kind)
        return wrapper(self, real, source)

    def _wrapper_of(self, kind: type) -> Wrapper:
        for base, wrapper in SUBCLASS_WRAPPERS:
            if issubclass(kind, base):
                return wrapper
        return self.hooks.sealed

    def same_object(self, real: Any, source: Source | None, make: Callable[[], Value]) -> Value:
        """One value per mutable object; other paths to it are guarded to lead to the same object."""
        known = self.objects.get(id(real))
        if known is None:
            known = self.objects[id(real)] = make()
        elif source is not None and known.source is not None and source != known.source:
            self.other_paths.append((known, source))
        return known

    def aliases(self) -> list[tuple[Value, list[Source]]]:
        """Objects that were reached on several paths, with the other paths."""
        found: dict[int, tuple[Value, list[Source]]] = {}
        for value, source in self.other_paths:
            found.setdefault(id(value), (value, []))[1].append(source)
        return list(found.values())

    def shared_objects(self) -> Iterable[Value]:
        """All objects that were found, each once."""
        return self.objects.values()

    def const(self, value: Any) -> Value:
        return self.hooks.make_constant(value, None)

    def guard(self, source: Source | None, kind: GuardKind, expected: Any = None, why: str = "") -> None:
        """Nothing to ask of what has no source: it was made here."""
        if source is not None:
            self.guards.add(source, kind, expected, self.location(), why)

    def guard_type(self, value: Value) -> type:
        kind = value.python_type()
        source = value.source
        if source is not None and not self.guards.asked(source, TYPE_IS):
            self.guards.add(source, GuardKind.TYPE_IS, self.class_reference(kind), self.location())
        return kind

    def class_reference(self, kind: Any) -> Any:
        """`reference`, once per object."""
        cache = self.state.setdefault("references", {})
        found = cache.get(id(kind))
        if found is None:
            found = cache[id(kind)] = reference(kind)
        return found

    def lookup(self, cls: type, name: str) -> tuple[type, Any] | None:
        """Where on the method resolution order of `cls` the name is, and what stands there."""
        key = (cls, name)
        try:
            return self._lookups[key]
        except KeyError:
            found = None
            for base in cls.__mro__:
                if name in base.__dict__:
                    found = (base, base.__dict__[name])
                    break
            self._lookups[key] = found
            return found

    def modules(self) -> frozenset[str]:
        """The modules that what was interpreted so far stands in: functions and classes."""
        spaces = [
            space.module or space.dictionary.get("__name__") for space in self.state.get("namespaces", {}).values()
        ]
        classes = {base.__module__ for cls, _ in self._lookups for base in cls.__mro__}
        names = (name for name in (*spaces, *classes) if isinstance(name, str))
        return frozenset(name for name in names if not name.startswith(GENERATED))

    def class_source(self, value: Value) -> Source | None:
        """The path to the class of `value`; None for a class that cannot change, or that no path leads to."""
        cls = value.python_type()
        if not cls.__flags__ & HEAP_TYPE:
            return None
        return TypeSource(value.source) if value.source is not None else self.class_sources.get(cls)

    def class_attr(self, value: Value, name: str, raw: Any) -> Value:
        """What stands on the class of `value` under `name`, as a value with a source through the class."""
        cls = value.python_type()
        found = self._class_attrs.get((cls, name))
        if found is None:
            base = self.class_source(value) if name not in MADE_WITH_CLASS else None
            found = self.wrap(raw, AttrSource(base, name) if base is not None else None)
            if base is not None or not cls.__flags__ & HEAP_TYPE or name in MADE_WITH_CLASS:
                self._class_attrs[cls, name] = found
        return found

    def class_lacks(self, value: Value, name: str) -> None:
        """Guard that the class of `value` has no attribute `name`, once per class."""
        key = (value.python_type(), name)
        if key not in self._lacking:
            base = self.class_source(value)
            if base is not None:
                self._lacking.add(key)
                self.guards.add(AttrSource(base, name), GuardKind.ABSENT, None, self.location())

    def hides_nothing(self, value: Value, name: str) -> None:
        """Guard that the instance's dict does not shadow the class attribute `name`."""
        if value.source is not None and value.python_type().__dictoffset__ != 0:
            self.guard(DictAttrSource(value.source, name), GuardKind.ABSENT)

    def call_special(
        self, value: Value, name: str, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE
    ) -> Value:
        """Call a special method, looked up on the class as Python does."""
        found = self.lookup(value.python_type(), name)
        if found is None:
            raise self.error(TypeError, LACKING.get(name, f"'{{}}' object has no {name}").format(value.type_name()))
        self.guard_type(value)
        function = self.class_attr(value, name, found[1])
        if name in ("__new__", "__class_getitem__"):
            return function.call(self, args, kwargs, site)
        return function.call(self, [value, *args], kwargs, site)

    def error(self, kind: type, *args: Any) -> Raised:
        """An exception of the user's program, to be raised."""
        return Raised(self.hooks.new_exception(self, kind, args))

    def record(self, target: Any, args: Args, kwargs: Kwargs) -> Value:
        """Run a torch call on fakes and log it."""
        return self.hooks.record(self, target, args, kwargs)

    def location(self) -> Location | None:
        return self.frame.location() if self.frame is not None else None
