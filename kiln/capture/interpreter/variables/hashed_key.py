"""Keys whose class has a `__hash__` of its own: the program's `__hash__` and `__eq__` are interpreted.

seen = {Point(1, 2): "a"}; seen[Point(1, 2)]        the token of the key asks `Point.__hash__`, then `Point.__eq__`
"""

from __future__ import annotations

import builtins
import types
import weakref
from dataclasses import field
from typing import cast, final

import torch

from kiln.capture.bytecode.decode import decode
from kiln.capture.interpreter.breaks import UnsupportedValue
from kiln.capture.interpreter.core import MISSING, CaptureState, Token, Value
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import GuardKind
from kiln.support.records import dataclass

QUIET = (hash, isinstance, type, len, tuple, NotImplemented)
"""The globals that a `__hash__` or `__eq__` may name which transformed code calls again; and classes."""
WRITES = ("STORE_", "DELETE_", "IMPORT_", "YIELD_", "RAISE_")
LOCAL = frozenset(("STORE_FAST", "DELETE_FAST"))


@final
@dataclass
class KeyComparisons:
    """What keys answered in one capture, by the `id`s of their values."""

    answers: dict[tuple[int, ...], int] = field(default_factory=dict)
    vary: bool = False
    """A key answered in two ways, or a comparison changed something."""

    def note(self, key: tuple[int, ...], answer: int) -> int:
        self.vary |= self.answers.setdefault(key, answer) != answer
        return answer


@final
class HashedKey:
    """The token of a key that says itself what it equals."""

    __slots__ = ("hash", "state", "value")

    def __init__(self, s: CaptureState, value: Value, hash_: int) -> None:
        self.state = s
        self.value = value
        self.hash = hash_

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        s = self.state
        if isinstance(other, HashedKey):
            equal, known = s.model.equal(s, self.value, other.value), s.part(KeyComparisons)
            return bool(known.note((id(self.value), id(other.value)), equal))
        if isinstance(other, Value):
            return s.model.equal(s, self.value, other)
        if is_constant(other):
            return s.model.equal(s, self.value, s.const(other))
        raise self.value.unsupported("compare", "the other key is an object from outside")


def hashed_key(s: CaptureState, value: Value) -> Token:
    found = s.call_special(value, "__hash__", [], {})
    if not issubclass(found.python_type(), int):
        raise s.error(TypeError, "__hash__ method should return an integer")
    return HashedKey(s, value, s.part(KeyComparisons).note((id(value),), int(found.constant(s))))


def is_hashed_by_program(container: Value, item: object) -> bool:
    """Whether hashing an item from outside runs code of the program, which Python does not do again to read it."""
    function = type(item).__hash__
    if not isinstance(function, types.FunctionType) or function is torch.Tensor.__hash__:
        return False
    if not is_quiet(function):
        raise container.unsupported("read", "hashing its items may have side effects")
    return True


def refuse_loud_keys(s: CaptureState, tokens: list[Token]) -> None:
    """Transformed code hashes and compares keys again, which must not be seen."""
    for token in tokens:
        if not isinstance(token, HashedKey):
            continue
        for name in ("__hash__", "__eq__"):
            found = s.classes.lookup(token.value.python_type(), name)
            if found is not None and isinstance(found[1], types.FunctionType) and not is_quiet(found[1]):
                raise UnsupportedValue(type=token.value.type_name(), why=f"its {name} may have side effects")


def is_quiet(function: types.FunctionType) -> bool:
    """Whether the code writes nothing and calls nothing but a few builtins."""
    for instruction in decode(function.__code__).instructions:
        name = instruction.name
        if name.startswith(WRITES) and name not in LOCAL:
            return False
        if name in ("LOAD_GLOBAL", "LOAD_GLOBAL_CALL") and not is_quiet_global(function, instruction.arg):
            return False
        if name in ("LOAD_METHOD", "LOAD_SUPER_METHOD", "CALL_FUNCTION_EX"):
            return False
    return True


def is_quiet_global(function: types.FunctionType, name: str) -> bool:
    found = function.__globals__.get(name, getattr(builtins, name, None))
    return isinstance(found, type) or any(found is known for known in QUIET)


def guard_identity(s: CaptureState, key: Value) -> None:
    """Guard that an object from outside, or those in a tuple, are the same again.

    Without it another object may take its place that differs from the other keys with a path (`alias_guards`).
    """
    original = getattr(key, "original", MISSING)
    if isinstance(key, Tuple):
        for item in key.items(s):
            guard_identity(s, item)
    elif not key.is_constant and key.source is not None and original is not MISSING:
        s.guard(key.source, GuardKind.IS, s.reference(original))


def is_hashed_by_identity(real: object) -> bool:
    """Or a tuple, in which such an object may be."""
    return type(real) is tuple or type(real).__hash__ is object.__hash__


def refers_by_identity(real: object) -> bool:
    """Whether a weak reference is equal to others that refer to the same object."""
    kind = type(real)
    if not issubclass(kind, weakref.ref) or (kind is not weakref.ref and "__hash__" in vars(kind)):
        return False
    target = type(weakref.ref.__call__(cast(weakref.ref[object], real)))
    return target is not type(None) and not {"__hash__", "__eq__"} & {
        name for kind in target.__mro__[:-1] for name in vars(kind)
    }
