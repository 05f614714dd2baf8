"""`id(x)` and hashes by address as values, and questions about the process whose answers are guarded.

id(a) == id(b)                  `a is b`
seen.add(id(x))                 a set of addresses, made by the transformed code
sys.getrecursionlimit()         asked now; the guard asks again
"""

from __future__ import annotations

import _thread
import gc
import operator
import os
import sys
from collections.abc import Callable
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.breaks import AS_CONSTANT
from kiln.capture.interpreter.core import (
    MISSING,
    OPERATORS,
    Args,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
    handles,
)
from kiln.capture.interpreter.lifetimes import stale_keys
from kiln.capture.interpreter.operations import Function2, same
from kiln.capture.interpreter.process_hashes import guard_hashes
from kiln.capture.interpreter.variables.builtin import call_unknown
from kiln.capture.interpreter.variables.sequence import Tuple, all_items
from kiln.capture.interpreter.variables.sets import Set
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import CallSource, ModuleGlobalSource
from kiln.support.records import dataclass

ASKED: tuple[Callable[[], object], ...] = (
    sys.get_int_max_str_digits, sys.getrecursionlimit, sys.getdefaultencoding, sys.getfilesystemencoding,
    sys.getswitchinterval, gc.isenabled, sys.is_finalizing, os.getpid, os.getppid, os.getcwd,
)  # fmt: skip
"""Functions that tell a setting of the process."""


MOST_ADDRESSES = 256


@final
@dataclass
class AddressesSeen:
    """The objects made in the frame whose addresses are keys or items of sets."""

    targets: dict[Token, Value] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Address(Value):
    """The `id` of an object; of the thread if there is none, which is guarded where it is a key."""

    function: Callable[..., int]
    target: Value | None
    cls = int

    def constant(self, s: CaptureState) -> int:
        raise self.unsupported(AS_CONSTANT, "an address is not known before the code runs")

    def truth(self, s: CaptureState) -> bool:
        return True

    def key(self, s: CaptureState) -> Token:
        if self.target is None:
            s.guard(CallSource(ModuleGlobalSource("_thread", "get_ident")), GuardKind.EQUALS, self.function())
            return self.function()
        target, real = self.target, self.target.real()
        if target.source is None and real is MISSING:
            known, token = s.part(AddressesSeen).targets, (self.function, id(target))
            known.pop(token, None)
            known[token] = target
            if len(known) > MOST_ADDRESSES or stale_keys(s, known):
                raise self.unsupported("hash", "an object may be gone, and another one at its address")
            return token
        if isinstance(target, Tensor) and isinstance(target.original, torch.nn.Parameter):
            real = target.original
        if target.is_constant or real is MISSING:
            raise self.unsupported("hash", "a number from outside may be the address of an object from outside")
        s.guard(target.source, GuardKind.IS, s.reference(real))
        return self.function(real)  # a key from outside may be this number

    def emit(self, g: Codegen) -> None:
        g.make(None, self.function, *([] if self.target is None else [self.target]))


handles(id)(lambda s, args, kwargs: Address(id, args[0]))


@handles(hash)
def hash_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """By address, of an object whose class has no hash of its own, such as a module: asked when the code runs."""
    (value,) = args
    if isinstance(value, Set | Tuple):
        items = value.items(s).values() if isinstance(value, Set) else all_items(s, value)
        guard_hashes(s, [item.constant(s) for item in items if item.is_constant])
    found = s.classes.lookup(value.python_type(), "__hash__")
    if value.is_constant or found is None or found[1] is not object.__hash__:
        return call_unknown(s, hash, args, kwargs)
    return Address(object.__hash__, value)


@handles(object.__hash__)
def address_hash(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return call_unknown(s, object.__hash__, args, kwargs) if args[0].is_constant else Address(object.__hash__, args[0])


handles(_thread.get_ident)(lambda s, args, kwargs: Address(_thread.get_ident, None))


def compared(function: Function2, negated: bool) -> None:
    def handler(s: CaptureState, left: Value, right: Value) -> Value | None:
        assert isinstance(left, Address)
        if not isinstance(right, Address) or left.function is not right.function:
            raise left.unsupported("compare", "an address is not known before the code runs")
        if left.target is None or right.target is None:
            return s.const(not negated)
        equal = same(s, left.target, right.target)
        if not equal and left.target.source is None and right.target.source is None:
            # The first object may be gone, and the second one in its place.
            raise left.unsupported("compare", "the lifetimes of the objects are not known")
        return s.const(equal is not negated)

    OPERATORS[function, Address] = handler


compared(operator.eq, False)
compared(operator.ne, True)


def asks(function: Callable[[], object]) -> None:
    @handles(function)
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        answer = function()
        source = ModuleGlobalSource(function.__module__, function.__name__)
        s.guard(CallSource(source, ()), GuardKind.EQUALS, answer)
        return s.const(answer)


for _function in ASKED:
    asks(_function)
