"""Parts of the standard library that are written in C, in Python: the interpreter runs these in their place.

    itertools.takewhile(f, items)    is interpreted as    takewhile(f, items)  below

So what they call (a predicate, a user's iterator) is inlined like any other code. Each does what the documentation of
its original says; none imports anything at run time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import torch

ABSENT: Any = object()
T = TypeVar("T")


def islice(iterable: Iterable[T], first: int | None, *rest: int | None) -> Iterator[T]:
    """`islice(items, stop)` or `islice(items, start, stop, step)`: takes no item behind the last that it needs."""
    start, stop = (first, rest[0]) if rest else (0, first)
    start = start or 0
    step = rest[1] or 1 if len(rest) > 1 else 1
    wanted, index = start, 0
    iterator = iter(iterable)
    while stop is None or index < stop:
        try:
            item = next(iterator)
        except StopIteration:
            return
        if index == wanted:
            yield item
            wanted += step
        index += 1


def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


def repeat(item: T, times: int | None = None) -> Iterator[T]:
    if times is None:
        while True:
            yield item
    for _ in range(times):
        yield item


def cycle(iterable: Iterable[T]) -> Iterator[T]:
    kept = []
    for item in iterable:
        yield item
        kept.append(item)
    while kept:
        yield from kept


def accumulate(
    iterable: Iterable[T], func: Callable[[T, T], T] = operator.add, *, initial: T | None = None
) -> Iterator[T]:
    iterator = iter(iterable)
    total: Any = initial
    if initial is None:
        try:
            total = next(iterator)
        except StopIteration:
            return
    yield total
    for item in iterator:
        total = func(total, item)
        yield total


def takewhile(predicate: Callable[[T], object], iterable: Iterable[T]) -> Iterator[T]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


def dropwhile(predicate: Callable[[T], object], iterable: Iterable[T]) -> Iterator[T]:
    iterator = iter(iterable)
    for item in iterator:
        if not predicate(item):
            yield item
            break
    yield from iterator


def filterfalse(predicate: Callable[[T], object] | None, iterable: Iterable[T]) -> Iterator[T]:
    for item in iterable:
        if not (item if predicate is None else predicate(item)):
            yield item


def starmap(function: Callable[..., T], iterable: Iterable[Iterable[object]]) -> Iterator[T]:
    for args in iterable:
        yield function(*args)


def compress(data: Iterable[T], selectors: Iterable[object]) -> Iterator[T]:
    for item, selected in zip(data, selectors, strict=False):
        if selected:
            yield item


def pairwise(iterable: Iterable[T]) -> Iterator[tuple[T, T]]:
    before = ABSENT
    for item in iterable:
        if before is not ABSENT:
            yield before, item
        before = item


def zip_longest(*iterables: Iterable[T], fillvalue: T | None = None) -> Iterator[tuple[T | None, ...]]:
    iterators = [iter(one) for one in iterables]
    while True:
        row = [next(one, ABSENT) for one in iterators]
        if all(one is ABSENT for one in row):
            return
        yield tuple(fillvalue if one is ABSENT else one for one in row)


def groupby(iterable: Iterable[T], key: Callable[[T], object] | None = None) -> Iterator[tuple[object, Iterator[T]]]:
    current, group = ABSENT, []
    for item in iterable:
        mark = item if key is None else key(item)
        if current is not ABSENT and mark == current:
            group.append(item)
            continue
        if current is not ABSENT:
            yield current, iter(group)
        current, group = mark, [item]
    if current is not ABSENT:
        yield current, iter(group)


def combinations(iterable: Iterable[T], r: int) -> Iterator[tuple[T, ...]]:
    pool = list(iterable)
    if r > len(pool):
        return
    places = list(range(r))
    yield tuple([pool[place] for place in places])
    while True:
        at = r - 1
        while at >= 0 and places[at] == at + len(pool) - r:
            at -= 1
        if at < 0:
            return
        places[at] += 1
        for later in range(at + 1, r):
            places[later] = places[later - 1] + 1
        yield tuple([pool[place] for place in places])


def permutations(iterable: Iterable[T], r: int | None = None) -> Iterator[tuple[T, ...]]:
    pool = list(iterable)
    length = len(pool) if r is None else r

    def extended(places: list[int]) -> Iterator[tuple[T, ...]]:
        if len(places) == length:
            yield tuple([pool[place] for place in places])
            return
        for place in range(len(pool)):
            if place not in places:
                yield from extended([*places, place])

    yield from extended([])


def itemgetter(item: object, *items: object) -> Callable[[Any], object]:
    if not items:
        return lambda obj: obj[item]
    return lambda obj: tuple([obj[one] for one in (item, *items)])


def attrgetter(attr: str, *attrs: str) -> Callable[[object], object]:
    def resolved(obj: object, path: str) -> object:
        for name in path.split("."):
            obj = getattr(obj, name)
        return obj

    if not attrs:
        return lambda obj: resolved(obj, attr)
    return lambda obj: tuple([resolved(obj, one) for one in (attr, *attrs)])


def methodcaller(name: str, /, *args: object, **kwargs: object) -> Callable[[object], object]:
    return lambda obj: getattr(obj, name)(*args, **kwargs)


def lru_cache(maxsize: object = 128, typed: bool = False) -> Callable[..., object]:
    """Nothing is dropped from the cache: the frame that made it ends before that matters."""
    return cached(maxsize) if callable(maxsize) else cached


def cached(function: Callable[..., object]) -> Callable[..., object]:
    known: dict[object, object] = {}

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        key = (args, tuple(kwargs.items()))
        if key not in known:
            known[key] = function(*args, **kwargs)
        return known[key]

    return wrapper


def count_elements(mapping: dict[Hashable, int], iterable: Iterable[Hashable]) -> None:
    """What `collections.Counter` counts with."""
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


class FunctionContext:
    """What the methods of a `torch.autograd.Function` get as `ctx`, while they are interpreted."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[object, ...] = ()
        self.kiln_plain: tuple[object, ...] = ()
        self.kiln_dirty: tuple[object, ...] = ()
        self.kiln_materialize = True

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: object) -> None:
        """For forward-mode derivatives, which a region does not have."""

    def mark_non_differentiable(self, *tensors: object) -> None:
        self.kiln_plain = tensors

    def mark_dirty(self, *tensors: object) -> None:
        self.kiln_dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.kiln_materialize = value


def function_forward(cls: Any, context: FunctionContext, separate: bool, args: tuple[object, ...]) -> object:
    """The forward of an autograd function: without autograd, with the context set up as its class says."""
    with torch.no_grad():
        if not separate:
            return cls.forward(context, *args)
        result = cls.forward(*args)
        cls.setup_context(context, args, result)
        return result


def function_backward(cls: Any, context: FunctionContext, grads: tuple[object, ...]) -> tuple[object, ...]:
    """The gradients as a tuple."""
    found = cls.backward(context, *grads)
    return found if isinstance(found, tuple) else (found,)
