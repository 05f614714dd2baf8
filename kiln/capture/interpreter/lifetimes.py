"""Whether the program still holds a value that the frame has made: what a weak reference to it answers.

    a = Node()                    is_alive(<a>)    True: a local variable holds it
    r = weakref.ref(a); del a     is_alive(<a>)    False: nothing leads to it, as in CPython, which counts references

Values are found from the variables and stacks of the running frames, and from the side effects. What only the operands
of a running call hold, what C code has seen, or what may be in a cycle of garbage is not known: None.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator, Mapping

from kiln.capture.interpreter.core import MISSING, CaptureState, Token, Value
from kiln.capture.interpreter.frame import SymbolicFrame, dropped_arguments, running_frame
from kiln.capture.interpreter.native_calls import NativeCalls, Natives
from kiln.capture.interpreter.variables.choice import Choice
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.runtime.guards.source import StepSource

NOT_FOLLOWED = (type, types.ModuleType, types.CodeType, CaptureState, Natives, str, bytes, int, float)
UNSEEN = frozenset(
    ("decoded", "given", "globals", "original", "parent", "pending", "referent", "rows", "saved", "source", "state")
)
"""Attributes of values and frames that hold nothing of the program, or more than it holds."""
WEAK = "referent"


def is_alive(s: CaptureState, value: Value, *, running: bool = True) -> bool | None:
    """`running`: within an instruction, which holds its operands; not behind it."""
    outside = value.source is not None or value.real() is not MISSING
    if s.frame is None or (outside and not is_dropped_argument(s, value)):
        return True  # the caller holds it, or what leads to it; or the code that is written holds all that it builds
    inner = running_frame(s)
    if id(value) in reached(s, [*roots(s, inner), *(inner.saved if running else [])]):
        return True
    natives = s.part(NativeCalls).natives
    seen_by_c = [] if natives is None else [natives.reals, natives.values, natives.errors]
    if id(value) in reached(s, [*outer_operands(inner), *s._parts.values(), *s.classes.made.values(), *seen_by_c]):
        return None
    return None if outside or is_in_garbage(value) else False


def is_dropped_argument(s: CaptureState, value: Value) -> bool:
    """Whether it has come as an argument of the resume function that runs, or by way of one, which no frame holds any
    more. The caller of the resume function still does."""
    source = value.source
    while isinstance(source, StepSource):
        source = source.base
    return any(value is given or (source is not None and source == given.source) for given in dropped(s))


def dropped(s: CaptureState) -> list[Value]:
    return [value for value in dropped_arguments(running_frame(s)) if not value.is_constant]


def only_dropped_hold(s: CaptureState, target: object) -> bool:
    """Whether a real object may live only by what the frames have dropped, which eager has freed by now."""
    gone = [real_object(value) for value in dropped(s)]
    if not gone or not lead_to(gone, target):
        return False
    kept: list[object] = []
    frame: SymbolicFrame | None = running_frame(s)
    while frame is not None:
        values = (*frame.locals.values(), *frame.cells.values(), *frame.stack)
        kept += [real_object(value) for value in values if isinstance(value, Value)]
        frame = frame.parent
    return not lead_to(kept, target)


def real_object(value: Value) -> object:
    return value.original if isinstance(value, Tensor) else value.real()


def lead_to(roots: Iterable[object], target: object) -> bool:
    """Whether `target` is among real objects or what they hold; modules, classes and globals of functions aside."""
    seen: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if item is target:
            return True
        if id(item) in seen or isinstance(item, NOT_FOLLOWED):
            continue
        seen[id(item)] = item
        waiting += (
            [item.__closure__, item.__defaults__] if isinstance(item, types.FunctionType) else gc.get_referents(item)
        )
    return False


def stale_keys(s: CaptureState, keys: Mapping[Token, Value]) -> bool:
    """Whether a key of some dict or set stands for a value that may be gone; the last of `keys` is about to be one."""
    inner = running_frame(s)
    found = held(s, [*roots(s, inner), *inner.saved])
    gone = {key for key, value in keys.items() if id(value) not in found}
    if next(reversed(keys)) in gone:
        return True
    tables = [item for item in found.values() if isinstance(item, dict)] if gone else []
    return any(not gone.isdisjoint(tokens_in(token)) for table in tables for token in table)


def tokens_in(token: object) -> Iterator[object]:
    """A token, and those of the items of a tuple that it stands for."""
    yield token
    for part in token if isinstance(token, tuple) else ():
        yield from tokens_in(part)


def roots(s: CaptureState, inner: SymbolicFrame) -> Iterator[object]:
    """What certainly is held: variables and stacks."""
    frame: SymbolicFrame | None = inner
    while frame is not None:
        yield frame
        frame = frame.parent
    yield from s.effects


def outer_operands(frame: SymbolicFrame) -> Iterator[object]:
    """What the frames that wait for a call gave it: it may have dropped that since."""
    outer = frame.parent
    while outer is not None:
        yield outer.saved
        outer = outer.parent


def reached(s: CaptureState, found_from: Iterable[object]) -> set[int]:
    """The `id`s of all that some objects of the interpreter lead to."""
    return {*held(s, found_from)}


def held(s: CaptureState, found_from: Iterable[object]) -> dict[int, object]:
    """The same with the objects."""
    found: dict[int, object] = {}
    waiting = list(found_from)
    while waiting:
        item = waiting.pop()
        if id(item) in found or item is None or isinstance(item, NOT_FOLLOWED):
            continue
        found[id(item)] = item
        waiting += parts(s, item)
    return found


def parts(s: CaptureState, item: object) -> list[object]:
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if isinstance(item, dict) and type(item).__module__ == "builtins":
        return list(item.values())  # keys stand for values that need not be held
    if isinstance(item, types.FunctionType):
        return [cell.cell_contents for cell in item.__closure__ or () if cell != types.CellType()]
    if isinstance(item, types.MethodType):
        return [item.__self__, item.__func__]
    if not type(item).__module__.startswith("kiln.capture.interpreter"):
        return []
    slots = [name for cls in type(item).__mro__ for name in cls.__dict__.get("__slots__", ()) if name not in UNSEEN]
    held = [getattr(item, name, None) for name in slots]
    held += [value for name, value in getattr(item, "__dict__", {}).items() if name not in UNSEEN]
    # Which value a `Choice` is, is not asked: what it leads to is in its slots.
    if isinstance(item, Value) and not isinstance(item, Choice) and isinstance(item.real(), type):
        held.append(s.classes.made.get(item.real()))  # type: ignore[call-overload]
    if isinstance(item, dict):  # attributes that are the items of a dict: `AttributeItems`
        held += dict.values(item)
    return held


def is_in_garbage(value: Value) -> bool:
    """Whether values that nothing leads to hold each other: CPython frees these later."""
    holders = gc.get_referrers(value)
    for holder in holders:
        if isinstance(holder, Value) and not hasattr(holder, WEAK):
            return True
        inside = isinstance(holder, dict | list | tuple) and holder is not holders
        if inside and any(isinstance(outer, Value) for outer in gc.get_referrers(holder)):
            return True
    return False
