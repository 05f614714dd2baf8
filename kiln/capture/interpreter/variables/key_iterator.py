"""Iterators over dicts, their views, and sets.

They keep the keys that the dict had at the start, and look up each value when it is reached:

for v in d.values():      d = {"a": 1, "b": 2}
    d["b"] = 10           v is 1, then 10
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Reversible, Sized
from collections.abc import Set as AbstractSet
from typing import Protocol, final

from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Token, Value, will_change
from kiln.capture.interpreter.effects import contents_key
from kiln.capture.interpreter.variables.sequence import List

ERRORS = {
    "dict": "dictionary changed size during iteration",
    "ordered": "OrderedDict mutated during iteration",
    "reversed dict": "dictionary changed size during iteration",
    "reversed ordered": "OrderedDict mutated during iteration",
    "set": "Set changed size during iteration",
}
"""Kinds of containers, and the error of an iteration meanwhile whose size changes."""


class ReversibleKeys(Sized, Reversible[Hashable], Protocol):
    """What a walk needs of a dict or set."""

    def __contains__(self, key: object, /) -> bool: ...


class Indexable(ReversibleKeys, Protocol):
    """What the rest of an iteration needs of a dict."""

    def __getitem__(self, key: Hashable, /) -> object: ...


@final
class KeyWalk:
    """The keys that an iteration visits while the dict or set changes, as CPython's iterators do.

    Keys that replace others are behind all others. As many are visited as the container had at the start; a further
    one is an error.
    """

    __slots__ = ("container", "ended", "index", "keys", "kind", "left", "size")

    def __init__(self, container: ReversibleKeys, keys: list[Hashable], kind: str) -> None:
        self.container = container
        self.keys = keys
        self.kind = kind
        self.index = 0
        self.size = self.left = len(keys)
        self.ended = False

    def __iter__(self) -> Iterator[Hashable]:
        return self

    def __next__(self) -> Hashable:
        if self.ended:
            raise StopIteration
        self._check()
        while self.index < len(self.keys):
            key = self.keys[self.index]
            self.index += 1
            if key in self.container:
                self.left -= 1
                return key
        return self._added()

    def _check(self) -> None:
        if len(self.container) != self.size or (self.kind == "ordered" and self._is_reordered()):
            self.size = -1
            raise RuntimeError(ERRORS[self.kind])

    def _is_reordered(self) -> bool:
        """Of an OrderedDict: whether its first or last key is another one, so that none is inserted unseen."""
        if not self.keys:
            return False
        ends = next(iter(self.container)), next(reversed(self.container))
        return ends != (self.keys[0], self.keys[-1])

    def _added(self) -> Hashable:
        """The next key that was not there at the start."""
        known: AbstractSet[Hashable] = frozenset(self.keys)
        added = [key for key in self.container if key not in known] if self.kind in ("dict", "ordered") else []
        index = self.index - len(self.keys)
        if index >= len(added):
            self.ended = True
            raise StopIteration
        if not self.left:
            self.ended = True
            raise RuntimeError("dictionary keys changed during iteration")
        self.index += 1
        self.left -= 1
        return added[index]


@final
class KeyIterator(Value):
    """An iterator over the keys, values or items of a dict, or over a set, which may not grow or shrink meanwhile."""

    __slots__ = ("container", "keys", "pick", "walk", "what")

    def __init__(
        self,
        container: Value,
        items: ReversibleKeys,
        keys: dict[Token, Value],
        kind: str,
        what: str,
        pick: Callable[[Token], Value],
    ) -> None:
        self.container = container
        self.keys = keys
        self.what = what
        self.pick = pick
        self.walk = KeyWalk(items, list(keys), kind)

    @property
    def position(self) -> tuple[int, ...]:
        return self.walk.index, self.walk.left, self.walk.ended

    @position.setter
    def position(self, position: tuple[int, ...]) -> None:
        self.walk.index, self.walk.left, ended = position
        self.walk.ended = bool(ended)

    def remaining(self, s: CaptureState) -> int:
        return self.walk.left

    def python_type(self) -> type:
        if self.walk.kind == "set":
            return type(iter(set()))
        view = getattr({}, self.what)()
        return type(reversed(view) if self.walk.kind.startswith("reversed") else iter(view))

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        will_change(s, self)
        try:
            token = next(self.walk)
        except StopIteration:
            return None
        except RuntimeError as error:
            raise s.error(RuntimeError, *error.args) from None
        return self.pick(token)

    def emit(self, g: Codegen) -> None:
        walk = self.walk
        if walk.ended:
            g.body.const(()).op("GET_ITER")
            g.remember(self)
            return
        if self._is_plain(g):
            g.make(self, advanced, self.container, walk.index)
            return
        g.make(
            self,
            resumed,
            self.container,
            List(list(self.keys.values())),
            (walk.kind, self.what, walk.index, walk.left, walk.size),
        )

    def _is_plain(self, g: Codegen) -> bool:
        """Whether it is over a set from outside that is as it was: Python's own iterator gives the same items."""
        walk, container = self.walk, self.container
        unchanged = container.source is not None and g.state.effects.find(contents_key(container)) is None
        return walk.kind == "set" and unchanged and walk.size == len(walk.container)


def advanced(items: AbstractSet[object], count: int) -> Iterator[object]:
    """An iterator over a set, past its first items; its class may iterate otherwise."""
    iterator = frozenset.__iter__(items) if isinstance(items, frozenset) else set.__iter__(items)  # type: ignore[arg-type]
    for _ in range(count):
        next(iterator)
    return iterator


def resumed(container: Indexable, keys: list[Hashable], state: tuple[str, str, int, int, int]) -> Iterator[object]:
    """The rest of an iteration that began in a region."""
    kind, what, index, left, size = state
    walk = KeyWalk(container, keys, kind)
    walk.index, walk.left, walk.size = index, left, size
    if what == "keys":
        yield from walk
        return
    for key in walk:
        value = dict.__getitem__(container, key) if isinstance(container, dict) else container[key]
        yield value if what == "values" else (key, value)
