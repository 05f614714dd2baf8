"""Python's own builtin classes and functions, for the compiler to work with while a program has replaced some of them.

with mock.patch("builtins.int"):      the program sees the mock
    compiled(x)                       code is assembled with the real `int`; nothing is compiled
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, MappingProxyType

OFTEN_REPLACED = frozenset(("print", "open", "input", "breakpoint", "__import__"))
"""The compiler does without these."""
OWN = MappingProxyType({
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type | BuiltinFunctionType) and name not in OFTEN_REPLACED
})  # fmt: skip
MISSING = object()


def replaced_builtins() -> dict[str, object]:
    """What stands in the place of Python's own classes and functions."""
    space = vars(builtins)
    return {name: space.get(name, MISSING) for name, own in OWN.items() if space.get(name) is not own}


@contextmanager
def real_builtins() -> Iterator[None]:
    """The builtin classes and functions are Python's own; other threads see them, too."""
    replaced = replaced_builtins()
    space = vars(builtins)
    space.update({name: OWN[name] for name in replaced})
    try:
        yield
    finally:
        for name, found in replaced.items():
            if found is MISSING:
                del space[name]
            else:
                space[name] = found
