"""Weak references and proxies that the frame makes.

    r = weakref.ref(node)             WeakReference(<node>): it does not hold its referent
    r()                               <node>, or None where nothing holds it any more (`lifetimes.py`)
    root.next = weakref.proxy(node)   WeakProxy(<node>), which does what the node does

The callback of a reference is interpreted when its referent is dropped. For that the capture begins again, and asks
after each instruction that may drop something.
"""

from __future__ import annotations

import types
import weakref
from dataclasses import field
from functools import partial
from typing import final

import torch

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
    handles,
)
from kiln.capture.interpreter.data_values import Instruction, ValueNeeded, is_needed, past_step
from kiln.capture.interpreter.effects import emit_attribute
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.lifetimes import is_alive, reached
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.hashed_key import guard_identity
from kiln.capture.interpreter.variables.object import DESCRIPTORS, Object
from kiln.support.records import dataclass

DROPPING = (
    *("STORE_", "DELETE_", "POP_", "RETURN_", "CALL", "FOR_ITER", "END_", "LIST_", "DICT_", "SET_", "RERAISE"),
    "WITH_EXCEPT",
)
"""How the names of instructions begin behind which something may be held no more."""
LIBRARY = ("weakref", "_weakrefset", "functools", "_py_abc")
"""Modules whose callbacks change only containers of their own."""


class WatchLifetimes(Exception):
    """The capture is to begin again and to watch when values are dropped."""


@final
@dataclass
class WeakReferences:
    """Those of one capture. `watched`: the callbacks of those in `waiting` are called in their place."""

    known: dict[int, WeakReference] = field(default_factory=dict)
    """The reference without a callback that a value has, by its `id`."""
    waiting: list[WeakReference] = field(default_factory=list)
    watched: bool = False


def this_instruction(s: CaptureState) -> tuple[Instruction, PastStep]:
    frame = running_frame(s)
    return (frame.code, frame.at), past_step(frame)


class Weak(Value):
    """What refers to a value that the frame has made, without holding it."""

    __slots__ = ()
    referent: Value
    made_at: PastStep
    made_by: Instruction

    def target(self, s: CaptureState, *, running: bool = True) -> Value | None:
        """None where it is gone; `running`: as in `is_alive`."""
        alive = is_alive(s, self.referent, running=running)
        if alive is None:
            raise ValueNeeded(self.made_by, self.made_at)
        return self.referent if alive else None


@final
class TensorReference:
    """The token of a reference to a tensor, which is equal to another one if the tensors have equal values."""

    __slots__ = ("hash", "tensor")

    def __init__(self, tensor: Value, hash_: int) -> None:
        self.tensor = tensor
        self.hash = hash_

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        raise self.tensor.unsupported("compare", "weak references to tensors compare their values")


@final
class WeakReference(Object, Weak):
    """`weakref.ref(referent, callback)`, or an instance of a class that derives from it."""

    __slots__ = ("callback", "made_at", "made_by", "referent", "token")

    def __init__(self, s: CaptureState, cls: type, referent: Value, callback: Value | None) -> None:
        super().__init__(cls)
        self.token: Token = None
        self.referent = referent
        self.callback = callback
        self.made_by, self.made_at = this_instruction(s)

    def key(self, s: CaptureState) -> Token:
        """Equal to references from outside that refer to the same object."""
        token, real = self.referent.key(s), self.referent.real()
        guard_identity(s, self.referent)  # what other references refer to has no path
        if issubclass(self.referent.python_type(), torch.Tensor):
            self.token = self.token or TensorReference(self.referent, hash(token))
            return self.token
        return weakref.ref(real) if real is not MISSING and token is real else (weakref.ref, token)

    def emit(self, g: Codegen) -> None:
        found = self.target(g.state)
        if found is None:
            g.make(self, polyfills.dead_reference, g.state.classes.written(self.cls))
        elif self.cls is weakref.ref:
            g.make(self, weakref.ref, found, *([] if self.callback is None else [self.callback]))
        else:
            cls = g.state.classes.written(self.cls)
            g.make(self, weakref.ref.__new__, cls, found, self.callback or Constant(None))
        for name, value in self.attrs.items():
            if value is not None:
                emit_attribute(g, self.cls, name, value)


@final
class WeakProxy(Weak):
    """`weakref.proxy(referent)`."""

    __slots__ = ("callable", "made_at", "made_by", "referent")

    def __init__(self, s: CaptureState, referent: Value) -> None:
        self.referent = referent
        self.callable = s.classes.lookup(referent.python_type(), "__call__") is not None
        self.made_by, self.made_at = this_instruction(s)

    def python_type(self) -> type:
        return weakref.CallableProxyType if self.callable else weakref.ProxyType

    def held(self, s: CaptureState) -> Value:
        found = self.target(s)
        if found is None:
            raise s.error(ReferenceError, "weakly-referenced object no longer exists")
        return found

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.held(s).get_attr(s, name, site)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        self.held(s).set_attr(s, name, value, site)

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.held(s).call(s, args, kwargs, site)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.held(s).get_item(s, key, site)

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        self.held(s).set_item(s, key, value, site)

    def del_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> None:
        self.held(s).del_item(s, key, site)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.held(s).iterate(s, site)

    def length(self, s: CaptureState) -> int:
        return self.held(s).length(s)

    def truth(self, s: CaptureState) -> bool:
        return self.held(s).truth(s)

    def key(self, s: CaptureState) -> Token:
        raise s.error(TypeError, f"unhashable type: '{self.type_name()}'")

    def emit(self, g: Codegen) -> None:
        g.make(self, weakref.proxy, self.held(g.state))


def refuse_referent(s: CaptureState, value: Value) -> None:
    """What Python raises for an object that cannot be referred to, and a break where its lifetime is not known."""
    if is_needed(s):
        raise UnsupportedCall(function="weakref.ref", why="whether its referent still lives is not known later")
    cls = value.python_type()
    if not cls.__weakrefoffset__:  # type: ignore[attr-defined]
        raise s.error(TypeError, f"cannot create weak reference to '{value.type_name()}' object")
    if value.is_constant:
        raise UnsupportedCall(function="weakref.ref", why=f"it refers to a {value.type_name()}")


@handles(weakref.ref)
def make_reference(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return new_reference(s, [s.wrap(weakref.ref, None), *args], kwargs)


@handles(weakref.ref.__new__)
def new_reference(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    kind, referent, *rest = args
    cls = kind.constant(s)
    refuse_referent(s, referent)
    callback = None if not rest or s.is_none(rest[0]) else rest[0]
    found = s.part(WeakReferences)
    if callback is None and cls is weakref.ref:
        if id(referent) not in found.known:
            found.known[id(referent)] = WeakReference(s, cls, referent, None)
        return found.known[id(referent)]
    made = WeakReference(s, cls, referent, callback)
    if callback is not None and referent.source is None and referent.real() is MISSING:
        if not found.watched:
            raise WatchLifetimes
        found.waiting.append(made)
    return made


@handles(weakref.ref.__init__)
def init_reference(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(None)


@handles(weakref.ref.__eq__)
def equal_references(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    left, right = args
    if not isinstance(left, WeakReference) or not isinstance(right, WeakReference):
        both = all([issubclass(value.python_type(), weakref.ref) for value in args])
        return Constant(left.key(s) == right.key(s) if both and left is not right else left is right or NotImplemented)
    first, second = left.target(s), right.target(s)
    if first is None or second is None:
        return Constant(left is right)
    return Constant(s.model.equal(s, first, second))


@handles(weakref.proxy)
def make_proxy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    referent, *callback = args
    refuse_referent(s, referent)
    if callback and not s.is_none(callback[0]):
        raise UnsupportedCall(function="weakref.proxy", why="it is given a callback")
    return WeakProxy(s, referent)


def watch_lifetimes(s: CaptureState) -> None:
    s.part(WeakReferences).watched = True
    s.watch = partial(call_back, s)


def call_back(s: CaptureState) -> None:
    """Call the callbacks of references whose referents the last instruction has dropped."""
    found, frame = s.part(WeakReferences), running_frame(s)
    if not found.waiting or not frame.decoded.instruction(frame.at).name.startswith(DROPPING):
        return
    frame.saved = frame.stack.copy()  # its last operands are dropped
    for reference in list(found.waiting):
        if reference.target(s, running=False) is not None or reference not in found.waiting:
            continue
        found.waiting.remove(reference)
        assert reference.callback is not None
        if is_alive(s, reference, running=False):
            try:
                reference.callback.call(s, [reference], {})
            except (GraphBreak, Raised) as stop:  # the instruction is done: it cannot be broken in front of it
                raise ValueNeeded(reference.made_by, reference.made_at) from stop


def refuse_late_callbacks(s: CaptureState, result: Value) -> None:
    """Break in front of a reference with a callback of the program that may be called when the frame ends."""
    waiting = s.part(WeakReferences).waiting
    held = reached(s, [result, *s.effects]) if waiting else set[int]()
    for reference in waiting:
        function = reference.callback
        own = isinstance(function, Function) and getattr(function.namespace, "module", "") not in LIBRARY
        if own and id(reference.referent) not in held:
            why = "its callback is called when the function returns"
            raise UnsupportedCall(function="weakref.ref", why=why).before(reference.made_at)


def first_reference(s: CaptureState, value: Value, name: str, raw: object) -> Value | None:
    """`value.__weakref__` of an object that the frame has made: the reference to it, if there is one."""
    if name != "__weakref__" or not isinstance(value, Object) or value.original is not MISSING:
        return None
    found = s.part(WeakReferences)
    if any(reference.referent is value for reference in found.waiting):
        raise UnsupportedCall(function="__weakref__", why="a reference with a callback may be the first")
    return found.known.get(id(value)) or Constant(None)


DESCRIPTORS[types.GetSetDescriptorType] = first_reference
