"""Python's own builtin classes, for the compiler to work with while a program has replaced some of them.

with mock.patch("builtins.int"):      the program sees the mock
    compiled(x)                       code is assembled with the real `int`; nothing is compiled
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

CLASSES = MappingProxyType({name: cls for name, cls in vars(builtins).items() if isinstance(cls, type)})
MISSING = object()


def replaced_builtins() -> dict[str, object]:
    """What stands in the place of Python's own classes."""
    space = vars(builtins)
    return {name: space.get(name, MISSING) for name, cls in CLASSES.items() if space.get(name) is not cls}


@contextmanager
def real_builtins() -> Iterator[None]:
    """The builtin classes are Python's own; other threads see them, too."""
    replaced = replaced_builtins()
    space = vars(builtins)
    space.update({name: CLASSES[name] for name in replaced})
    try:
        yield
    finally:
        for name, found in replaced.items():
            if found is MISSING:
                del space[name]
            else:
                space[name] = found
