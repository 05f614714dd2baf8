"""Class statements: the body is interpreted, the class made by `type` (`variables/made_class.py` has the model).

class Scaled(Base):            __build_class__(<body>, "Scaled", Base)
    factor = 2           =>    names of the body: {"factor": 2, ...}
                               Class(<stand-in>)
"""

from __future__ import annotations

import abc
import builtins

from torch.autograd.function import FunctionMeta

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.function import Cell, Function
from kiln.capture.interpreter.variables.made_class import (
    NOT_SUPPORTED,
    StandIn,
    has_set_name,
    is_named,
    stand_in,
)
from kiln.capture.interpreter.variables.mapping import Dict

METACLASSES: tuple[type, ...] = (type, abc.ABCMeta, FunctionMeta)
"""Those that only look at the class that they make; the last is that of `torch.autograd.Function`."""
CELL = "__classcell__"


@handles(builtins.__build_class__)
def build_class(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    body, name, *bases = args
    if not isinstance(body, Function) or body.original is not None:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="its body was made outside")
    metaclass = metaclass_of(s, bases, kwargs)
    space = Dict({})
    parent = running_frame(s)
    frame = SymbolicFrame(s, body.code, body, body.namespace, parent)
    frame.names = space
    for variable, cell in zip(body.code.co_freevars, body.cells, strict=True):
        frame.cells[variable] = cell
    frame.run()
    return make_class(s, metaclass, name.constant(s), bases, space)


def metaclass_of(s: CaptureState, bases: list[Value], kwargs: Kwargs) -> type:
    """The metaclass of a class statement, if its `__new__` can be left to Python."""
    if kwargs.keys() - {"metaclass"}:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="it has keywords")
    if not all(isinstance(base, Class) for base in bases):
        raise UnsupportedCall(function=NOT_SUPPORTED, why="a base is not a class")
    kinds = [kwargs["metaclass"].constant(s)] if kwargs else []
    kinds += [type(base.constant(s)) for base in bases]
    if not set(kinds) <= set(METACLASSES):
        raise UnsupportedCall(function=NOT_SUPPORTED, why="its metaclass is not modelled")
    most_derived = max(kinds, key=lambda kind: len(kind.__mro__), default=type)
    if not all(issubclass(most_derived, kind) for kind in kinds):
        raise UnsupportedCall(function=NOT_SUPPORTED, why="its metaclasses conflict")
    return most_derived


def make_class(s: CaptureState, metaclass: type, name: str, bases: list[Value], space: Dict) -> Value:
    """The class and its stand-in."""
    real_bases = tuple(base.constant(s) for base in bases)
    for base in real_bases:
        hook = s.classes.lookup(base, "__init_subclass__")
        if hook is not None and hook[0] is not object:
            raise UnsupportedCall(function=NOT_SUPPORTED, why="a base has an `__init_subclass__`")
    values = {str(key): value for key, (_, value) in space.items(s).items()}
    cell = values.pop(CELL, None)
    stand_ins = {key: stand_in(s, key, value) for key, value in values.items()}
    plain = {key: StandIn() if is_named(real) else real for key, real in stand_ins.items()}
    try:
        cls = metaclass(name, real_bases, plain)
    except (TypeError, ValueError) as error:
        raise s.error(type(error), *error.args) from None
    for key, real in stand_ins.items():
        if plain[key] is not real:
            type.__setattr__(cls, key, real)
    made = Class(cls)
    s.classes.made[cls] = values
    s.classes.values[cls] = made
    made.bases = bases
    if isinstance(cell, Cell):
        cell.store(s, made)
    for key, value in list(values.items()):
        if has_set_name(s, value):
            s.call_special(value, "__set_name__", [made, s.const(key)], {})
    return made
