"""What the interpreter computes with (`Value`) and the state of one capture (`CaptureState`).

    x + 1           Tensor(fake f32[8], source=x)   Constant(1)
    self.layer      Object(<Linear>, source=self.__dict__['_modules']['layer'])

A value knows its `source`, where it was found before the frame ran, or None: made in the frame, or a constant of the
program. Each kind of value is a class in `variables/`. What a kind does not implement is not supported: the
defaults here break the graph with a reason.

Tables that kinds and handlers register in:
    WRAPPERS            exact type of an object -> value          (`@wraps(list)`); `object`: all other types
    SUBCLASS_WRAPPERS   the same for subclasses, first match wins
    HANDLERS            builtin or torch callable -> handler      (`@handles(len)`)
    OPERATORS           (operator, kind of the left operand) -> handler
    AS_INDEX            kind of value -> what it is among the indices of a tensor: an array counts as a tensor
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar, Protocol, TypeVar, final

import torch

from kiln.capture.bytecode.assemble import Assembler
from kiln.capture.guards.collector import GuardCollector
from kiln.capture.interpreter.breaks import (
    AS_CONSTANT,
    GraphBreak,
    NotConstant,
    Raised,
    UnsupportedAttribute,
    UnsupportedOperation,
    UnsupportedValue,
)
from kiln.capture.interpreter.class_lookups import ClassLookups
from kiln.capture.interpreter.effect_log import EffectLog, Keyed
from kiln.capture.interpreter.identities import Identities
from kiln.capture.interpreter.pure import is_written_in_c
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import Dims
from kiln.graph.trace.log import Target
from kiln.graph.trace.recorder import Recorder
from kiln.runtime.guards.constant import ObjectRef, reference
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.runtime.guards.source import AttrSource, DictAttrSource, MroSource, Source, TypeSource
from kiln.runtime.guards.state import current_state
from kiln.support.events import EventSink
from kiln.support.location import Location
from kiln.support.options import Branches
from kiln.support.records import dataclass

Args = list["Value"]
Kwargs = dict[str, "Value"]
Token = Hashable
"""Stands for a value among the keys of a dict: equal tokens are equal keys."""
P = TypeVar("P")
MADE_WITH_CLASS = frozenset(("__dataclass_fields__", "__dataclass_params__"))
"""Notes of a class decorator: not guarded, since changing them later does not change the class."""
BINDS_SELF = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
"""Attributes of classes that are called with the instance first."""
TYPE_IS = GuardKind.TYPE_IS.value
MISSING: Any = object()
"""No such attribute, key or item."""


class Codegen(Protocol):
    """What `Value.emit` may use to build itself when the transformed code runs; see `codegen.py`."""

    @property
    def state(self) -> CaptureState: ...
    @property
    def body(self) -> Assembler:
        """Where the code goes."""

    @property
    def built(self) -> dict[int, str]:
        """The temporaries of what was built, by the `id` of the value."""

    def emit(self, value: object) -> None: ...
    def make(self, value: Value | None, function: object, *arguments: object, names: tuple[str, ...] = ()) -> None: ...
    def run(self, function: object, *arguments: object, names: tuple[str, ...] = ()) -> None: ...
    def tensor(self, fake: FakeTensor) -> None: ...
    def remember(self, value: Value) -> None: ...
    def is_built(self, value: Value) -> bool: ...
    def number(self, value: object) -> None: ...
    def cell(self, value: Value) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class CallSite:
    """How an opcode continues after an inlined call, if a graph break inside of it can be resumed at all.

        y = f(x)            PUSH                the result is pushed
        self.size = 3       DISCARD             a `__setattr__` of the program: its result is dropped
        p = Point(1, 2)     discarding(<p>)     `__init__`: its result is dropped, the instance pushed

    An opcode pops its operands, then passes its site down to `inline`, which stores it as the continuation of the new
    frame. Code that does more with the result than return it must not pass the site on: by default a call cannot be
    resumed, and a break inside of it becomes a break in front of the opcode.
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
    """Base of all values. Methods get the state, since they may add guards, record calls or inline functions."""

    __slots__ = ()

    is_torch: ClassVar[bool] = False
    """Operations on it are torch calls (tensors, symbolic numbers)."""
    takes_symbols: ClassVar[bool] = False
    """Its operators take symbolic numbers."""
    is_constant: ClassVar[bool] = False
    is_deferred: bool = False
    """Transformed code computes it where it is used, and may do so twice."""
    source: Source | None = None
    cls: type

    def python_type(self) -> type:
        """The class, without a guard."""
        return self.cls

    def real(self) -> Any:
        """The object from before the frame; MISSING if it was made in the frame."""
        return MISSING

    def constant(self, s: CaptureState) -> Any:
        """Its Python value, guarded."""
        raise self.unsupported(AS_CONSTANT, "its value is not known while tracing")

    def identified(self) -> Value:
        """Itself, marked as guarded: a guard on its container identifies it."""
        return self

    def torch_arg(self, s: CaptureState) -> object:
        """The argument of a torch call: a fake, or a plain Python object."""
        return self.constant(s)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        return s.model.get_attr(s, self, name, site)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        """Set, or delete if `value` is None."""
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
        found = s.classes.lookup(self.python_type(), "__iter__")
        if found is None and s.classes.lookup(self.python_type(), "__getitem__") is not None:
            return s.model.sequence_iterator(s, self)
        if found is not None and found[1] is None:
            raise s.error(TypeError, LACKING["__iter__"].format(self.type_name()))
        made = s.call_special(self, "__iter__", [], {}, site)
        if type(made).next is Value.next and s.classes.lookup(made.python_type(), "__next__") is None:
            raise s.error(TypeError, f"iter() returned non-iterator of type '{made.type_name()}'")
        return made

    def next(self, s: CaptureState) -> Value | None:
        """The next item of an iterator, None at its end."""
        try:
            return s.call_special(self, "__next__", [], {})
        except Raised as raised:
            if issubclass(raised.value.python_type(), StopIteration):
                return None
            raise

    def length(self, s: CaptureState) -> int:
        number: int = own_length(s, self).constant(s)
        return number

    def truth(self, s: CaptureState) -> bool:
        for name in ("__bool__", "__len__"):
            if s.classes.lookup(self.python_type(), name) is not None:
                if name == "__len__":
                    found = measured(s, self)
                    return s.wrap(found.torch_arg(s) != 0, None).truth(s) if found.is_torch else found.truth(s)
                result = s.call_special(self, name, [], {})
                if result.python_type() is not bool and not result.is_torch:
                    raise s.error(TypeError, f"__bool__ should return bool, returned {result.type_name()}")
                return bool(result.constant(s))
        s.guard_type(self)
        return True

    def key(self, s: CaptureState) -> Token:
        """Its token as a key of a dict."""
        raise self.unsupported("hash", "its hash is not known while tracing")

    def emit(self, g: Codegen) -> None:
        """Write code that pushes it."""
        raise UnsupportedValue(type=self.type_name(), why="code to build it is not supported")

    def type_name(self) -> str:
        """As in Python's messages: with the module if the class is written in C."""
        cls = self.python_type()
        written_in_c = is_written_in_c(cls) and cls.__module__ != "builtins"
        return f"{cls.__module__}.{cls.__name__}" if written_in_c else cls.__name__

    def unsupported(self, operation: str, why: str) -> UnsupportedOperation:
        stop = NotConstant if operation == AS_CONSTANT else UnsupportedOperation
        return stop(operation=operation, type=self.type_name(), why=why)

    def __repr__(self) -> str:
        where = f" at {self.source.text()}" if self.source else ""
        return f"<{type(self).__name__} {self.type_name()}{where}>"


def measured(s: CaptureState, value: Value) -> Value:
    """What `len` gives: a symbol where the program's `__len__` computes it from sizes."""
    is_own = type(value).length is Value.length
    return own_length(s, value) if is_own else s.const(value.length(s))


def own_length(s: CaptureState, value: Value) -> Value:
    """What the `__len__` of the value's class gives."""
    result = s.call_special(value, "__len__", [], {})
    if result.is_torch and result.python_type() is int:
        is_size = result.torch_arg(s) >= 0  # type: ignore[operator]
        if s.wrap(is_size, None).truth(s):
            return result
    found = result.constant(s)
    if not hasattr(type(found), "__index__"):
        raise s.error(TypeError, f"'{type(found).__name__}' object cannot be interpreted as an integer")
    if found < 0:
        raise s.error(ValueError, "__len__() should return >= 0")
    if found > sys.maxsize:
        raise s.error(OverflowError, "cannot fit 'int' into an index-sized integer")
    return s.const(int(found))


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
    "__abs__": "bad operand type for abs(): '{}'",
    "__invert__": "bad operand type for unary ~: '{}'",
}
"""Python's messages for a class without a special method."""

Wrapper = Callable[["CaptureState", Any, "Source | None"], Value]
W = TypeVar("W", bound=Wrapper)
Handler = Callable[["CaptureState", Args, Kwargs], Value]


class SiteHandler(Protocol):
    def __call__(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value: ...


Operator = Callable[["CaptureState", Value, Value], "Value | None"]

WRAPPERS: dict[type, Wrapper] = {}
SUBCLASS_WRAPPERS: list[tuple[type, Wrapper]] = []
HANDLERS: dict[Hashable, Handler] = {}
SITE_HANDLERS: dict[Hashable, SiteHandler] = {}
"""Those of HANDLERS that take the call site."""
OPERATORS: dict[tuple[object, type[Value]], Operator] = {}
AS_INDEX: dict[type[Value], Callable[[CaptureState, Value], Value]] = {}


def wraps(*types: type, subclasses: bool = False) -> Callable[[W], W]:
    """Register how objects of `types` become values."""

    def register(wrapper: W) -> W:
        for kind in types:
            WRAPPERS[kind] = wrapper
            if subclasses:
                SUBCLASS_WRAPPERS.append((kind, wrapper))
        return wrapper

    return register


def handles(*functions: Hashable) -> Callable[[Handler], Handler]:
    """Register the handler of builtin callables (functions, types, unbound methods such as `list.append`)."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


def handles_at_site(*functions: Hashable) -> Callable[[SiteHandler], SiteHandler]:
    """Register a handler that inlines Python code: a break in that code can be resumed."""

    def register(handler: SiteHandler) -> SiteHandler:
        for function in functions:
            HANDLERS[function] = handler
            SITE_HANDLERS[function] = handler
        return handler

    return register


class Effect(Keyed, Protocol):
    """A side effect that the transformed code makes after the region: see `effects.py`."""

    def emit(self, g: Codegen) -> None: ...


class RunningFrame(Protocol):
    """The current frame, as values see it; see `frame.py`."""

    @property
    def number(self) -> int: ...
    @property
    def step(self) -> int: ...
    def location(self, of_program: bool = False) -> Location: ...
    def locations(self) -> tuple[Location, ...]: ...


class ObjectModel(Protocol):
    """Python's object model in terms of kinds of values, which lie above this module: see `object_model.py`."""

    def get_attr(self, s: CaptureState, value: Value, name: str, site: CallSite) -> Value: ...
    def bound_attr(self, s: CaptureState, value: Value, name: str, raw: object, site: CallSite) -> Value: ...
    def exception(self, s: CaptureState, cls: type, args: tuple[object, ...]) -> Value: ...
    def constant(self, value: object) -> Value: ...
    def list_of(self, items: list[Value]) -> Value: ...
    def equal(self, s: CaptureState, left: Value, right: Value) -> bool: ...
    def sequence_iterator(self, s: CaptureState, value: Value) -> Value: ...
    def state_of(self, s: CaptureState, value: Value, name: str) -> object: ...
    def plain(self, s: CaptureState, value: Value) -> object:
        """The number or string that an instance of a derived class is, MISSING if it is none."""

    def takes_calls(self, s: CaptureState, value: Value) -> bool:
        """Whether an object that is no tensor answers torch calls itself: the call is begun again, and asks it."""


SPECULATED_VALUES = 4
"""How many side exits may lead to a variant that speculates on the values of whole tensors."""


@final
@dataclass(frozen=True)
class Policy:
    """What the owner of a capture decides before it begins.

    `dims` says which sizes of a new input become symbols, `scalars` which numbers become inputs (None: none).
    `speculate`: a branch on values of integer inputs may be decided now and checked in front of the region.
    `check_time` raises a KilnError when the capture takes too long.
    """

    dims: Callable[[torch.Tensor, Source], Dims]
    scalars: Callable[[int | float, Source], bool] | None
    is_compiling: bool
    speculate: bool
    speculate_values: int = 0
    """Likewise for whole values, such as a list of sizes: how many more side exits may speculate on them."""
    check_time: Callable[[], None] = lambda: None
    control_flow: Branches = "auto"
    """As the option says; cpu: of tensors on the CPU only, since a region with a branch is no CUDA graph."""
    own_regions: bool = True
    """Kiln compiles the regions, which check what was assumed of values before they change inputs."""
    carries: Callable[[torch.Tensor, bool], bool] | None = None
    """Of a whole graph, which checks itself what was assumed of values, since nothing can run in its place: which
    tensors it takes along, and so what these decide may be decided now; with True, what Python cannot do without."""

    varies: Callable[[Source], bool] = lambda source: False
    """Whether a number from outside was another one in each of several compiles: what it selects is taken in Python."""
    varying: frozenset[str] = frozenset()
    """Arguments of a resume function that several variants have fixed, and lists that grow from call to call, by the
    texts of their sources."""
    assumes_likely: bool = True
    """Not after checks of an earlier variant often failed."""

    @property
    def whole(self) -> bool:
        return self.carries is not None

    @property
    def assumes(self) -> bool:
        """Whether something may be assumed of values that the region finds."""
        return (self.speculate and self.assumes_likely) or self.whole


@final
@dataclass(frozen=True, slots=True, eq=False)
class StateChange:
    """An attribute of `value`, or without a name its contents, was changed; `before`: its state (`side_changes.py`)."""

    value: Value
    name: str
    before: object


@final
@dataclass(slots=True)
class Counters:
    """How far the capture has come.

    `unguarded` counts reads that no guard covers (values of tensors, context variables), `repeated_steps` the opcodes
    of calls that were repeated instead of interpreted (`repeated_layers/`).
    """

    frames: int = 0
    steps: int = 0
    consumed: int = 0
    """How often something was changed, or something other than its own instruction advanced an iterator. An instruction
    that breaks after that has begun is taken back, and the break comes in front of it."""
    repeated_steps: int = 0
    unguarded: int = 0
    checkpoints: int = 0
    nested: int = 0
    """Of the calls that are interpreted, those that may not run, or run several times: sides and bodies of loops."""
    changed: dict[tuple[int, str], StateChange] | None = None
    """What was changed since, by the `id` of the value and the name of the attribute, where that is asked for."""
    lasting: dict[int, tuple[Value, Callable[[], Exception]]] = field(default_factory=dict)
    """Values, by `id`, that are made here but that a cache may hold, and what to raise at a change or comparison."""
    may_catch: bool = False
    """Whether an error that an operator raises while the region runs may be handled by what was interpreted."""
    changes: int = 0
    """How many of `consumed` are changes, of objects from the frame or from outside."""

    def change(self) -> None:
        self.consumed += 1
        self.changes += 1

    def has_changed(self, changes: Iterable[StateChange]) -> None:
        """Note changes that were made while they were noted elsewhere."""
        if self.changed is not None:
            for change in changes:
                self.changed.setdefault((id(change.value), change.name), change)


@final
class CaptureState:
    """The state of one capture: guards, the recording, side effects, and what is known of objects and classes.

    State that belongs to one module is a class of that module, `s.part(TheClass)`. `stops` are the breaks to raise: in
    front of a step of a frame, by their numbers. `needed` are the instructions that make numbers which Python
    needs: the numbers cannot stay symbolic (`data_values.py`).
    """

    __slots__ = (
        *("_parts", "_references", "_wrappers", "asked_is_compiling", "classes", "counters", "effects", "events"),
        *("frame", "global_state", "globals", "guards", "identities", "model", "needed", "policy", "recorder", "stops"),
        *("function_modes", "says_is_compiling", "see", "watch"),
    )

    def __init__(
        self,
        model: ObjectModel,
        recorder: Recorder,
        events: EventSink,
        globals_: dict[str, object],
        policy: Policy,
        stops: Mapping[tuple[int, int], GraphBreak],
        needed: Mapping[tuple[types.CodeType, int], str] | None = None,
    ) -> None:
        self.model = model
        self.recorder = recorder
        self.events = events
        self.globals = globals_
        self.policy = policy
        self.stops = stops
        self.needed = needed or {}
        self.frame: RunningFrame | None = None
        """The current frame."""
        self.guards = GuardCollector()
        self.identities: Identities[Value] = Identities()
        self.classes: ClassLookups[Value] = ClassLookups()
        self.counters = Counters()
        self.effects: EffectLog[Effect] = EffectLog(self.counters)
        self.global_state = current_state()
        """Torch's state at the entry of the frame."""
        self.asked_is_compiling = False
        self.says_is_compiling = False
        self.function_modes: list[Value] = []
        """Torch function modes that the frame has entered, innermost last: they see the torch calls."""
        self.see: Callable[[CaptureState, Target, list[Value], dict[str, Value], bool], Value | None] | None = None
        """While modes of the program are entered: what the innermost one answers to a call, None where it is not asked.
        The last argument: whether it is known that modes see the call."""
        self.watch: Callable[[], None] | None = None
        """Called after each instruction of the frames that begin while it is set."""
        self._parts: dict[type, object] = {}
        self._wrappers = dict(WRAPPERS)
        self._references: dict[int, ObjectRef] = {}

    def part(self, kind: type[P]) -> P:
        """The one `kind()` of this capture."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind()
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """The capture is over. Some parts, the shape environment of its regions, and breaks by their frames refer to
        the state: it would wait for the garbage collector, or live as long as they."""
        self._parts.clear()
        self.stops = {}
        self.recorder.held.clear()
        self.recorder.env.assume_number = self.recorder.env.number_in_front = None

    def wrap(self, real: object, source: Source | None) -> Value:
        """The value of an object that exists outside of the frame."""
        kind = type(real)
        wrapper = self._wrappers.get(kind)
        if wrapper is None:
            wrapper = self._wrappers[kind] = self._wrapper_of(kind)
        return wrapper(self, real, source)

    def _wrapper_of(self, kind: type) -> Wrapper:
        bases = kind.__mro__  # `issubclass` of an abstract class asks all its subclasses
        for base, wrapper in SUBCLASS_WRAPPERS:
            if base in bases:
                return wrapper
        return WRAPPERS[object]

    def const(self, value: object) -> Value:
        return self.model.constant(value)

    def guard(self, source: Source | None, kind: GuardKind, expected: object = None) -> None:
        """Without a source there is nothing to guard: it was made here."""
        if source is not None:
            self.guards.add(source, kind, expected, self.location(of_program=True))

    def guard_type(self, value: Value) -> type:
        kind = value.python_type()
        source = value.source
        if source is not None and not self.guards.has(source, TYPE_IS):
            self.guards.add(source, GuardKind.TYPE_IS, self.reference(kind), self.location(of_program=True))
            self.classes.instances.setdefault(kind, source)
        return kind

    def reference(self, real: object) -> ObjectRef:
        """How a guard refers to an object, once per object."""
        found = self._references.get(id(real))
        if found is None:
            found = self._references[id(real)] = reference(real)
        return found

    def class_source(self, value: Value) -> Source | None:
        """The path to the class of `value`; None for a class that cannot change, or that no path leads to."""
        cls = value.python_type()
        if not cls.__flags__ & HEAP_TYPE:
            return None
        real = value.real() if value.source is None and issubclass(cls, type) else None
        source = self.classes.path(real) if isinstance(real, type) else value.source  # of a class: the metaclass
        return TypeSource(source) if source is not None else self.classes.path(cls)

    def class_attr(self, value: Value, name: str, raw: object) -> Value:
        """The value of `raw`, the attribute `name` of the class of `value`, with a source through the class."""
        cls = value.python_type()
        found = self.classes.attributes.get((cls, name))
        if found is None and (found := self.classes.made_attr(cls, name)) is None:
            owner, base = self.attribute_base(cls, self.class_source(value), name)
            found = self.wrap(raw, self.class_path(base, owner, name, raw) if base is not None else None)
            if base is not None or not cls.__flags__ & HEAP_TYPE or name in MADE_WITH_CLASS:
                self.classes.attributes[cls, name] = found
        else:
            self.guard_type(value)
        return found

    def attribute_base(self, cls: type, base: Source | None, name: str) -> tuple[type, Source | None]:
        """The class with a path through which an attribute of `cls`, which is at `base`, is guarded."""
        if name in MADE_WITH_CLASS:
            return cls, None
        if cls in self.classes.made and (outer := self.classes.outer_base(cls, name)) is not None:
            return outer, self.classes.path(outer)
        return cls, base

    def class_path(self, base: Source, cls: type, name: str, raw: object) -> Source:
        """The path to `raw`, the attribute `name` of the class at `base`, past a `__get__` written in Python."""
        if not isinstance(getattr(type(raw), "__get__", None), types.FunctionType):
            return AttrSource(base, name)
        position = next((n for n, owner in enumerate(cls.__mro__) if name in owner.__dict__), None)
        if position is None:  # the look-up itself has changed the class
            return AttrSource(base, name)
        for between in range(position):
            self.guard(DictAttrSource(MroSource(base, between), name), GuardKind.ABSENT)
        return DictAttrSource(MroSource(base, position), name)

    def class_lacks(self, value: Value, name: str) -> None:
        """Guard that the class of `value` has no attribute `name`, once per class."""
        key = (value.python_type(), name)
        if key in self.classes.lacking:
            self.guard_type(value)  # the guard is on a path that may lead to another class next time
        elif (base := self.class_source(value)) is not None:
            self.classes.lacking.add(key)
            self.guards.add(AttrSource(base, name), GuardKind.ABSENT, None, self.location(of_program=True))

    def hides_nothing(self, value: Value, name: str) -> None:
        """Guard that the instance's dict does not shadow the class attribute `name`, unless the frame deleted that."""
        has_dict = value.python_type().__dictoffset__ != 0
        if value.source is not None and has_dict and not is_deleted(value, name):
            self.guard(DictAttrSource(value.source, name), GuardKind.ABSENT)

    def call_special(
        self, value: Value, name: str, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE
    ) -> Value:
        """Call a special method, looked up on the class as Python does."""
        found = self.classes.lookup(value.python_type(), name)
        if found is None:
            raise self.error(TypeError, LACKING.get(name, f"'{{}}' object has no {name}").format(value.type_name()))
        self.guard_type(value)
        if type(found[1]) not in BINDS_SELF and name not in ("__new__", "__class_getitem__"):
            return self.model.bound_attr(self, value, name, found[1], site).call(self, args, kwargs, site)
        function = self.class_attr(value, name, found[1])
        if name in ("__new__", "__class_getitem__"):
            return function.call(self, args, kwargs, site)
        return function.call(self, [value, *args], kwargs, site)

    def is_none(self, value: Value | None, none: object = None) -> bool:
        """Whether it is None, or an argument that is not given, or what stands in the place of None; guarded."""
        if value is None or (value.is_constant and value.real() is none):
            return value is None or value.constant(self) is none
        if not value.is_torch:
            self.guard_type(value)
        return False

    def error(self, kind: type, *args: object) -> Raised:
        """An exception of the user's program, to be raised."""
        return Raised(self.model.exception(self, kind, args))

    def name_error(self, kind: type, name: str, message: str) -> Raised:
        """A NameError that knows the name, from which Python makes suggestions."""
        raised = self.error(kind, message)
        if kind is NameError:
            raised.value.attrs["name"] = self.const(name)
        return raised

    def location(self, of_program: bool = False) -> Location | None:
        """The line that runs; with `of_program`, that of the program where it is in a library."""
        return self.frame.location(of_program) if self.frame is not None else None


def refuse_varying(s: CaptureState, value: Value, source: Source | None) -> None:
    """Break where a value is needed that several variants have fixed: a variant for each would never be the last."""
    if s.policy.varying and source is not None and source.text() in s.policy.varying:
        raise value.unsupported(AS_CONSTANT, "it differs from call to call")


def will_change(s: CaptureState, value: Value, name: str = "") -> None:
    """Call before an attribute of `value`, or its contents, are changed."""
    if id(value) in s.counters.lasting:
        raise s.counters.lasting[id(value)][1]()
    changed = s.counters.changed
    if changed is not None and (id(value), name) not in changed:
        changed[id(value), name] = StateChange(value, name, s.model.state_of(s, value, name))


def is_deleted(value: Value, name: str) -> bool:
    """Whether the frame deleted this attribute, which is not found."""
    attrs = getattr(value, "attrs", None)
    return isinstance(attrs, dict) and name in attrs


def read_attr(s: CaptureState, value: Value, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
    """`value.name` as an expression: an AttributeError tells which attribute of which object, if it does not yet."""
    try:
        return value.get_attr(s, name, site)
    except Raised as raised:
        fields: dict[str, Value | None] = getattr(raised.value, "attrs", {})
        if issubclass(raised.value.python_type(), AttributeError) and all(
            field in fields and s.is_none(fields[field]) for field in ("name", "obj")
        ):
            fields.update(name=s.const(name), obj=value)
        raise


@final
@dataclass
class ProgramModes:
    """What modes of the program see (`builtins/function_modes.py`); None until one is entered."""

    see: Callable[[CaptureState, Target, Args, Kwargs, bool], Value | None] | None = None


def note_innermost(s: CaptureState) -> None:
    """Set whether the innermost mode is one of the program."""
    of_torch = not s.function_modes or s.function_modes[-1].python_type().__module__.startswith("torch.")
    s.see = None if of_torch else s.part(ProgramModes).see
