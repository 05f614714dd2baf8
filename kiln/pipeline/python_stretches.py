"""Resume functions that compute nothing run in Python, up to where the program computes again.

    for t in row.tolist():       the graph breaks: `t` differs from call to call
        if t != last:            a variant for each way through the loop would only hold Python
            seq.append(t)

The first variant of such a function is compiled, since nothing is known of it. When another one is asked for, and none
so far has a region, all calls run in Python (`capture/bytecode/stretch.py`). It is left in front of what computed in
an earlier capture, and of calls in code that no capture has reached.
"""

from __future__ import annotations

import builtins
from functools import partial
from types import BuiltinFunctionType, FunctionType

import torch

from kiln.capture.bytecode.decode import DecodedCode
from kiln.capture.bytecode.resume import Entry as ResumeEntry
from kiln.capture.bytecode.resume import ResumeOrigin, origin_of, resume_function
from kiln.capture.bytecode.stretch import exits, stretch_code
from kiln.capture.interpreter.frame import CODES
from kiln.native._frames import Dispatcher, Entry
from kiln.pipeline.dispatchers import IsKnown, MakeDispatcher, RunsInPython, original_of, side_exits
from kiln.runtime.variant import Variant
from kiln.support.real_builtins import real_builtins

PLAIN_METHODS = frozenset(
    [name for cls in (list, dict, set, str, tuple) for name in dir(cls) if not hasattr(torch.Tensor, name)]
)
"""Methods of containers that no tensor has."""


def python_stretch(dispatcher: Dispatcher, make_resume: MakeDispatcher, is_known: IsKnown) -> Entry | None:
    """The entry for all calls of a resume function whose variants, and those that led to its side exit, have no region;
    None if it is to be compiled."""
    function = original_of(dispatcher)
    origin = origin_of(function)
    if origin is None:
        return None
    before = [] if side_exits(dispatcher) == 0 else make_resume(function).entries
    variants = [entry.info for entry in (*before, *dispatcher.entries)]
    if not variants or not all(map(has_no_region, variants)):
        return None
    with real_builtins():
        decoded, _ = CODES.rows(origin.code)
        computes = partial(may_compute, decoded, function)
        left = exits(decoded, origin, computes, lambda place: is_known(resume_at(function, origin, decoded, place)))
        if left is None:
            return None
        resumed = {place: make_resume(resume_at(function, origin, decoded, place)) for place in left}
        made = resume_function(origin, function.__globals__, function.__closure__, function.__qualname__)
        made.__code__ = stretch_code(decoded, origin, resumed)
    return Entry(None, made, RunsInPython())


def has_no_region(info: object) -> bool:
    facts = info.facts if isinstance(info, Variant) else ()
    return isinstance(info, Variant | RunsInPython) and not any([kind == "region" for kind, _ in facts])


def resume_at(function: FunctionType, origin: ResumeOrigin, decoded: DecodedCode, place: ResumeEntry) -> FunctionType:
    """The function that goes on where the stretch is left."""
    name = f"{origin.code.co_qualname} from line {decoded.line(place.target)}"
    there = ResumeOrigin(origin.code, place, None)
    return resume_function(there, function.__globals__, function.__closure__, name)


def may_compute(decoded: DecodedCode, function: FunctionType, index: int) -> bool:
    """Whether an instruction computes with tensors, as far as is known: a call that was never captured may."""
    if index in decoded.facts.computing:
        return True
    name = decoded.instruction(index).name
    if CODES.is_reached(decoded.code, index) or not name.startswith("CALL") or name.startswith("CALL_INTRINSIC"):
        return False
    return not is_plain_call(decoded, function, index)


def is_plain_call(decoded: DecodedCode, function: FunctionType, index: int) -> bool:
    """Whether all that its line loads by name are builtins and methods of containers."""
    line, at = decoded.line(index), index
    while at > 0 and decoded.line(at - 1) == line:
        at -= 1
        name, arg = decoded.instruction(at).name, decoded.instruction(at).arg
        if name in ("LOAD_METHOD", "LOAD_ATTR") and arg not in PLAIN_METHODS:
            return False
        if name in ("LOAD_GLOBAL", "LOAD_GLOBAL_CALL"):
            found = function.__globals__.get(arg, getattr(builtins, arg, None))
            if not isinstance(found, BuiltinFunctionType) and not hasattr(builtins, getattr(found, "__name__", "")):
                return False
        elif name == "LOAD_DEREF":
            return False
    return True
