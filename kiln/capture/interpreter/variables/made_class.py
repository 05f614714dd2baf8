"""Class statements in a frame, and `type(name, bases, namespace)`.

    class Scaled(Base):            the body is interpreted; its names become the attributes of a stand-in:
        factor = 2                 a real class with functions that cannot be called, which is never shown
        def __call__(self, x):     to the program. Where the class is needed after the region it is made again:
            return x * self.factor     type("Scaled", (Base,), {"factor": 2, "__call__": <function>, ...})

The interpreter asks the stand-in for its method resolution order, its slots and the kinds of its attributes, and
`s.classes.made` for their values. Methods of metaclasses, `__init_subclass__` and `__set_name__` are interpreted when
the class is made; the code that makes it again does not call them (`kiln/runtime/classes.py`).
"""

from __future__ import annotations

import contextlib
import types
from typing import final

from kiln.capture.bytecode.assemble import Assembler, Instr
from kiln.capture.interpreter.breaks import UnsupportedCall, UnsupportedValue
from kiln.capture.interpreter.core import MISSING, CaptureState, Codegen, Value
from kiln.capture.interpreter.effects import Container
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Cell, Function
from kiln.capture.interpreter.variables.made_descriptor import PARTS, MadeDescriptor
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.native_object import NativeObject
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import Sequence
from kiln.runtime.classes import make_class

DESCRIPTOR_METHODS = ("__get__", "__set__", "__delete__", "__set_name__")
NOT_SUPPORTED = "class statement"
FIXED = frozenset(("__class__", "__bases__", "__dict__", "__mro__", "__base__"))
"""Attributes of classes that are not assigned."""
NAMING = frozenset(("__name__", "__qualname__", "__module__", "__doc__"))
"""Attributes of classes that `type` takes from the names of the body, but for `__name__`."""


READ_BY_TYPE = NAMING | {"__slots__", "__abstractmethods__"}
"""Names of the body that `type` and ABCMeta read."""


class Detached:
    """The base of stand-ins that are no longer used."""


@final
class StandIn:
    """Stands for an attribute of a stand-in class whose value exists only while tracing."""


def not_called(*args: object, **kwargs: object) -> object:
    """The body of functions of stand-in classes, which C code may call."""
    raise UnsupportedCall(function="a method of a class made here", why="C code calls it while tracing")


def is_named(real: object) -> bool:
    """Whether Python would call a `__set_name__` of the program's when the class is made."""
    return type(real) is not StandIn and isinstance(getattr(type(real), "__set_name__", None), types.FunctionType)


def has_set_name(s: CaptureState, value: Value) -> bool:
    """Whether it is an object of the program with a `__set_name__`."""
    return isinstance(value, Object) and s.classes.lookup(value.cls, "__set_name__") is not None


def is_set_behind(s: CaptureState, name: str, value: Value) -> bool:
    """Whether a name of the body is set when the class has been made again."""
    holds = isinstance(value, Object | Container | Sequence) and not value.is_constant
    return has_set_name(s, value) or (holds and name not in READ_BY_TYPE)


def stand_in(s: CaptureState, name: str, value: Value) -> object:
    """What the attribute of the stand-in class is."""
    if name == "__slots__" or isinstance(value, Constant | Builtin) or issubclass(value.python_type(), type):
        return value.constant(s)
    if isinstance(value, Function):
        return value.original if value.original is not None else function_stand_in(s, value)
    if isinstance(value, MadeDescriptor):
        parts = [stand_in(s, name, value.part(part)) for part in PARTS[value.kind]]
        return value.kind(*parts)
    if isinstance(value, Object):
        return object_stand_in(s, value)
    if isinstance(value, NativeObject) and hasattr(type(value.object), "__get__"):  # the field of a named tuple
        return value.object
    if isinstance(value, Sequence) and all(item.is_constant for item in value.items(s)):
        return value.constant(s)
    return StandIn()


def function_stand_in(s: CaptureState, value: Function) -> types.FunctionType:
    made = types.FunctionType(not_called.__code__, not_called.__globals__, value.code.co_name)
    made.__qualname__ = value.code.co_qualname
    if "__isabstractmethod__" in value.attrs.items(s):
        made.__dict__["__isabstractmethod__"] = value.attrs.items(s)["__isabstractmethod__"][1].constant(s)
    s.classes.stand_ins[id(made)] = made
    return made


def object_stand_in(s: CaptureState, value: Object) -> object:
    """A bare instance if the class makes it a descriptor."""
    if value.original is not MISSING:
        return value.original
    if all(s.classes.lookup(value.cls, name) is None for name in DESCRIPTOR_METHODS):
        return StandIn()
    if value.native is not None or s.classes.lookup(value.cls, "__del__") is not None:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="a descriptor in it is not a plain object")
    return object.__new__(value.cls)


def set_made_attr(s: CaptureState, cls: type, name: str, value: Value | None) -> bool:
    """`cls.name = value` on a class made in the frame, or its deletion; False if it is not modelled."""
    values = s.classes.made.get(cls)
    if values is None or name in FIXED:
        return False
    meta = s.classes.lookup(type(cls), name)
    if meta is not None and name not in NAMING and hasattr(type(meta[1]), "__set__"):
        return name == "__abstractmethods__" and set_abstract(s, cls, value)
    if value is None:
        try:
            type.__delattr__(cls, name)
        except (AttributeError, TypeError) as error:
            raise s.error(type(error), *error.args) from None
        values.pop(name, None)
    else:
        given = value.constant(s) if name in ("__name__", "__qualname__") else stand_in(s, name, value)
        try:
            type.__setattr__(cls, name, given)
        except (TypeError, ValueError) as error:
            raise s.error(type(error), *error.args) from None
        if name != "__name__":
            values[name] = value
    s.classes.forget(cls)
    return True


def is_made(s: CaptureState, cls: type) -> bool:
    """Whether the class, or one that it derives from, is made in the frame."""
    return any(base in s.classes.made for base in cls.__mro__)


def set_abstract(s: CaptureState, cls: type, value: Value | None) -> bool:
    """`cls.__abstractmethods__ = value`."""
    if value is None:
        return False
    type.__setattr__(cls, "__abstractmethods__", value.constant(s))
    s.classes.made[cls]["__abstractmethods__"] = value
    return True


def emit_made_class(
    g: Codegen, made: Value, cls: type, bases: list[Value], metaclass: Value | None, set_later: dict[str, bool]
) -> None:
    """Make the class; the cells of its functions, which may hold the class, are filled behind it.

    Attributes with a `__set_name__`, which has run while tracing, are set once `type` cannot call it again, and so are
    objects and containers, which may hold the class.
    """
    values = g.state.classes.made[cls]
    named = {name: value for name, value in values.items() if name in set_later or is_set_behind(g.state, name, value)}
    cells = [cell for cell in cells_of(list(values.values())) if cell.original is None and not g.is_built(cell)]
    for cell in cells:
        g.make(cell, types.CellType)
        g.body.op("POP_TOP")
    g.body.const(type(cls) if metaclass is None else make_class)
    if metaclass is not None:
        g.emit(metaclass)
    g.body.const(cls.__name__)
    for base in bases:
        g.emit(base)
    g.body.op("BUILD_TUPLE", len(bases))
    first = {name: value for name, value in values.items() if set_later.get(name, True)}
    space = {name: Constant(None) if name in named else value for name, value in first.items()}
    g.emit(Dict({name: (Constant(name), value) for name, value in space.items()}))
    g.body.call(3 if metaclass is None else 4)
    g.remember(made)
    for name, value in named.items():
        g.run(type.__setattr__, made, name, value)
    for cell in cells:
        if cell.content is not None:
            g.emit(cell.content)
            g.emit(cell)
            g.body.op("STORE_ATTR", "cell_contents")


def refuse_stand_ins(s: CaptureState, code: Assembler) -> None:
    """Transformed code never holds a stand-in."""
    if not s.classes.made:
        return
    for item in code.items:
        value = item.arg if isinstance(item, Instr) else None
        if id(value) in s.classes.stand_ins or (isinstance(value, type) and value in s.classes.made):
            raise UnsupportedValue(type="class", why="a class that was made here is used in a way that is not modelled")


def detach(s: CaptureState) -> None:
    """The bases of the program no longer list the stand-ins as their subclasses."""
    for cls in s.classes.made:
        with contextlib.suppress(TypeError):
            type.__setattr__(cls, "__bases__", (Detached,))


def cells_of(values: list[Value]) -> list[Cell]:
    """The cells of functions among the values, and of the functions in descriptors."""
    found: dict[int, Cell] = {}
    for value in values:
        inner = list(value.parts.values()) if isinstance(value, MadeDescriptor) else [value]
        for function in inner:
            if isinstance(function, Function):
                found.update({id(cell): cell for cell in function.cells})
    return list(found.values())
