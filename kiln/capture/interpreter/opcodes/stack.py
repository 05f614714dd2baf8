"""Stack, locals, cells, globals and imports."""

from __future__ import annotations

import builtins
import importlib.util
import sys
import types

from kiln.capture.interpreter.breaks import Raised, UnsupportedCall, UnsupportedOpcode
from kiln.capture.interpreter.core import MISSING, CaptureState, Value
from kiln.capture.interpreter.frame import SymbolicFrame, opcode, push_callable, read_variable
from kiln.capture.interpreter.late_finalizers import break_behind
from kiln.capture.interpreter.variables.constant import PLAIN, TORCH, Constant
from kiln.capture.interpreter.variables.function import Cell
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.runtime.guards.source import ImportSource
from kiln.support.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Live(Value):
    """An object among the constants of transformed code (a function, a dispatcher): wrapped in each capture."""

    live: object


def prepare_const(value: object) -> Value:
    """The value of a constant of the code, shared by all captures."""
    if type(value) is tuple:
        return Tuple([prepare_const(item) for item in value])
    if type(value) in SHARED:
        return Constant(value)
    return Live(value)


SHARED = frozenset((*PLAIN, *TORCH, frozenset, slice))


@opcode("NOP", "RESUME", "COPY_FREE_VARS")
def nop(frame: SymbolicFrame, arg: int) -> None:
    pass


@opcode("LOAD_CONST", prepare=prepare_const)
def load_const(frame: SymbolicFrame, value: Value) -> None:
    frame.stack.append(value if value.__class__ is not Live else frame.state.wrap(value.live, None))  # type: ignore[attr-defined]


@opcode("LOAD_FAST")
def load_fast(frame: SymbolicFrame, name: str) -> None:
    value = frame.locals.get(name)
    if value is None and (value := read_variable(frame, name)) is None:
        raise unbound(frame, UnboundLocalError, name)
    frame.stack.append(value)


def unbound(frame: SymbolicFrame, kind: type, name: str) -> Raised:
    free = kind is NameError
    which, where = ("free", " in enclosing scope") if free else ("local", "")
    text = f"cannot access {which} variable '{name}' where it is not associated with a value{where}"
    return frame.state.name_error(kind, name, text)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: SymbolicFrame, name: str) -> None:
    """3.12, around an inlined comprehension: push the cell, the value or NULL."""
    cell = frame.cells.pop(name, None)
    if frame.unread:
        read_variable(frame, name)
    frame.stack.append(frame.locals.pop(name, None) if cell is None else cell)


@opcode("STORE_FAST")
def store_fast(frame: SymbolicFrame, name: str) -> None:
    value = frame.stack.pop()
    if frame.unread:
        read_variable(frame, name)
    old = frame.locals.pop(name, None) if frame.is_resumed else None
    if value is None:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value
    if old is not None:
        break_behind(frame, old)


@opcode("STORE_FAST_OR_CELL")
def store_fast_or_cell(frame: SymbolicFrame, name: str) -> None:
    """3.12, the variable of an inlined comprehension that elsewhere in the frame is a cell, which this may restore."""
    value = frame.stack.pop()
    frame.cells.pop(name, None)
    if frame.unread:
        read_variable(frame, name)
    frame.locals.pop(name, None)
    if isinstance(value, Cell):
        frame.cells[name] = value
    elif value is not None:
        frame.locals[name] = value


@opcode("DELETE_FAST")
def delete_fast(frame: SymbolicFrame, name: str) -> None:
    if frame.unread:
        read_variable(frame, name)
    old = frame.locals.pop(name, None)
    if old is None:
        raise unbound(frame, UnboundLocalError, name)
    if frame.is_resumed:
        break_behind(frame, old)


@opcode("POP_TOP")
def pop_top(frame: SymbolicFrame, arg: int) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL", "RETURN_GENERATOR")
def push_null(frame: SymbolicFrame, arg: int) -> None:
    """Of a generator, which the caller made: the following POP_TOP drops what `send` would push."""
    frame.stack.append(None)


@opcode("COPY")
def copy(frame: SymbolicFrame, depth: int) -> None:
    frame.stack.append(frame.stack[-depth])


@opcode("SWAP")
def swap(frame: SymbolicFrame, depth: int) -> None:
    stack = frame.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("END_FOR")
def end_for(frame: SymbolicFrame, arg: int) -> None:
    """FOR_ITER jumps over it."""
    raise AssertionError("END_FOR is never reached")


@opcode("MAKE_CELL")
def make_cell(frame: SymbolicFrame, name: str) -> None:
    if name not in frame.cells:
        read_variable(frame, name)
        frame.cells[name] = Cell(frame.locals.pop(name, None), None, name)


@opcode("LOAD_CLOSURE")
def load_closure(frame: SymbolicFrame, name: str) -> None:
    """From 3.13 on written as LOAD_FAST: in an inlined comprehension it may load a variable that is no cell there."""
    cell = frame.cells.get(name)
    if cell is None:
        load_fast(frame, name)
    else:
        frame.stack.append(cell)


@opcode("LOAD_DEREF")
def load_deref(frame: SymbolicFrame, name: str) -> None:
    value = frame.cells[name].load(frame.state)
    if value is None:
        raise unbound_cell(frame, name)
    frame.stack.append(value)


def unbound_cell(frame: SymbolicFrame, name: str) -> Raised:
    return unbound(frame, NameError if name in frame.code.co_freevars else UnboundLocalError, name)


@opcode("STORE_DEREF")
def store_deref(frame: SymbolicFrame, name: str) -> None:
    store_cell(frame, name, frame.pop())


@opcode("DELETE_DEREF")
def delete_deref(frame: SymbolicFrame, name: str) -> None:
    if frame.cells[name].load(frame.state) is None:
        raise unbound_cell(frame, name)
    store_cell(frame, name, None)


def store_cell(frame: SymbolicFrame, name: str, value: Value | None) -> None:
    frame.cells[name].store(frame.state, value)


@opcode("LOAD_GLOBAL", pops=0, uses_globals=True)
def load_global(frame: SymbolicFrame, name: str) -> None:
    frame.stack.append(frame.globals.load(frame.state, name))


@opcode("LOAD_GLOBAL_CALL", pops=0, pushes=2, uses_globals=True)
def load_global_call(frame: SymbolicFrame, name: str) -> None:
    push_callable(frame, frame.globals.load(frame.state, name))


@opcode("STORE_GLOBAL", pops=1, pushes=0, uses_globals=True)
def store_global(frame: SymbolicFrame, name: str) -> None:
    frame.globals.store(frame.state, name, frame.pop())


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame: SymbolicFrame, arg: int) -> None:
    frame.push(frame.state.wrap(AssertionError, None))


@opcode("IMPORT_NAME", pops=2, uses_globals=True)
def import_name(frame: SymbolicFrame, name: str) -> None:
    """Import a module that is loaded; loading a module breaks the graph."""
    level = frame.stack[-2]
    fromlist = frame.stack[-1]
    assert level is not None and fromlist is not None
    package = frame.globals.dictionary.get("__package__") or ""
    depth = level.constant(frame.state)
    full = importlib.util.resolve_name("." * depth + name, package) if depth else name
    loaded = sys.modules.get(full)
    names = [f"{full}.{part}" for part in fromlist.constant(frame.state) or () if not hasattr(loaded, part)]
    unloaded = [name for name in names if name not in sys.modules and hasattr(loaded, "__path__")]
    if loaded is None or any(map(importlib.util.find_spec, unloaded)):
        raise UnsupportedCall(function=f"import {full}", why="the module, or one within it, is not loaded yet")
    target = full if fromlist.truth(frame.state) else full.split(".")[0]
    frame.pop_many(2)
    frame.push(frame.state.wrap(sys.modules[target], ImportSource(target)))


@opcode("IMPORT_FROM", pops=1, pushes=2)
def import_from(frame: SymbolicFrame, name: str) -> None:
    module = frame.stack[-1]
    assert module is not None
    real = module.real()
    full = f"{real.__name__}.{name}" if real is not MISSING else ""
    if not hasattr(real, name) and full in sys.modules:
        frame.push(frame.state.wrap(sys.modules[full], ImportSource(full)))
        return
    try:
        frame.push(module.get_attr(frame.state, name))
    except Raised as raised:
        if real is MISSING or not issubclass(raised.value.python_type(), AttributeError):
            raise
        raise import_error(frame.state, real, name) from None


def import_error(s: CaptureState, module: types.ModuleType, name: str) -> Raised:
    """What `from module import name` raises where there is no such name."""
    path = getattr(module, "__file__", None)
    text = f"cannot import name {name!r} from {module.__name__!r} ({path or 'unknown location'})"
    error = s.error(ImportError, text)
    error.value.attrs.update(name=s.const(module.__name__), path=s.const(path))
    return error


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: SymbolicFrame, arg: int) -> None:
    frame.push(frame.state.wrap(builtins.__build_class__, None))


@opcode("STORE_NAME", pops=1, pushes=0)
def store_name(frame: SymbolicFrame, name: str) -> None:
    value = frame.pop()
    class_names(frame).set_item(frame.state, frame.state.const(name), value)


@opcode("DELETE_NAME", breaks=True)
def delete_name(frame: SymbolicFrame, name: str) -> None:
    if found_name(frame, name) is None:
        raise frame.state.name_error(NameError, name, f"name '{name}' is not defined")
    class_names(frame).del_item(frame.state, frame.state.const(name))


@opcode("LOAD_NAME", breaks=True, uses_globals=True)
def load_name(frame: SymbolicFrame, name: str) -> None:
    found = found_name(frame, name)
    frame.stack.append(found if found is not None else frame.globals.load(frame.state, name))


@opcode("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", breaks=True)
def load_class_deref(frame: SymbolicFrame, name: str) -> None:
    """A name of the class body, else the variable of an enclosing function; 3.12 has the names on the stack."""
    found = found_name(frame, name, frame.pop() if sys.version_info >= (3, 12) else None)
    if found is None:
        load_deref(frame, name)
    else:
        frame.stack.append(found)


@opcode("LOAD_FROM_DICT_OR_GLOBALS", breaks=True, uses_globals=True)
def load_from_names_or_globals(frame: SymbolicFrame, name: str) -> None:
    found = found_name(frame, name, frame.pop())
    frame.stack.append(found if found is not None else frame.globals.load(frame.state, name))


@opcode("LOAD_LOCALS", breaks=True)
def load_locals(frame: SymbolicFrame, arg: str) -> None:
    frame.stack.append(class_names(frame))


@opcode("SETUP_ANNOTATIONS", breaks=True)
def setup_annotations(frame: SymbolicFrame, arg: str) -> None:
    names = class_names(frame)
    if found_name(frame, "__annotations__") is None:
        names.set_item(frame.state, frame.state.const("__annotations__"), Dict({}))


def class_names(frame: SymbolicFrame) -> Value:
    """The names of the class body: a dict, or what `__prepare__` made."""
    if frame.names is None:
        raise UnsupportedOpcode(opcode=frame.decoded.instruction(frame.at).name, why="it is no body of a class")
    return frame.names


def found_name(frame: SymbolicFrame, name: str, names: Value | None = None) -> Value | None:
    """A name of the class body, or of other `names`; None: the mapping raises KeyError."""
    names = class_names(frame) if names is None else names
    if isinstance(names, Dict):
        return names.find(frame.state, name)
    try:
        return names.get_item(frame.state, frame.state.const(name))
    except Raised as raised:
        if not issubclass(raised.value.python_type(), KeyError):
            raise
        return None
