"""`exec`, `eval`, `compile`, and what looks at the frame that calls it.

eval("n + 1")              the string is compiled now; its names are the variables of the calling frame
exec(text, space)          interpreted with `space`, a dict, as globals
locals()                   the variables of the calling frame
sys._getframe(1)           of a frame that is interpreted: its code, its globals, its caller
"""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import field
from typing import final

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import FrameInspection, UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.builtins.functions import attribute, sort
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Value,
    handles,
)
from kiln.capture.interpreter.frame import SymbolicFrame, read_variable, running_frame
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.function import Cell, Namespace, namespace
from kiln.capture.interpreter.variables.made_namespace import BUILTINS, MadeNamespace, module_of
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, listed
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.runtime.guards.source import AttrSource, ImportSource
from kiln.support.records import dataclass

FUTURE: int = sum(
    {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names} - {inspect.CO_NESTED}
)
"""The flags of code objects for `from __future__ import`."""
ONLY_AST: int = ast.PyCF_ONLY_AST
NEWEST_COPIES = (3, 13)
"""From this version on, each `locals()` of a function is a dict of its own."""
ASYNC_OR_GENERATOR: int = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@final
@dataclass
class Snapshots:
    """What `locals()` has made, by the number of the frame; namespaces by the `id` of their dict; objects of frames."""

    frames: dict[int, Dict] = field(default_factory=dict)
    spaces: dict[int, MadeNamespace] = field(default_factory=dict)
    objects: dict[int, FrameObject] = field(default_factory=dict)


def variables(s: CaptureState, frame: SymbolicFrame) -> Dict:
    """What `locals()` is in a frame."""
    if frame.names is not None:
        if not isinstance(frame.names, Dict):
            raise FrameInspection(function="locals")
        return frame.names
    if not frame.code.co_flags & inspect.CO_NEWLOCALS or not frame.knows_all:
        raise FrameInspection(function="locals")
    known = s.part(Snapshots).frames
    found = known.get(frame.number) if sys.version_info < NEWEST_COPIES else None
    if found is None:
        found = known[frame.number] = Dict({})
    items = found.items(s)
    for name in (*frame.code.co_varnames, *frame.code.co_cellvars, *frame.code.co_freevars):
        value = current(s, frame, name)
        if value is not None:
            items[name] = s.const(name), value
        else:
            items.pop(name, None)
    return found


def current(s: CaptureState, frame: SymbolicFrame, name: str) -> Value | None:
    cell = frame.cells.get(name)
    if isinstance(cell, Cell):
        return cell.load(s)
    return read_variable(frame, name)


@handles(locals)
def locals_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return variables(s, running_frame(s))


@handles(vars)
def vars_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        return variables(s, running_frame(s))
    found = attribute(s, args[0], "__dict__")
    if found is None:
        raise s.error(TypeError, "vars() argument must have __dict__ attribute")
    return found


@handles(dir)
def dir_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if args:
        return names_of(s, args[0])
    names = variables(s, running_frame(s)).items(s)
    return List([s.const(name) for name in sorted(map(str, names))])


@handles(object.__dir__)
def object_dir(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return s.wrap(polyfills.object_dir, None).call(s, args, kwargs)


@handles(type.__dir__)
def type_dir(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return s.wrap(polyfills.type_dir, None).call(s, args, kwargs)


DIRECTORIES: Mapping[object, Handler] = {object.__dir__: object_dir, type.__dir__: type_dir}


def names_of(s: CaptureState, value: Value) -> Value:
    """By the `__dir__` of the program, or from the dicts of the object and its classes."""
    custom = s.classes.lookup(value.python_type(), "__dir__")
    if custom is not None and type(custom[1]) is types.FunctionType:
        return List(sort(s, listed(s, s.call_special(value, "__dir__", [], {})), {}))
    kind = value.constant(s) if isinstance(value, Class) else s.guard_type(value)
    if isinstance(value, Class | Object) and custom is not None and custom[1] in DIRECTORIES:
        return List(sort(s, listed(s, DIRECTORIES[custom[1]](s, [value], {})), {}))
    if value.is_torch or kind.__flags__ & HEAP_TYPE or (not isinstance(value, Class) and kind.__dictoffset__):
        raise UnsupportedCall(function="dir", why="its result cannot be guarded")
    return List([s.const(name) for name in dir(kind)])


@handles(globals)
def globals_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return globals_of(s, running_frame(s))


def globals_of(s: CaptureState, frame: SymbolicFrame) -> Value:
    space = frame.globals
    if isinstance(space, MadeNamespace):
        return space.names
    if not isinstance(space, Namespace) or space.module is None or written(s, space):
        raise FrameInspection(function="globals")
    return s.wrap(space.dictionary, AttrSource(ImportSource(space.module), "__dict__"))


def written(s: CaptureState, space: Namespace) -> bool:
    """Whether the frame has set globals, which the real dict does not have yet."""
    return any(s.effects.find(("global", id(space.dictionary), name)) is not None for name in space.values)


def space_of(s: CaptureState, function: str, names: Value) -> Namespace | MadeNamespace:
    """The namespace of code with the globals `names`."""
    if not isinstance(names, Dict) or names.cls is not dict:
        if not names.is_constant:
            raise UnsupportedCall(function=function, why="its globals are no plain dict")
        texts = {"eval": "globals must be a dict", "exec": f"exec() globals must be a dict, not {names.type_name()}"}
        raise s.error(TypeError, texts[function])
    if module_of(names.original) is not None:
        return namespace(s, names.original)
    known = s.part(Snapshots).spaces
    found = known.get(id(names))
    if found is None:
        found = known[id(names)] = MadeNamespace(names)
    if names.find(s, BUILTINS) is None:
        real = s.wrap(vars(builtins), AttrSource(ImportSource("builtins"), "__dict__"))
        names.set_item(s, s.const(BUILTINS), real)
    return found


def is_given(s: CaptureState, args: Args, position: int) -> bool:
    return len(args) > position and not s.is_none(args[position])


def run(s: CaptureState, function: str, args: Args, kwargs: Kwargs) -> Value:
    """`exec` or `eval` of a string or a code object."""
    if kwargs:
        raise UnsupportedCall(function=function, why="it gets keywords")
    caller = running_frame(s)
    code = code_of(s, function, args[0])
    if is_given(s, args, 1):
        space, names = space_of(s, function, args[1]), args[2] if is_given(s, args, 2) else args[1]
    elif is_given(s, args, 2):
        space, names = caller.globals, args[2]
    else:
        space = caller.globals
        at_top = not caller.code.co_flags & inspect.CO_NEWLOCALS and caller.names is None
        names = globals_of(s, caller) if at_top else variables(s, caller)
    if not isinstance(names, Dict):
        raise UnsupportedCall(function=function, why="its locals are no dict")
    frame = SymbolicFrame(s, code, None, space, caller)
    frame.names = names
    result = frame.run()
    assert result is not None
    return result


def code_of(s: CaptureState, function: str, source: Value) -> types.CodeType:
    if source.python_type() not in (str, bytes, types.CodeType):
        raise UnsupportedCall(function=function, why="its source is no string, bytes or code object")
    code = source.constant(s)
    if not isinstance(code, types.CodeType):
        text = code.lstrip(" \t" if isinstance(code, str) else b" \t") if function == "eval" else code
        made = compiled(s, [s.const(text), s.const("<string>"), s.const(function)], inherited(s))
        code = made.constant(s)
    assert isinstance(code, types.CodeType)
    if code.co_freevars:
        raise s.error(TypeError, f"code object passed to {function}() may not contain free variables")
    if code.co_flags & ASYNC_OR_GENERATOR:
        raise UnsupportedCall(function=function, why="the code is that of a generator or coroutine")
    return code


def inherited(s: CaptureState) -> int:
    """The `from __future__ import` statements that hold in the calling frame."""
    flags: int = running_frame(s).code.co_flags & FUTURE
    return flags


def compiled(s: CaptureState, args: Args, flags: int) -> Value:
    """`args`: source, file name and mode."""
    return natives(s).call(compile, [*args, s.const(flags), s.const(True)], {})


@handles(exec)
def exec_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    run(s, "exec", args, kwargs)
    return s.const(None)


@handles(eval)
def eval_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return run(s, "eval", args, kwargs)


PARAMETERS = ("source", "filename", "mode", "flags", "dont_inherit", "optimize")


@handles(compile)
def compile_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(PARAMETERS, args, strict=False)) | kwargs
    if not {"source", "filename", "mode"} <= given.keys() or given.keys() - set(PARAMETERS):
        return natives(s).call(compile, args, kwargs)
    flags = given.get("flags", s.const(0)).constant(s)
    if type(flags) is int and flags & ONLY_AST:
        raise UnsupportedCall(function="compile", why="it makes a syntax tree")
    if given["source"].python_type() not in (str, bytes) or type(flags) is not int:
        raise UnsupportedCall(function="compile", why="its source is no string")
    if "dont_inherit" not in given or not given["dont_inherit"].truth(s):
        flags |= inherited(s)
    rest = {"optimize": given["optimize"]} if "optimize" in given else {}
    texts = [given[name] for name in PARAMETERS[:3]]
    return natives(s).call(compile, [*texts, s.const(flags), s.const(True)], rest)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FrameObject(Value):
    """A frame that is being interpreted, as `sys._getframe` gives it."""

    frame: SymbolicFrame
    cls = types.FrameType

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name == "f_globals":
            return globals_of(s, self.frame)
        if name == "f_code" and not self.frame.is_resumed:
            return s.const(self.frame.code)
        if name == "f_back" and self.frame.parent is not None:
            return frame_object(s, self.frame.parent)
        if name == "f_locals" and not self.frame.is_resumed:
            return variables(s, self.frame)
        if name == "f_lineno":
            return s.const(self.frame.location().line)
        raise UnsupportedAttribute(name=name, type="frame", why="the frame is not run by Python")

    def emit(self, g: Codegen) -> None:
        raise FrameInspection(function="sys._getframe")


def frame_object(s: CaptureState, frame: SymbolicFrame) -> FrameObject:
    known = s.part(Snapshots).objects
    if frame.number not in known:
        known[frame.number] = FrameObject(frame)
    return known[frame.number]


@handles(sys._getframe, inspect.currentframe)
def getframe(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    depth = args[0].constant(s) if args else 0
    if type(depth) is not int:
        raise UnsupportedCall(function="sys._getframe", why="its argument is no int")
    frame: SymbolicFrame | None = running_frame(s)
    for _ in range(depth):
        frame = frame.parent if frame is not None else None
    if frame is None:
        raise FrameInspection(function="_getframe")
    return frame_object(s, frame)


@handles(*filter(None, [getattr(sys, "_getframemodulename", None)]))
def getframemodulename(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The module of the function that runs in the frame, from CPython 3.12 on."""
    found = getframe(s, [*args, *kwargs.values()], {})
    assert isinstance(found, FrameObject)
    if found.frame.function is not None:
        return found.frame.function.get_attr(s, "__module__")
    return found.get_attr(s, "f_globals").get_item(s, s.const("__name__"))


def field_of_class(name: str) -> Handler:
    """`type.__dict__["__dict__"].__get__(cls)`, as which `inspect.getattr_static` reads a class."""

    def read(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        cls = args[0]
        if (
            len(args) > 1
            or not isinstance(cls, Class)
            or s.classes.lookup(type(cls.cls), name) != (type, OF_CLASS[name])
        ):
            raise UnsupportedCall(function=f"{name} of `type`", why="its argument is no ordinary class")
        return cls.get_attr(s, name)

    return read


OF_CLASS = {name: type.__dict__[name] for name in ("__dict__", "__mro__")}
for _name, _descriptor in OF_CLASS.items():
    handles(_descriptor.__get__)(field_of_class(_name))


@handles(inspect.stack)
def stack(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise FrameInspection(function="stack")
