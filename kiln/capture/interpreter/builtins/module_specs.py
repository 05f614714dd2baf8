"""`importlib.util.find_spec("package")`: what is installed, asked again by the guards, as eager asks in each call."""

from __future__ import annotations

import importlib.util
import sys

from kiln.capture.interpreter.builtins.polyfilled import interpret
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.runtime.guards.source import CALL, CallSource


@handles(importlib.util.find_spec)
def find_spec(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    name = args[0].constant(s) if len(args) == 1 and not kwargs and args[0].is_constant else None
    # The package that holds a module is imported for it.
    if not isinstance(name, str) or ((parent := name.rpartition(".")[0]) and parent not in sys.modules):
        return interpret(s, importlib.util.find_spec, args, kwargs)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return interpret(s, importlib.util.find_spec, args, kwargs)
    return s.wrap(found, CallSource(CALL, (s.reference(importlib.util.find_spec), name)))
