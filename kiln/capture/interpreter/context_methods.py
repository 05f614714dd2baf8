"""Methods of context managers as CPython 3.14 looks them up, on the class, and its error where one is missing.

with 3: pass     TypeError: 'int' object does not support the context manager protocol (missed __exit__ method)
"""

from __future__ import annotations

from kiln.capture.interpreter.class_lookups import full_name

PLAIN, ASYNCHRONOUS = ("__enter__", "__exit__"), ("__aenter__", "__aexit__")


def lacks_method(kind: type, name: str) -> str:
    """The text of the error of a `with` for an object of a class without the method."""
    plain = name in PLAIN
    own, other = ("", "asynchronous ") if plain else ("asynchronous ", "")
    text = f"'{full_name(kind)}' object does not support the {own}context manager protocol (missed {name} method)"
    if all(hasattr(kind, method) for method in (ASYNCHRONOUS if plain else PLAIN)):
        meant = "async with" if plain else "with"
        text += f" but it supports the {other}context manager protocol. Did you mean to use '{meant}'?"
    return text


def method_of(name: str, manager: object) -> object:
    """The method, bound. Called by transformed code."""
    kind = type(manager)
    for base in kind.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            return found.__get__(manager, kind) if hasattr(type(found), "__get__") else found
    raise TypeError(lacks_method(kind, name))
