"""Values as keys of dicts and elements of sets. CPython 3.14 says as which it was to be used what has no hash.

{[]: 1}     TypeError: cannot use 'list' as a dict key (unhashable type: 'list')
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kiln.capture.interpreter.breaks import Raised
from kiln.capture.interpreter.class_lookups import full_name
from kiln.capture.interpreter.core import CaptureState, Token, Value

Entries = dict[Token, tuple[Value, Value]]
"""The keys and values of a dict, by the tokens of the keys."""
NAMES_USE = sys.version_info >= (3, 14)


def dict_key(s: CaptureState, value: Value) -> Token:
    return token_of(s, value, "a dict key")


def set_element(s: CaptureState, value: Value) -> Token:
    return token_of(s, value, "a set element")


def elements_of(s: CaptureState, items: Iterable[Value]) -> dict[Token, Value]:
    """Elements of a set: of equal items the first."""
    found: dict[Token, Value] = {}
    for item in items:
        found.setdefault(set_element(s, item), item)
    return found


def entries_of(s: CaptureState, pairs: Iterable[tuple[Value, Value]]) -> Entries:
    """Entries of a dict: of equal keys the first, with the last value."""
    found: Entries = {}
    for key, value in pairs:
        store_entries(found, {dict_key(s, key): (key, value)})
    return found


def store_entries(table: Entries, stored: Entries) -> Entries:
    """`table`, changed. What `dict.update` does: a key that is there already stays the object that it is."""
    for token, (key, value) in stored.items():
        known = table.get(token)
        table[token] = (known[0] if known else key, value)
    return table


def token_of(s: CaptureState, value: Value, use: str) -> Token:
    try:
        return value.key(s)
    except Raised as raised:
        if not NAMES_USE or raised.value.python_type() is not TypeError:
            raise
        reason = " ".join(map(str, raised.value.get_attr(s, "args").constant(s)))
        raise s.error(TypeError, f"cannot use '{full_name(value.python_type())}' as {use} ({reason})") from None
