"""Building containers, strings, slices and functions; unpacking."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable

from kiln.capture.interpreter.breaks import UnsupportedOpcode
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.effects import Container
from kiln.capture.interpreter.frame import SymbolicFrame, argument, argument_plus, opcode
from kiln.capture.interpreter.hashing import elements_of, entries_of, set_element
from kiln.capture.interpreter.operations import format_value, unary
from kiln.capture.interpreter.variables.deferred_text import deferred_text, text_of
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Sequence, Slice, Tuple, all_items, consumed, listed
from kiln.capture.interpreter.variables.sets import Set


@opcode("BUILD_TUPLE")
def build_tuple(frame: SymbolicFrame, count: int) -> None:
    frame.push(Tuple(frame.pop_many(count)))


@opcode("BUILD_LIST")
def build_list(frame: SymbolicFrame, count: int) -> None:
    frame.push(List(frame.pop_many(count)))


@opcode("BUILD_SET", pops=argument)
def build_set(frame: SymbolicFrame, count: int) -> None:
    frame.push(Set(elements_of(frame.state, frame.pop_many(count))))


@opcode("BUILD_MAP", pops=lambda n: 2 * n)
def build_map(frame: SymbolicFrame, count: int) -> None:
    flat = frame.pop_many(2 * count)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    frame.push(Dict(entries_of(frame.state, pairs)))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: SymbolicFrame, count: int) -> None:
    keys = frame.pop()
    assert isinstance(keys, Tuple)
    pairs = zip(keys.items(frame.state), frame.pop_many(count), strict=True)
    frame.push(Dict(entries_of(frame.state, pairs)))


@opcode("BUILD_STRING", pops=argument)
def build_string(frame: SymbolicFrame, count: int) -> None:
    parts = frame.pop_many(count)
    deferred = text_of(frame.state, str.join, [frame.state.const(""), Tuple(parts)])
    frame.push(deferred or frame.state.const("".join(part.constant(frame.state) for part in parts)))


@opcode("BUILD_SLICE", pops=argument)
def build_slice(frame: SymbolicFrame, count: int) -> None:
    frame.push(Slice(frame.pop_many(count)))


CONVERSIONS = ("", "s", "r", "a")


@opcode("FORMAT_VALUE", pops=lambda flags: 2 if flags & 4 else 1)
def format_value_op(frame: SymbolicFrame, flags: int) -> None:
    spec = frame.pop().constant(frame.state) if flags & 4 else ""
    push_text(frame, frame.pop(), CONVERSIONS[flags & 3], spec)


@opcode("CONVERT_VALUE", pops=1)
def convert_value(frame: SymbolicFrame, conversion: int) -> None:
    push_text(frame, frame.pop(), CONVERSIONS[conversion])


@opcode("FORMAT_SIMPLE", pops=1)
def format_simple(frame: SymbolicFrame, arg: int) -> None:
    push_text(frame, frame.pop())


@opcode("FORMAT_WITH_SPEC", pops=2)
def format_with_spec(frame: SymbolicFrame, arg: int) -> None:
    spec = frame.pop().constant(frame.state)
    push_text(frame, frame.pop(), spec=spec)


def push_text(frame: SymbolicFrame, value: Value, conversion: str = "", spec: str = "") -> None:
    text = deferred_text(frame.state, value, conversion, spec)
    frame.push(text or format_value(frame.state, value, conversion, spec))


@opcode("LIST_EXTEND", pops=argument_plus(1), pushes=argument)
def list_extend(frame: SymbolicFrame, depth: int) -> None:
    value = frame.pop()
    target = frame.stack[-depth]
    assert isinstance(target, List)
    if isinstance(value, List) and target.begins_with(frame.state, value):
        return
    require_iterable(frame.state, value, lambda: "Value")
    target.extend(frame.state, value)


@opcode("SET_UPDATE", pops=argument_plus(1), pushes=argument)
def set_update(frame: SymbolicFrame, depth: int) -> None:
    added = frame.pop()
    target = frame.stack[-depth]
    assert isinstance(target, Set)
    target.combine_in_place(frame.state, "update", [added])


def require_iterable(s: CaptureState, value: Value, what: Callable[[], str]) -> None:
    """For the items of `*value`."""
    cls = value.python_type()
    if not hasattr(cls, "__iter__") and not hasattr(cls, "__getitem__"):
        raise s.error(TypeError, f"{what()} after * must be an iterable, not {cls.__name__}")


@opcode("DICT_UPDATE", pops=argument_plus(1), pushes=argument)
def dict_update(frame: SymbolicFrame, depth: int) -> None:
    s, source = frame.state, frame.pop()
    target = frame.stack[-depth]
    assert isinstance(target, Dict)
    items = mapped(s, source)
    if items is None:
        raise s.error(TypeError, f"'{source.type_name()}' object is not a mapping")
    for key, value in items:
        target.set_item(s, key, value)


@opcode("DICT_MERGE", pops=argument_plus(1), pushes=argument)
def dict_merge(frame: SymbolicFrame, depth: int) -> None:
    """`**source` in a call: each keyword once."""
    s, source = frame.state, frame.pop()
    target, above, below = frame.stack[-depth], frame.stack[-depth - 2], frame.stack[-depth - 3]
    function = below if above is None else above  # the other one is NULL
    assert isinstance(target, Dict) and function is not None
    items = mapped(s, source)
    if items is None:
        wanted = f"argument after ** must be a mapping, not {source.type_name()}"
        raise s.error(TypeError, f"{callee_text(s, function)} {wanted}")
    for key, value in items:
        if key.key(s) in target.items(s):
            again = f"got multiple values for keyword argument '{key.constant(s)}'"
            raise s.error(TypeError, f"{callee_text(s, function)} {again}")
        target.set_item(s, key, value)


def mapped(s: CaptureState, source: Value) -> list[tuple[Value, Value]] | None:
    """The items of `**source`; None: it is no mapping."""
    native = getattr(source, "native", None) or source
    if isinstance(native, Dict):
        return list(native.items(s).values())
    if not hasattr(source.python_type(), "keys"):
        return None
    return [(key, source.get_item(s, key)) for key in all_items(s, source.get_attr(s, "keys").call(s, [], {}))]


def callee_text(s: CaptureState, function: Value) -> str:
    """How CPython names a callee in errors of its arguments: `module.name()`."""
    if not hasattr(function.python_type(), "__qualname__") and not isinstance(function.real(), type):
        return f"{function.type_name()} object"
    name, module = (function.get_attr(s, part).constant(s) for part in ("__qualname__", "__module__"))
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@opcode("LIST_APPEND", pops=argument_plus(1), pushes=argument)
def list_append(frame: SymbolicFrame, depth: int) -> None:
    value = frame.pop()
    target = frame.stack[-depth]
    assert isinstance(target, List)
    target.append(frame.state, value)


@opcode("SET_ADD", pops=argument_plus(1), pushes=argument)
def set_add(frame: SymbolicFrame, depth: int) -> None:
    value = frame.pop()
    target = frame.stack[-depth]
    assert isinstance(target, Set)
    target.change(frame.state).setdefault(set_element(frame.state, value), value)


@opcode("MAP_ADD", pops=argument_plus(2), pushes=argument)
def map_add(frame: SymbolicFrame, depth: int) -> None:
    key, value = frame.pop_many(2)
    target = frame.stack[-depth]
    assert isinstance(target, Dict)
    target.set_item(frame.state, key, value)


def unpacked(s: CaptureState, value: Value, most: int | None) -> list[Value]:
    """The items of `value`, of an iterator not more than are asked for."""
    kind = value.python_type()
    if not value.is_torch and not any(s.classes.lookup(kind, name) for name in ("__iter__", "__getitem__")):
        raise s.error(TypeError, f"cannot unpack non-iterable {value.type_name()} object")
    if most is None or isinstance(value, Container | Tuple) or value.is_constant or value.is_torch:
        return all_items(s, value)
    iterator, found = consumed(s, value), list[Value]()
    while len(found) < most and (item := iterator.next(s)) is not None:
        found.append(item)
    return found


@opcode("UNPACK_SEQUENCE", pops=1, pushes=argument)
def unpack_sequence(frame: SymbolicFrame, count: int) -> None:
    value = frame.pop()
    items = unpacked(frame.state, value, count + 1)
    if len(items) != count:
        few = f"not enough values to unpack (expected {count}, got {len(items)})"
        message = few if len(items) < count else f"too many values to unpack (expected {count}{got(value, items)})"
        raise frame.state.error(ValueError, message)
    frame.stack.extend(reversed(items))


def got(value: Value, items: list[Value]) -> str:
    """What CPython 3.14 adds where it knows how many items there are."""
    known = sys.version_info >= (3, 14) and value.python_type() in (tuple, list, dict)
    return f", got {len(items)}" if known else ""


@opcode("UNPACK_EX", pops=1, pushes=lambda n: (n & 0xFF) + 1 + (n >> 8))
def unpack_ex(frame: SymbolicFrame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = unpacked(frame.state, frame.pop(), None)
    if len(items) < before + after:
        message = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise frame.state.error(ValueError, message)
    end = len(items) - after
    parts = [*items[:before], List(items[before:end]), *items[end:]]
    frame.stack.extend(reversed(parts))


@opcode("MAKE_FUNCTION", pops=lambda flags: 1 + flags.bit_count())
def make_function(frame: SymbolicFrame, flags: int) -> None:
    code = frame.pop().constant(frame.state)
    function = Function(code, frame.globals)
    for part in (8, 4, 2, 1):
        if flags & part:
            set_part(frame, function, part, frame.pop())
    frame.push(function)


@opcode("SET_FUNCTION_ATTRIBUTE", pops=2)
def set_function_attribute(frame: SymbolicFrame, part: int) -> None:
    function = frame.pop()
    assert isinstance(function, Function)
    set_part(frame, function, part, frame.pop())
    frame.push(function)


def set_part(frame: SymbolicFrame, function: Function, part: int, value: Value) -> None:
    """What makes the annotations, closure, annotations, keyword-only defaults or defaults, by CPython's number."""
    if part == 16:
        function.annotate = value
    elif part == 8:
        assert isinstance(value, Sequence)
        function.cells = list(value.items(frame.state))  # type: ignore[arg-type]
    elif part == 4:
        function.annotations = value
    elif part == 2:
        assert isinstance(value, Dict)
        function.kwdefaults = {str(name): item for name, (_, item) in value.items(frame.state).items()}
    else:
        function.defaults = list(all_items(frame.state, value))


@opcode("INTRINSIC", pops=1)
def intrinsic(frame: SymbolicFrame, name: str) -> None:
    if name == "LIST_TO_TUPLE":
        frame.push(Tuple(listed(frame.state, frame.pop())))
    elif name == "UNARY_POSITIVE":
        frame.push(unary(frame.state, operator.pos, frame.pop()))
    elif name == "STOPITERATION_ERROR":
        return
    else:
        raise UnsupportedOpcode(opcode=name, why="this intrinsic is not supported")


@opcode("BUILD_INTERPOLATION", pops=lambda form: 2 + (form & 1))
def build_interpolation(frame: SymbolicFrame, form: int) -> None:
    raise UnsupportedOpcode(opcode="BUILD_INTERPOLATION", why="strings with templates are made in Python")


@opcode("BUILD_TEMPLATE", pops=2)
def build_template(frame: SymbolicFrame, arg: int) -> None:
    raise UnsupportedOpcode(opcode="BUILD_TEMPLATE", why="strings with templates are made in Python")
