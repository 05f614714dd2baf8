"""Class statements: the body is interpreted, the class made by its metaclass (`variables/made_class.py` has the model).

class Scaled(Base, metaclass=Meta):    __build_class__(<body>, "Scaled", Base, metaclass=Meta)
    factor = 2                   =>    names of the body, in Meta.__prepare__("Scaled", (Base,)): {"factor": 2, ...}
                                       Meta("Scaled", (Base,), <names>), which is interpreted down to type.__new__:
                                       Class(<stand-in>)
"""

from __future__ import annotations

import abc
import builtins
import sys

from torch.autograd.function import FunctionMeta

from kiln.capture.interpreter.breaks import Raised, UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.classes import ANNOTATIONS, Class, Super
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Cell, Function
from kiln.capture.interpreter.variables.made_class import (
    NOT_SUPPORTED,
    StandIn,
    has_set_name,
    is_named,
    stand_in,
)
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import ALIASES, class_of
from kiln.capture.interpreter.variables.sequence import Sequence, Tuple, all_items
from kiln.runtime.classes import INIT_ABC, NotMade
from kiln.runtime.classes import make_class as make_unhooked

METACLASSES: tuple[type, ...] = (type, abc.ABCMeta, FunctionMeta)
"""They call nothing of the program but hooks of bases; the last is that of `torch.autograd.Function`."""
CELL = "__classcell__"
CONFLICT = (
    "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the metaclasses of all"
    " its bases"
)


@handles(builtins.__build_class__)
def build_class(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    body, name, *given = args
    if not isinstance(body, Function) or body.original is not None:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="its body was made outside")
    keywords = dict(kwargs)
    bases = resolved_bases(s, given)
    metaclass = keywords.pop("metaclass", None) or (class_of(s, bases[0]) if bases else s.wrap(type, None))
    if isinstance(metaclass, Class):
        metaclass = most_derived(s, metaclass, bases)
    space = prepared(s, metaclass, name, bases, keywords)
    frame = SymbolicFrame(s, body.code, body, body.namespace, running_frame(s))
    frame.names = space
    for variable, cell in zip(body.code.co_freevars, body.cells, strict=True):
        frame.cells[variable] = cell
    held = frame.run()
    if bases != given:
        space.set_item(s, s.const("__orig_bases__"), Tuple(given))
    if isinstance(metaclass, Class) and metaclass.constant(s) in METACLASSES:
        return make_class(s, metaclass, name.constant(s), bases, names_in(s, space), keywords)
    made = metaclass.call(s, [name, Tuple(list(bases)), space], keywords)
    if isinstance(made, Class) and isinstance(held, Cell):
        check_cell(s, held, name.constant(s), made)
    return made


def check_cell(s: CaptureState, cell: Cell, name: str, made: Class) -> None:
    """Whether the metaclass has set what `super()` without arguments reads."""
    held = cell.load(s)
    if held is None:
        wanted = "Was __classcell__ propagated to type.__new__?"
        raise s.error(RuntimeError, f"__class__ not set defining {name!r} as {made.cls!r}. {wanted}")
    if not isinstance(held, Class) or held.cls is not made.cls:
        shown = held.cls if isinstance(held, Class) else held.constant(s)
        raise s.error(TypeError, f"__class__ set to {shown!r} defining {name!r} as {made.cls!r}")


def resolved_bases(s: CaptureState, given: list[Value]) -> list[Value]:
    """The bases, with what `__mro_entries__` gives in place of objects that are no classes."""
    found: list[Value] = []
    for base in given:
        if isinstance(base, Class):
            found.append(base)
        elif base.python_type() in ALIASES:
            found += [s.wrap(entry, None) for entry in base.constant(s).__mro_entries__(())]
        elif s.classes.lookup(base.python_type(), "__mro_entries__") is not None:
            entries = base.get_attr(s, "__mro_entries__").call(s, [Tuple(list(given))], {})
            if not issubclass(entries.python_type(), tuple):
                raise s.error(TypeError, "__mro_entries__ must return a tuple")
            found += all_items(s, entries)
        else:
            found.append(base)
    return found


def most_derived(s: CaptureState, metaclass: Class, bases: list[Value]) -> Value:
    """The metaclass from which those of all bases derive, or itself."""
    found: Value = metaclass
    for base in bases:
        kind, mine = base.python_type(), found.constant(s)
        if issubclass(mine, kind):
            continue
        if not issubclass(kind, mine):
            raise s.error(TypeError, CONFLICT)
        found = class_of(s, base)
    return found


def prepared(s: CaptureState, metaclass: Value, name: Value, bases: list[Value], keywords: Kwargs) -> Value:
    """The mapping for the names of the body."""
    if not isinstance(metaclass, Class):
        return Dict({})
    real = metaclass.constant(s)
    found = s.classes.lookup(real, "__prepare__")
    if found is None or found[0] is type:
        return Dict({})
    space = metaclass.get_attr(s, "__prepare__").call(s, [name, Tuple(list(bases))], keywords)
    if s.classes.lookup(space.python_type(), "__getitem__") is None:
        raise s.error(TypeError, f"{real.__name__}.__prepare__() must return a mapping, not {space.type_name()}")
    return space


def names_in(s: CaptureState, space: Value) -> Dict:
    """A copy of the names, as `type.__new__` makes one."""
    native = getattr(space, "native", None) or space
    if not isinstance(native, Dict):
        raise UnsupportedCall(function="type.__new__", why="the names of the class are not in a dict")
    return Dict(dict(native.items(s)))


def make_class(
    s: CaptureState, metaclass: Class, name: str, bases: list[Value], space: Dict, keywords: Kwargs
) -> Value:
    """`type.__new__`: the class and its stand-in."""
    if not all(isinstance(base, Class) for base in bases):
        raise UnsupportedCall(function=NOT_SUPPORTED, why="a base is not a class")
    real = metaclass.constant(s)
    real_bases = tuple(base.constant(s) for base in bases)
    hooked = bool(keywords) or any(is_hooked(s, base) for base in real_bases)
    if hooked and real is FunctionMeta:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="a base has an `__init_subclass__`")
    if (order := s.classes.lookup(real, "mro")) is not None and order[0] is not type:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="its metaclass orders the bases")
    if any(
        (found := s.classes.lookup(real, name)) and found[0] not in (object, type) for name in ("__eq__", "__hash__")
    ):
        raise UnsupportedCall(function=NOT_SUPPORTED, why="its metaclass compares classes")
    values = {str(key): value for key, (_, value) in space.items(s).items()}
    if "__module__" not in values:
        values["__module__"] = running_frame(s).globals.name(s)
    cell = values.pop(CELL, None)
    values.pop("__classdictcell__", None)  # which has these names already
    stand_ins = {key: stand_in(s, key, value) for key, value in values.items()}
    plain = {key: StandIn() if is_named(real_value) else real_value for key, real_value in stand_ins.items()}
    unhooked = hooked or real not in METACLASSES
    try:
        cls = make_unhooked(real, name, real_bases, plain) if unhooked else real(name, real_bases, plain)
    except NotMade:
        raise UnsupportedCall(function=NOT_SUPPORTED, why="a base has an `__init_subclass__`") from None
    except (TypeError, ValueError) as error:
        raise s.error(type(error), *error.args) from None
    for key, real_value in stand_ins.items():
        if plain[key] is not real_value:
            type.__setattr__(cls, key, real_value)
    made = Class(cls)
    s.classes.made[cls] = values
    s.classes.values[cls] = made
    made.bases, made.metaclass = bases, metaclass if unhooked else None
    if isinstance(cell, Cell):
        cell.store(s, made)
    elif cell is not None:
        raise s.error(TypeError, f"__classcell__ must be a nonlocal cell, not {cell.python_type()!r}")
    for key, value in list(values.items()):
        if has_set_name(s, value):
            call_set_name(s, value, made, key)
    if hooked:
        Super(cls, made).get_attr(s, "__init_subclass__").call(s, [], keywords)
    return made


def call_set_name(s: CaptureState, value: Value, made: Class, name: str) -> None:
    try:
        s.call_special(value, "__set_name__", [made, s.const(name)], {})
    except Raised as raised:
        if sys.version_info >= (3, 12):
            raise
        what = f"Error calling __set_name__ on '{value.type_name()}' instance '{name}' in '{made.cls.__name__}'"
        error = s.error(RuntimeError, what)
        error.value.set_attr(s, "__cause__", raised.value)
        error.value.set_attr(s, "__context__", raised.value)
        raise error.again() from None


def is_hooked(s: CaptureState, base: type) -> bool:
    found = s.classes.lookup(base, "__init_subclass__")
    return found is not None and found[0] is not object


@handles(type.__new__)
def type_new(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    metaclass, name, bases, names = args
    assert isinstance(metaclass, Class)
    if not isinstance(bases, Sequence) or not issubclass(bases.cls, tuple):
        raise s.error(TypeError, f"type.__new__() argument 2 must be tuple, not {bases.type_name()}")
    if not issubclass(name.python_type(), str):
        raise s.error(TypeError, f"type.__new__() argument 1 must be str, not {name.type_name()}")
    if not issubclass(names.python_type(), dict):
        raise s.error(TypeError, f"type.__new__() argument 3 must be dict, not {names.type_name()}")
    kinds = list(bases.items(s))
    if not all(isinstance(kind, Class) for kind in kinds):
        raise UnsupportedCall(function="type", why="a base is not a class")
    winner = most_derived(s, metaclass, kinds)
    if winner.constant(s) is not metaclass.constant(s):
        return winner.call(s, args[1:], kwargs)
    return make_class(s, metaclass, name.constant(s), kinds, names_in(s, names), kwargs)


handles(type.__init__)(lambda s, args, kwargs: Constant(None))
handles(type.__dict__["__prepare__"])(lambda s, args, kwargs: Dict({}))


@handles(INIT_ABC)
def abc_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The stand-in has its registry already, as will the class."""
    if args[0].constant(s) not in s.classes.made:
        raise UnsupportedCall(function="_abc_init", why="the class was made outside")
    return Constant(None)


@handles(type.__setattr__, type.__delattr__)
def type_setattr(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    cls, name, *value = args
    assert isinstance(cls, Class)
    if not cls.set_own_attr(s, name.constant(s), value[0] if value else None):
        raise UnsupportedCall(function="type.__setattr__", why="the class was made outside")
    return Constant(None)


@handles(type.__getattribute__)
def type_getattribute(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    cls, name = args
    assert isinstance(cls, Class)
    text = name.constant(s)
    if not isinstance(text, str):
        raise s.error(TypeError, f"attribute name must be string, not '{type(text).__name__}'")
    return cls.own_lookup(s, text)


def annotations_of_class(name: str) -> None:
    """Register what `annotationlib` calls for an attribute of a class (CPython 3.14)."""
    handles(type.__dict__[name].__get__)(lambda s, args, kwargs: args[0].get_attr(s, name))


if sys.version_info >= (3, 14):
    for annotations in ANNOTATIONS:
        annotations_of_class(annotations)


@handles(type.__call__)
def type_call(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    cls, *rest = args
    assert isinstance(cls, Class)
    return cls.construct(s, rest, kwargs)
