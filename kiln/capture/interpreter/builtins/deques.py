"""`collections.deque` made in the frame; a deque from outside is not supported, as no guard checks its items."""

from __future__ import annotations

from collections import deque
from typing import final

from kiln.capture.interpreter.builtins import methods
from kiln.capture.interpreter.builtins.methods import method
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
    handles,
)
from kiln.capture.interpreter.operations import equal
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List, Sequence, all_items

NONE = Constant(None)
DEQUE = (deque,)


@final
class Deque(Sequence):
    """Items as in a list; beyond `maxlen`, items are dropped at the other end."""

    __slots__ = ("maxlen",)

    def __init__(self, items: list[Value], maxlen: int | None) -> None:
        super().__init__(items, deque)
        self.maxlen = maxlen

    def extend(self, s: CaptureState, items: list[Value], left: bool = False) -> None:
        mine = self.items(s)
        for item in items:
            mine.insert(0, item) if left else mine.append(item)
            if self.maxlen is not None and len(mine) > self.maxlen:
                mine.pop() if left else mine.pop(0)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        return s.const(self.maxlen) if name == "maxlen" else super().get_attr(s, name, site)

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        try:
            self.items(s)[key.constant(s)] = value
        except IndexError:
            raise s.error(IndexError, "deque index out of range") from None

    def key(self, s: CaptureState) -> Token:
        raise s.error(TypeError, "unhashable type: 'collections.deque'")

    def emit(self, g: Codegen) -> None:
        g.body.const(deque)
        g.emit(List(list(self.items(g.state))))
        g.body.const(self.maxlen)
        g.body.call(2)
        g.remember(self)


@handles(deque)
def make_deque(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    limit = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    made = Deque([], limit.constant(s))
    source = args[0] if args else kwargs.get("iterable")
    if source is not None:
        made.extend(s, all_items(s, source))
    return made


@method(Deque, DEQUE, "append")
def append(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    target.extend(s, [args[0]])


@method(Deque, DEQUE, "appendleft")
def append_left(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    target.extend(s, [args[0]], left=True)


@method(Deque, DEQUE, "extend")
def extend(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    target.extend(s, all_items(s, args[0]))


@method(Deque, DEQUE, "__iadd__")
def extend_in_place(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> Value:
    target.extend(s, all_items(s, args[0]))
    return target


@method(Deque, DEQUE, "extendleft")
def extend_left(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    target.extend(s, all_items(s, args[0]), left=True)


def popping(name: str, index: int) -> None:
    @method(Deque, DEQUE, name)
    def pop(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> Value:
        items = target.items(s)
        if not items:
            raise s.error(IndexError, "pop from an empty deque")
        return items.pop(index)


popping("pop", -1)
popping("popleft", 0)


@method(Deque, DEQUE, "clear")
def clear(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    target.items(s).clear()


@method(Deque, DEQUE, "reverse")
def reverse(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    target.items(s).reverse()


@method(Deque, DEQUE, "rotate")
def rotate(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    items = target.items(s)
    by = (args[0].constant(s) if args else 1) % (len(items) or 1)
    items[:] = items[len(items) - by :] + items[: len(items) - by]


@method(Deque, DEQUE, "copy", "__copy__")
def copy(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> Value:
    return Deque(list(target.items(s)), target.maxlen)


@method(Deque, DEQUE, "remove")
def remove(s: CaptureState, target: Deque, args: Args, kwargs: Kwargs) -> None:
    items = target.items(s)
    for index, item in enumerate(items):
        if equal(s, item, args[0]):
            del items[index]
            return
    raise s.error(ValueError, "deque.remove(x): x not in deque")


method(Deque, DEQUE, "count")(methods.sequence_count)
method(Deque, DEQUE, "__len__")(methods.length)
method(Deque, DEQUE, "__iter__")(methods.iterate)
method(Deque, DEQUE, "__getitem__")(methods.get_item)
method(Deque, DEQUE, "__contains__")(methods.contains_)
