"""Sets whose items come in a given order, which depends on the size of the table that a set has grown to.

{8, 16, 1} | {24}      16 slots: 16, 1, 8, 24
{8, 16, 1, 24}          8 slots: 8, 16, 1, 24

`filled(set(), order, slots)` makes a table of so many slots: room is made for fillers as well, which are removed again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import permutations
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
Table = set[K] | frozenset[K]
SLOT = 16
"""Bytes of a key and its hash."""
SMALL = 8
"""Slots of a table inside the object."""


def slots(items: Table[K]) -> int:
    return (items.__sizeof__() - type(items).__basicsize__) // SLOT or SMALL


def grown(items: Iterable[Hashable], found: set[Hashable] | None = None) -> set[Hashable]:
    """A set to which the items were added one by one."""
    found = set() if found is None else found
    for item in items:
        found.add(item)
    return found


def filled(target: set[Hashable], items: Sequence[Hashable], size: int) -> set[Hashable]:
    """`target`, emptied, with these items added in this order to a table of `size` slots, if they fit."""
    set.clear(target)
    at_once = items[: size // 2 - 1] if size > SMALL else ()
    room = max(SMALL // 2 + 1, size // 4) - len(at_once) if at_once else 0
    fillers: list[Hashable] = [object() for _ in range(room)]
    if at_once:
        set.update(target, dict.fromkeys([*at_once, *fillers]))
    for item in items[len(at_once) :]:
        set.add(target, item)
    for filler in fillers:
        set.discard(target, filler)
    return target


def made(items: Iterable[Hashable], size: int) -> set[Hashable]:
    return filled(set(), tuple(items), size)


def of_kind(kind: type, items: set[Hashable]) -> Table[Hashable]:
    """The set, or a frozen set made of it: a copy has a table of its own."""
    return items if issubclass(kind, set) else frozenset(items)


def alike(left: Table[K], right: Table[K]) -> bool:
    """Whether two sets give their items in the same order, and grow alike."""
    return slots(left) == slots(right) and list(left) == list(right)


def plain_set(real: Table[Hashable]) -> Table[Hashable] | None:
    """A copy of an instance of a derived class, whose methods are not run; None if it would have another order."""
    if isinstance(real, set):
        copied: Table[Hashable] = set(real)
        order = list(set.__iter__(real))
    else:
        copied, order = frozenset(real), list(frozenset.__iter__(real))
    copies = (copied, of_kind(type(copied), grown(order)))
    return next((copy for copy in copies if slots(copy) == slots(real) and list(copy) == order), None)


def order_for(table: Table[Hashable], items: Iterable[Hashable]) -> list[Hashable] | None:
    """The order in which `made` has to add the items, None if it cannot make this table. Items whose places collide
    come in the order in which they were added."""
    size = slots(table)
    by_place = sorted(table, key=lambda item: hash(item) % size)
    few = permutations(table) if len(table) <= MOST_PERMUTED else ()
    tried = ((list(order), of_kind(type(table), made(order, size))) for order in (table, items, by_place, *few))
    return next((order for order, found in tried if alike(found, table)), None)


MOST_PERMUTED = 4
"""Items of a set of the smallest size."""
