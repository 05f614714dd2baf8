"""Classes of metaclasses of the program, made without calling the program.

    make_class(Meta, "A", (Base,), {"f": f})     like type.__new__(Meta, "A", (Base,), {"f": f}), but neither Meta's
                                                 `__new__` nor the `__init_subclass__` of a base is called

A class statement is interpreted, and these with it, so they have run when its class is made.
"""

from __future__ import annotations

import _random
import abc
from collections.abc import Callable, Mapping

INIT_ABC: Callable[[type], None] = vars(abc)["_abc_init"]
"""Makes the registry of an abstract base class."""


class Unhooked:
    """Stands in front of the bases while a class is made: its `__init_subclass__` is the one that is found."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Does nothing."""


def unhooked_order(cls: type) -> list[type]:
    """The `mro` of a metaclass."""
    first, *others = type.mro(cls)
    return [first, Unhooked, *others]


class UnhookedWithDict:
    """The same, with the fields of a plain class."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Does nothing."""


class NotMade(Exception):
    """The bases do not allow to make a class without calling the program."""


def make_plain_class(name: str, bases: tuple[type, ...], names: Mapping[str, object]) -> type:
    """A class of `type`, which computes no order by a method: a base without a hook stands in front of the others."""
    for first in (Unhooked, UnhookedWithDict):
        try:
            made = type(name, (first, *(base for base in bases if base is not object)), dict(names))
            made.__bases__ = bases
        except TypeError:
            continue
        return made
    raise NotMade(name)


def make_class(metaclass: type, name: str, bases: tuple[type, ...], names: Mapping[str, object]) -> type:
    """A class of `metaclass`; for an abstract base class its registry, too."""
    if metaclass is type:
        return make_plain_class(name, bases, names)
    hidden: dict[str, object] = {"__slots__": (), "mro": unhooked_order}
    maker = type.__new__(type(metaclass), metaclass.__name__, (metaclass,), hidden)
    made: type = type.__new__(maker, name, bases, dict(names))
    type.__setattr__(made, "__class__", metaclass)
    type.__setattr__(made, "__bases__", made.__bases__)  # the order is computed again
    if issubclass(metaclass, abc.ABCMeta):
        INIT_ABC(made)
    return made


def random_in_state(cls: type[_random.Random], state: tuple[int, ...]) -> _random.Random:
    """An instance of a class that derives from the generator written in C; `__init__` is not called."""
    made: _random.Random = object_of(cls, 0)
    _random.Random.setstate(made, state)
    return made


object_of: Callable[..., _random.Random] = _random.Random.__new__
