"""Values as keys of dicts and elements of sets. CPython 3.14 says as which it was to be used what has no hash.

{[]: 1}     TypeError: cannot use 'list' as a dict key (unhashable type: 'list')
"""

from __future__ import annotations

import sys

from kiln.capture.interpreter.breaks import Raised
from kiln.capture.interpreter.class_lookups import full_name
from kiln.capture.interpreter.core import CaptureState, Token, Value

NAMES_USE = sys.version_info >= (3, 14)


def dict_key(s: CaptureState, value: Value) -> Token:
    return token_of(s, value, "a dict key")


def set_element(s: CaptureState, value: Value) -> Token:
    return token_of(s, value, "a set element")


def token_of(s: CaptureState, value: Value, use: str) -> Token:
    try:
        return value.key(s)
    except Raised as raised:
        if not NAMES_USE or raised.value.python_type() is not TypeError:
            raise
        reason = " ".join(map(str, raised.value.get_attr(s, "args").constant(s)))
        raise s.error(TypeError, f"cannot use '{full_name(value.python_type())}' as {use} ({reason})") from None
