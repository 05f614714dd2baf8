"""Pattern matching.

case [a, *rest]:         MATCH_SEQUENCE, GET_LEN, then comparisons and UNPACK_EX
case {"op": op}:         MATCH_MAPPING, GET_LEN, MATCH_KEYS
case Point(x=0):         MATCH_CLASS: the attributes in a tuple, or None
"""

from __future__ import annotations

from typing import Any

from kiln.capture.interpreter.builtins.class_checks import instance_of
from kiln.capture.interpreter.builtins.functions import attribute
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.frame import SymbolicFrame, opcode
from kiln.capture.interpreter.operations import contains
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import Tuple

SEQUENCE, MAPPING = 1 << 5, 1 << 6
"""CPython's type flags for classes that these patterns match."""
ITSELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
"""Classes whose single positional pattern matches the object itself."""


def type_flags(s: CaptureState, value: Value) -> int:
    kind = value.python_type()
    if not value.is_torch:
        s.guard_type(value)
    return kind.__flags__


def match_flag(name: str, flag: int) -> None:
    @opcode(name, pops=1, pushes=2)
    def handler(frame: SymbolicFrame, arg: int) -> None:
        value = frame.stack[-1]
        assert value is not None
        frame.push(Constant(bool(type_flags(frame.state, value) & flag)))


match_flag("MATCH_SEQUENCE", SEQUENCE)
match_flag("MATCH_MAPPING", MAPPING)


@opcode("GET_LEN", pops=1, pushes=2)
def get_len(frame: SymbolicFrame, arg: int) -> None:
    value = frame.stack[-1]
    assert value is not None
    frame.push(Constant(value.length(frame.state)))


@opcode("MATCH_KEYS", pops=2, pushes=3)
def match_keys(frame: SymbolicFrame, arg: int) -> None:
    """subject, keys  ->  subject, keys, tuple of the values or None"""
    s = frame.state
    subject, keys = frame.stack[-2], frame.stack[-1]
    assert subject is not None and isinstance(keys, Tuple)
    wanted = keys.items(s)
    if all(contains(s, subject, key) for key in wanted):
        frame.push(Tuple([subject.get_item(s, key) for key in wanted]))
    else:
        frame.push(Constant(None))


@opcode("MATCH_CLASS", pops=3)
def match_class(frame: SymbolicFrame, positional: int) -> None:
    """subject, class, names of keyword patterns  ->  tuple of attributes or None"""
    s = frame.state
    subject, cls, names = frame.pop_many(3)
    kind = subject.python_type() if subject.is_torch else s.guard_type(subject)
    if not instance_of(s, subject, kind, cls.constant(s)):
        frame.push(Constant(None))
        return
    found = attributes(s, subject, cls, positional, [name.constant(s) for name in names.items(s)])
    frame.push(Tuple(found) if found is not None else Constant(None))


def attributes(s: CaptureState, subject: Value, cls: Value, positional: int, names: list[str]) -> list[Value] | None:
    """The values of the sub-patterns; None where the subject lacks one."""
    found: list[Value] = []
    if positional:
        known, title = attribute(s, cls, "__match_args__"), cls.constant(s).__name__
        args: Any = known.constant(s) if known is not None else ()
        if type(args) is not tuple:
            raise s.error(TypeError, f"{title}.__match_args__ must be a tuple (got {type(args).__name__})")
        itself = known is None and issubclass(cls.constant(s), ITSELF)
        few = 1 if itself else len(args)
        if few < positional:
            plural = "" if few == 1 else "s"
            raise s.error(TypeError, f"{title}() accepts {few} positional sub-pattern{plural} ({positional} given)")
        if itself:
            found = [subject]
        names = [*args[:positional], *names]
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise s.error(TypeError, f"__match_args__ elements must be strings (got {type(name).__name__})")
        if name in names[:number]:
            text = f"{cls.constant(s).__name__}() got multiple sub-patterns for attribute {name!r}"
            raise s.error(TypeError, text)
        value = attribute(s, subject, name)
        if value is None:
            return None
        found.append(value)
    return found
