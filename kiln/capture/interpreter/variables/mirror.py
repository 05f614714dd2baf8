"""Containers that C code works on in place of those of the frame: equal to them before the call and after it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field
from typing import final

from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Sequence
from kiln.capture.interpreter.variables.sets import Set
from kiln.support.records import dataclass

Real = list[object] | dict[object, object] | set[object]


@final
@dataclass
class Mirror:
    """A real container with what a value holds, and what it held when they were last compared."""

    value: Sequence | Dict | Set
    real: Real
    seen: list[object] = field(default_factory=list)

    def fill(self, s: CaptureState, lower: Callable[[Value], object]) -> None:
        """Give the container what the value holds."""
        value, real = self.value, self.real
        if isinstance(value, Dict):
            wanted = [lower(part) for pair in value.items(s).values() for part in pair]
        else:
            held = value.in_order(s).values() if isinstance(value, Set) else value.items(s)
            wanted = [lower(item) for item in held]
        if not same_items(wanted, contents(real)):
            refill(real, wanted)
        self.seen = contents(real)
        if not same_items(self.seen, wanted):
            raise value.unsupported("use in C code", "its order is not known while tracing")

    def read_back(self, s: CaptureState, lift: Callable[[object], Value]) -> None:
        """Give the value what C code has left in the container."""
        now = contents(self.real)
        if same_items(now, self.seen):
            return
        self.seen = now
        value, held = self.value, [lift(part) for part in now]
        if isinstance(value, Dict):
            pairs = value.change(s)
            pairs.clear()
            pairs.update({key.key(s): (key, item) for key, item in zip(held[::2], held[1::2], strict=True)})
        elif isinstance(value, Set):
            items = value.change(s)
            items.clear()
            items.update({item.key(s): item for item in held})
        else:
            sequence = value.change(s) if isinstance(value, List) else value.items(s)
            sequence[:] = held


def contents(real: Real) -> list[object]:
    """The items of a container, keys and values of a dict in turn, without methods of its class."""
    if isinstance(real, dict):
        order = OrderedDict if isinstance(real, OrderedDict) else dict
        return [part for pair in order.items(real) for part in pair]
    return list(list.__iter__(real) if isinstance(real, list) else set.__iter__(real))


def refill(real: Real, wanted: list[object]) -> None:
    if isinstance(real, list):
        list.__setitem__(real, slice(None), wanted)
    elif isinstance(real, dict):
        kind = OrderedDict if isinstance(real, OrderedDict) else dict
        kind.clear(real)
        for key, item in zip(wanted[::2], wanted[1::2], strict=True):
            kind.__setitem__(real, key, item)
    else:
        set.clear(real)
        set.update(real, wanted)


def same_items(first: list[object], second: list[object]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
