"""Python functions, bound methods, cells and namespaces; inlining a call.

    def f(x, scale=2): return x * scale
    f(y)              a new symbolic frame with x=y, scale=Constant(2); its result is the result of the call

A function from outside is guarded by its code, not by identity, so a new closure over the same code passes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Hashable
from dataclasses import field
from inspect import CO_ASYNC_GENERATOR
from typing import Any, cast, final

import torch
from torch._compile import _disable_dynamo

from kiln.capture.bytecode.resume import origin_of
from kiln.capture.interpreter.arity import refuse_unread
from kiln.capture.interpreter.breaks import DisabledCall, GraphBreak, PastStep, UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.core import (
    HANDLERS,
    MISSING,
    NOT_RESUMABLE,
    SITE_HANDLERS,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Token,
    Value,
    will_change,
    wraps,
)
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.argument_binding import bind
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.iterators import Generator
from kiln.capture.interpreter.variables.made_namespace import MadeNamespace, module_of
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import recorded
from kiln.native._frames import Dispatcher, Driven
from kiln.runtime.guards.guard import GuardKind, function_expectation
from kiln.runtime.guards.reference import ObjectRef
from kiln.runtime.guards.source import (
    AnswerSource,
    AttrSource,
    BuiltinSource,
    ClosureSource,
    DefaultSource,
    DictAttrSource,
    GlobalSource,
    ImportSource,
    ItemSource,
    MethodFuncSource,
    MethodSelfSource,
    ModuleGlobalSource,
    Source,
    attribute_path,
)
from kiln.support.compiling import DISABLED
from kiln.support.opaque import TRANSFORMS, why_opaque
from kiln.support.records import dataclass

MARK_OF_TORCH = _disable_dynamo(len).__code__
"""Of the functions by which torch keeps parts of itself out of torch.compile, such as `Optimizer.zero_grad`."""
WRAPPER_CONSTRUCTOR = "mark_subclass_constructor_exportable"
"""The decorator of constructors of wrapper subclasses."""
MAX_DEPTH = 120
GENERATED = "namedtuple_"
"""Namespaces in which `collections.namedtuple` makes constructors; they are no modules."""
TORCH_RULES = "torch._dynamo.trace_rules"
"""Where torch keeps what is allowed in a graph, if the program has loaded it."""
HINTS = (
    *("mark_static_address", "mark_static", "maybe_mark_dynamic", "mark_dynamic", "mark_unbacked"),
    *("override_optimization_hint", "DynamoConfigPatchProxy.__enter__", "DynamoConfigPatchProxy.__exit__"),
)
BOOKKEEPING = frozenset({
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"), ("torch.compiler", "cudagraph_mark_step_begin"),
    *[("torch._dynamo.decorators", name) for name in HINTS],
})  # fmt: skip
"""Functions of torch.compile (module, name) that are ignored: its own bookkeeping, called when an `nn.Module` is made
after it ran in the process, and hints about tensors that a program makes."""
WRAPPED_BY_TORCH = "_torchdynamo_orig_callable"
"""The attribute in which a function that `torch.compile` has made keeps the program's."""
NAMED_HANDLERS: dict[tuple[str, str], Handler] = {}
"""Handlers of functions in modules that Kiln does not import: module, qualified name."""
BREAK_CALL = ("torch._dynamo.decorators", "graph_break")
"""Honoured in programs. In torch's own functions (its optimizers) it works around limits of torch.compile."""


@final
class Cell(Value):
    """A cell, a variable shared with nested functions; empty if `content` is None."""

    __slots__ = ("content", "emptied", "name", "original", "source")
    cls = types.CellType

    def __init__(
        self,
        content: Value | None,
        source: Source | None = None,
        name: str = "",
        original: types.CellType | None = None,
    ) -> None:
        self.content = content
        self.source = source
        self.name = name
        self.original = original
        self.emptied = False
        """Its variable was deleted."""

    def load(self, s: CaptureState) -> Value | None:
        if self.content is None and self.original is not None and not self.emptied:
            try:
                self.content = s.wrap(self.original.cell_contents, self.source)
            except ValueError:
                return None
        return self.content

    def store(self, s: CaptureState, value: Value | None) -> None:
        will_change(s, self)
        if self.original is not None:
            s.effects.note(CellEffect(self))
        self.content, self.emptied = value, value is None

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name == "cell_contents":
            content = self.load(s)
            if content is None:
                raise s.error(ValueError, "Cell is empty")
            return content
        return super().get_attr(s, name, site)

    def emit(self, g: Codegen) -> None:
        g.cell(self)


@final
@dataclass(frozen=True)
class CellEffect(SideEffect):
    """A cell from outside has new contents."""

    cell: Cell
    writes = True

    @property
    def key(self) -> Hashable:
        return "cell", id(self.cell.original)

    def emit(self, g: Codegen) -> None:
        if self.cell.content is None:
            g.emit(self.cell)
            g.body.op("DELETE_ATTR", "cell_contents")
            return
        g.emit(self.cell.content)
        g.emit(self.cell)
        g.body.op("STORE_ATTR", "cell_contents")


@final
class Namespace:
    """The globals of a function, as loaded and stored by the program."""

    __slots__ = ("dictionary", "module", "path", "root", "values")

    def __init__(self, dictionary: dict[str, object], root: bool, path: Source | None = None) -> None:
        self.dictionary = dictionary
        self.path = path
        self.values: dict[str, Value] = {}
        self.root = root
        self.module = module_of(dictionary)

    def source(self, name: str) -> Source:
        if self.root:
            return GlobalSource(name)
        if self.module:
            return ModuleGlobalSource(self.module, name)
        if self.path is None:  # of a callee that a resume function continues: the guards hold the dict
            held = ObjectRef(f"globals of {self.dictionary.get('__name__')}", lambda _: self.dictionary)
            self.path = AnswerSource(ImportSource("builtins"), held)
        return ItemSource(self.path, name)

    def load(self, s: CaptureState, name: str) -> Value:
        found = self.values.get(name)
        if found is None:
            found = self.values[name] = self._load(s, name)
        return found

    def _load(self, s: CaptureState, name: str) -> Value:
        real = self.dictionary.get(name, MISSING)
        if real is not MISSING:
            return s.wrap(real, self.source(name))
        builtins = self.dictionary.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        s.guard(self.source(name), GuardKind.ABSENT)
        if name not in builtins:
            s.guard(BuiltinSource(name), GuardKind.ABSENT)
            raise s.name_error(NameError, name, f"name '{name}' is not defined")
        return s.wrap(builtins[name], BuiltinSource(name))

    def store(self, s: CaptureState, name: str, value: Value) -> None:
        if id(self.dictionary) in s.identities.objects:
            raise UnsupportedCall(function=f"global {name}", why="the dict of the module is also used as a dict")
        self.values[name] = value
        s.effects.note(GlobalEffect(self, name))

    def name(self, s: CaptureState) -> Value:
        """The `__module__` of functions."""
        return s.wrap(self.dictionary.get("__name__"), None)

    def as_dict(self, s: CaptureState) -> Value:
        written = any(s.effects.find(("global", id(self.dictionary), name)) is not None for name in self.values)
        if self.module is None or written:
            raise UnsupportedAttribute(name="__globals__", type="function", why="the frame has set globals")
        return s.wrap(self.dictionary, AttrSource(ImportSource(self.module), "__dict__"))

    def emit(self, g: Codegen) -> Dict | None:
        g.body.const(self.dictionary)
        return None


@final
@dataclass(frozen=True)
class GlobalEffect(SideEffect):
    """A global variable was set."""

    namespace: Namespace
    name: str
    writes = True

    @property
    def key(self) -> Hashable:
        return "global", id(self.namespace.dictionary), self.name

    def emit(self, g: Codegen) -> None:
        g.emit(self.namespace.values[self.name])
        g.body.const(self.namespace.dictionary).const(self.name).op("STORE_SUBSCR")


@final
@dataclass
class FunctionTables:
    """Shared by the functions of one capture; keys are `id`s of objects that the program keeps alive."""

    namespaces: dict[int, Namespace] = field(default_factory=dict)
    cells: dict[int, Cell] = field(default_factory=dict)
    expectations: dict[int, object] = field(default_factory=dict)
    """The expectation of a guard on a function's code."""
    unguarded: set[object] = field(default_factory=set)
    """The modules of functions that no guard covers, for want of a path."""
    renamed: dict[tuple[int, str], Value] = field(default_factory=dict)
    """Names and documentation that the frame has given to functions from outside."""


def expectation(s: CaptureState, function: types.FunctionType) -> object:
    """What a guard on the code of `function` expects."""
    known = s.part(FunctionTables).expectations
    found = known.get(id(function))
    if found is None:
        found = known[id(function)] = function_expectation(function)
    return found


def unguarded_modules(s: CaptureState) -> frozenset[str]:
    """The modules of functions and classes that were interpreted and that no guard covers."""
    names = s.part(FunctionTables).unguarded | s.classes.modules()
    return frozenset(name for name in names if isinstance(name, str) and not name.startswith(GENERATED))


def namespace(s: CaptureState, dictionary: dict[str, object], function: Source | None = None) -> Namespace:
    """The namespace of a globals dict; `function` is a path to a function with these globals."""
    known = s.part(FunctionTables).namespaces
    found = known.get(id(dictionary))
    if found is None:
        path = AttrSource(function, "__globals__") if function is not None else None
        found = known[id(dictionary)] = Namespace(dictionary, dictionary is s.globals, path)
    elif found.path is None and function is not None:
        found.path = AttrSource(function, "__globals__")
    return found


def forget_globals(s: CaptureState) -> None:
    """The capture is over: functions among the globals lead back to them, and would hold what they have seen."""
    for space in s.part(FunctionTables).namespaces.values():
        space.values.clear()


@final
class Function(Value):
    """A Python function, from outside (`original`) or made in the frame."""

    __slots__ = (
        *("_checked", "annotate", "annotations", "attrs", "cells", "code", "defaults", "kwdefaults", "namespace"),
        *("original", "renamed", "source"),
    )
    cls = types.FunctionType

    def __init__(
        self,
        code: types.CodeType,
        space: Namespace | MadeNamespace,
        source: Source | None = None,
        original: types.FunctionType | None = None,
    ) -> None:
        self.code = code
        self.namespace = space
        self.source = source
        self.original = original
        self.defaults: list[Value] = []
        self.kwdefaults: dict[str, Value] = {}
        self.cells: list[Cell] = []
        self.attrs = Dict({})
        self.renamed: dict[str, Value] = {}
        self.annotations: Value | None = None
        self.annotate: Value | None = None
        """CPython 3.14, the function that makes the annotations when they are asked for."""
        self._checked = original is None

    def real(self) -> object:
        return MISSING if self.original is None else self.original

    def constant(self, s: CaptureState) -> Any:
        if self.original is None:
            return super().constant(s)
        self.check(s)
        return self.original

    def qualified_name(self, s: CaptureState) -> str:
        """As CPython's messages have it."""
        if self.original is not None:
            return self.original.__qualname__
        renamed = self.renamed.get("__qualname__")
        return str(renamed.constant(s)) if renamed is not None and renamed.is_constant else self.code.co_qualname

    def check(self, s: CaptureState) -> None:
        """Guard the code once."""
        if not self._checked:
            assert self.original is not None
            self._checked = True
            if self.source is None:
                s.part(FunctionTables).unguarded.add(self.namespace.dictionary.get("__name__"))
            else:
                s.guard(self.source, GuardKind.FUNCTION_CODE, expectation(s, self.original))

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        original = self.original
        if original is not None:
            self.check(s)
            if s.see is not None and (seen := s.see(s, original, args, kwargs, False)) is not None:
                return seen
            handler = handler_of(original)
            if handler is not None:
                bind(s, self, args, kwargs)  # raises what the function does: its handler may take more
                if (sited := SITE_HANDLERS.get(original)) is not None:
                    return sited(s, args, kwargs, site)
                refuse_unread(original, handler, kwargs)
                return handler(s, args, kwargs)
            if original.__dict__.get(DISABLED) or original.__code__ is MARK_OF_TORCH:
                return self.behind_mark(s, args).call(s, args, kwargs, site)
            if is_ignored(s, original):
                return s.const(None)
            if (instead := NAMED_HANDLERS.get((original.__module__, original.__qualname__))) is not None:
                return instead(s, args, kwargs)
            if WRAPPED_BY_TORCH in original.__dict__ and why_opaque(original):
                return self.get_attr(s, WRAPPED_BY_TORCH).call(s, args, kwargs, site)
            refuse_opaque(original)
            if original.__globals__.get("__name__") in TRANSFORMS and not s.part(TransformScope).active:
                return call_transform(s, self, args, kwargs)
        return inline(s, self, args, kwargs, site)

    def behind_mark(self, s: CaptureState, args: Args) -> Value:
        """What a function of torch's optimizers, or a constructor of a wrapper, is that torch marks for the limits of
        torch.compile.

        Raises DisabledCall for any other function that is marked to run in Python.
        """
        assert self.original is not None
        if self.original.__qualname__.startswith(WRAPPER_CONSTRUCTOR) and "__wrapped__" in self.original.__dict__:
            decorated: types.FunctionType = self.original.__dict__["__wrapped__"]
            index = decorated.__code__.co_freevars.index("constructor_subclass")
            path = AttrSource(self.source, "__wrapped__") if self.source is not None else None
            source = ClosureSource(path, index) if path is not None else None
            return s.wrap((decorated.__closure__ or ())[index].cell_contents, source)
        of_torch = str(self.original.__module__).startswith("torch.optim.") or makes_tensor(self.original, args)
        if not of_torch or "__wrapped__" not in self.original.__dict__:
            raise DisabledCall(function=self.original.__qualname__)
        return self.get_attr(s, "__wrapped__")

    def key(self, s: CaptureState) -> Token:
        if self.original is None:
            return self
        s.guard(self.source, GuardKind.IS, s.reference(self.original))
        return self.original

    def truth(self, s: CaptureState) -> bool:
        return True

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        found = self._own_attr(s, name) if self.original is None else self._original_attr(s, name)
        return found if found is not None else super().get_attr(s, name, site)

    def _own_attr(self, s: CaptureState, name: str) -> Value | None:
        if name in self.renamed:
            return self.renamed[name]
        if name == "__dict__":
            return self.attrs
        made = DERIVED.get(name)
        return made(s, self) if made is not None else self.attrs.find(s, name)

    def annotated(self, s: CaptureState) -> Value:
        """Its annotations, which are a tuple of names and values until they are asked for."""
        if "__annotations__" not in self.renamed:
            parts = self.annotations.items(s) if isinstance(self.annotations, Tuple) else []
            items = {name.constant(s): (name, value) for name, value in zip(parts[::2], parts[1::2], strict=True)}
            self.renamed["__annotations__"] = Dict(items) if self.annotate is None else made_now(s, self.annotate)
        return self.renamed["__annotations__"]

    def _original_attr(self, s: CaptureState, name: str) -> Value | None:
        source = self.source
        if (given := s.part(FunctionTables).renamed.get((id(self.original), name))) is not None:
            return given
        own = s.identities.objects.get(id(self.original.__dict__)) if name != "__dict__" else None
        if isinstance(own, Dict) and name not in DERIVED:  # which the frame may have changed
            return own.find(s, name)
        if name in self.original.__dict__:
            return s.wrap(self.original.__dict__[name], DictAttrSource(source, name) if source else None)
        if name == "__dict__" or name in DERIVED:
            self.check(s)
            return s.wrap(getattr(self.original, name), AttrSource(source, name) if source else None)
        return None

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        if self.original is not None and value is not None and name in NAMES:
            self.check(s)
            s.part(FunctionTables).renamed[id(self.original), name] = checked_name(s, name, value)
            s.effects.note(RenameEffect(self, name))
        elif self.original is not None and name not in DERIVED and name != "__dict__":
            own = self.get_attr(s, "__dict__")
            if value is not None:
                own.set_item(s, s.const(name), value)
            elif contains_name(s, own, name):
                own.del_item(s, s.const(name))
            else:
                super().set_attr(s, name, value, site)
        elif value is None and self.original is None and contains_name(s, self.attrs, name):
            self.attrs.del_item(s, s.const(name))
        elif self.original is not None or value is None:
            super().set_attr(s, name, value, site)
        elif name in NAMES:
            self.renamed[name] = checked_name(s, name, value)
        elif name == "__defaults__" and (isinstance(value, Tuple) or value.is_constant):
            self.defaults = list(value.items(s)) if isinstance(value, Tuple) else []
        elif name in ("__defaults__", "__kwdefaults__", "__code__", "__globals__", "__closure__"):
            super().set_attr(s, name, value, site)
        elif name == "__annotate__":
            self.renamed.pop("__annotations__", None)
            self.annotations, self.annotate = None, None if s.is_none(value) else value
        elif name in DERIVED:
            self.renamed[name] = value
        else:
            self.attrs.set_item(s, s.const(name), value)

    def emit(self, g: Codegen) -> None:
        if self.original is not None:
            g.body.const(self.original)
            return
        g.body.const(types.FunctionType).const(self.code)
        unfilled = self.namespace.emit(g)
        g.body.const(self.code.co_name)
        g.emit(Tuple(self.defaults) if self.defaults else g.state.const(None))
        for cell in self.cells:
            g.emit(cell)
        g.body.op("BUILD_TUPLE", len(self.cells)).call(5)
        g.remember(self)
        if unfilled is not None:
            g.run(dict.clear, unfilled)
            g.emit(unfilled)
            unfilled.emit_fill(g)
            g.body.op("POP_TOP")
        if self.kwdefaults:
            g.emit(Dict(named(g.state, self.kwdefaults)))
            g.body.op("COPY", 2).op("STORE_ATTR", "__kwdefaults__")
        if self.annotations is not None:
            self.annotated(g.state)
        if self.annotate is not None:
            g.emit(self.annotate)
            g.body.op("COPY", 2).op("STORE_ATTR", "__annotate__")
        own = {str(name): value for name, (_, value) in self.attrs.items(g.state).items()}
        for name, value in {**self.renamed, **own}.items():
            g.emit(value)
            g.body.op("COPY", 2).op("STORE_ATTR", name)


@final
@dataclass(frozen=True)
class RenameEffect(SideEffect):
    """A function from outside has another name or documentation."""

    function: Function
    name: str
    writes = True

    @property
    def key(self) -> Hashable:
        return "function", id(self.function.original), self.name

    def emit(self, g: Codegen) -> None:
        g.emit(g.state.part(FunctionTables).renamed[id(self.function.original), self.name])
        g.emit(self.function)
        g.body.op("STORE_ATTR", self.name)


NAMES = ("__name__", "__qualname__", "__module__", "__doc__")


def checked_name(s: CaptureState, name: str, value: Value) -> Value:
    if name in ("__name__", "__qualname__") and not issubclass(value.python_type(), str):
        raise s.error(TypeError, f"{name} must be set to a string object")
    return value


def contains_name(s: CaptureState, names: Value, name: str) -> bool:
    return isinstance(names, Dict) and names.find(s, name) is not None


def made_now(s: CaptureState, annotate: Value) -> Value:
    """The annotations that a function makes, as values (`annotationlib.Format.VALUE`)."""
    return annotate.call(s, [s.const(1)], {})


def _doc(s: CaptureState, function: Function) -> Value:
    first = function.code.co_consts[0] if function.code.co_consts else None
    return s.const(first if isinstance(first, str) else None)


DERIVED: dict[str, Callable[[CaptureState, Function], Value]] = {
    "__name__": lambda s, f: s.const(f.code.co_name),
    "__qualname__": lambda s, f: s.const(f.code.co_qualname),
    "__module__": lambda s, f: f.namespace.name(s),
    "__doc__": _doc,
    "__code__": lambda s, f: s.const(f.code),
    "__defaults__": lambda s, f: Tuple(list(f.defaults)) if f.defaults else s.const(None),
    "__kwdefaults__": lambda s, f: s.const(None) if not f.kwdefaults else Dict(named(s, f.kwdefaults)),
    "__closure__": lambda s, f: Tuple(list(f.cells)) if f.cells else s.const(None),
    "__annotations__": lambda s, f: f.annotated(s),
    "__globals__": lambda s, f: f.namespace.as_dict(s),
    **({"__type_params__": lambda s, f: Tuple([])} if sys.version_info >= (3, 12) else {}),
    **({"__annotate__": lambda s, f: f.annotate or s.const(None)} if sys.version_info >= (3, 14) else {}),
}
"""Attributes of a function made in the frame."""


def named(s: CaptureState, values: Kwargs) -> dict[Token, tuple[Value, Value]]:
    return {name: (s.const(name), value) for name, value in values.items()}


def is_ignored(s: CaptureState, function: types.FunctionType) -> bool:
    """Whether the function of torch.compile does nothing in eager Python."""
    name = (function.__module__, function.__qualname__)
    if name == BREAK_CALL:
        return str(running_frame(s).globals.dictionary.get("__name__")).partition(".")[0] == "torch"
    return name in BOOKKEEPING


def refuse_opaque(function: types.FunctionType) -> None:
    """Break the graph at a call of an opaque function."""
    if why := why_opaque(function):
        raise UnsupportedCall(function=function.__qualname__, why=why)


def makes_tensor(function: types.FunctionType, args: Args) -> bool:
    """Whether it is a constructor of a tensor subclass."""
    if function.__name__ not in ("__new__", "__init__") or not args:
        return False
    made = args[0].real() if function.__name__ == "__new__" else args[0].python_type()
    return isinstance(made, type) and issubclass(made, torch.Tensor)


def handler_of(function: object) -> Handler | None:
    """The handler of a callable; None if there is none or it cannot be hashed."""
    try:
        found = HANDLERS.get(function)
    except TypeError:
        return None
    if found is None and callable(function) and is_allowed_in_graph(function):
        return recorded(function)
    return found


def is_allowed_in_graph(function: object) -> bool:
    """Whether `torch.compiler.allow_in_graph` was called with it: a call is recorded as one torch call."""
    rules = sys.modules.get(TORCH_RULES)
    allowed: set[int] | None = getattr(getattr(rules, "_allowed_callable_ids", None), "function_ids", None)
    return allowed is not None and id(function) in allowed


@final
@dataclass
class Outlined:
    """Functions that `call` makes a value of instead of interpreting them: they draw random numbers."""

    codes: frozenset[types.CodeType] = frozenset()
    call: Callable[[CaptureState, Function, Args, Kwargs], Value | None] | None = None


def inline(s: CaptureState, function: Function, args: Args, kwargs: Kwargs, site: CallSite) -> Value:
    """Execute a call of a Python function in a new frame, or make a generator."""
    s.policy.check_time()
    parent = running_frame(s)
    code = function.code
    outlined = s.part(Outlined)
    if outlined.codes and outlined.call is not None and code in outlined.codes and function.original is not None:
        made = outlined.call(s, function, args, kwargs)
        if made is not None:
            return made
    if code.co_flags & CO_ASYNC_GENERATOR:
        raise UnsupportedCall(function=code.co_qualname, why="asynchronous generators are not supported")
    origin = origin_of(function.original) if function.original is not None else None
    frame = SymbolicFrame(s, code if origin is None else origin.code, function, function.namespace, parent)
    frame.locals = bind(s, function, args, kwargs)
    for name, cell in zip(code.co_freevars, function.cells, strict=True):
        frame.cells[name] = cell
    if origin is not None:
        frame.enter(origin)
    if frame.is_generator:
        frame.parent = None
        return Generator(frame, args, kwargs, parent)
    frame.continuation = site
    if len(frame.locations()) > MAX_DEPTH:
        raise UnsupportedCall(function=code.co_qualname, why=f"calls are nested more than {MAX_DEPTH} deep")
    result = frame.run()
    assert result is not None
    return result


@final
@dataclass
class TransformScope:
    """Whether a function transform is being interpreted."""

    active: bool = False


def call_transform(s: CaptureState, function: Function, args: Args, kwargs: Kwargs) -> Value:
    """Call a function of `torch.func`; a break within is a break in front of the call."""
    scope, frame = s.part(TransformScope), running_frame(s)
    call = PastStep(frame.number, frame.step, frame.location())
    scope.active = True
    try:
        return inline(s, function, args, kwargs, NOT_RESUMABLE)
    except GraphBreak as stop:
        broken = UnsupportedCall(function=function.code.co_qualname, why=stop.reason)
        raise broken.before(call, stop.at) from stop
    finally:
        scope.active = False


@wraps(Dispatcher)
def wrap_dispatcher(s: CaptureState, real: Dispatcher, source: Source | None) -> Value:
    """A compiled function is inlined like any other."""
    if source is not None:
        s.guard(source, GuardKind.IS, s.reference(real))
    return wrap_function(s, cast(types.FunctionType, real.function), attribute_path(source, "function"))


@wraps(Driven)
def wrap_driven(s: CaptureState, real: Driven, source: Source | None) -> Value:
    """A resume function; a break in it is resumed, not returned as a tail call."""
    return s.wrap(real.function, attribute_path(source, "function"))


@wraps(types.FunctionType)
def wrap_function(s: CaptureState, real: types.FunctionType, source: Source | None) -> Value:
    """A value per path, since each path is guarded by the code it leads to."""
    function = Function(real.__code__, namespace(s, real.__globals__, source), source, real)
    function.defaults = [
        s.wrap(value, DefaultSource(source, index) if source else None)
        for index, value in enumerate(real.__defaults__ or ())
    ]
    for name, value in (real.__kwdefaults__ or {}).items():
        function.kwdefaults[name] = s.wrap(value, DefaultSource(source, name) if source else None)
    for index, cell in enumerate(real.__closure__ or ()):
        name = real.__code__.co_freevars[index]
        if source is None:
            function.cells.append(shared_cell(s, cell, name, None, None))
            continue
        itself = ItemSource(AttrSource(source, "__closure__"), index)
        function.cells.append(shared_cell(s, cell, name, ClosureSource(source, index), itself))
    return function


def shared_cell(
    s: CaptureState, real: types.CellType, name: str, contents: Source | None, itself: Source | None
) -> Cell:
    """One value per cell; the paths to it are guarded to lead to one cell."""
    known = s.part(FunctionTables).cells
    found = known.get(id(real))
    if found is None:
        found = known[id(real)] = Cell(None, contents, name, real)
    if itself is not None:
        s.identities.cell_paths.setdefault(id(real), []).append(itself)
    return found


@wraps(types.CellType)
def wrap_cell(s: CaptureState, real: types.CellType, source: Source | None) -> Value:
    """A cell as a value: resume functions get cells as arguments."""
    path = AttrSource(source, "cell_contents") if source is not None else None
    return shared_cell(s, real, "", path, source)


@wraps(types.MethodType)
def wrap_method(s: CaptureState, real: types.MethodType, source: Source | None) -> Value:
    function = s.wrap(real.__func__, MethodFuncSource(source) if source else None)
    self_ = s.wrap(real.__self__, MethodSelfSource(source) if source else None)
    value = BoundMethod(function, self_, source, real)
    s.guard_type(value)
    return value
