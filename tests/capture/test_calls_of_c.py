"""Functions and classes written in C that are run while tracing: results and errors are eager's, without a break."""

from __future__ import annotations

import array
import bisect
import collections
import functools
import heapq
import io
import itertools
import math
import operator
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln

X = torch.arange(4.0)
OPTIONS = {"cache": False, "progress": False}


class Index:
    def __init__(self, number: object) -> None:
        self.number = number
        self.asked = 0

    def __index__(self) -> Any:
        self.asked += 1
        return self.number


class Ranked:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: Ranked) -> bool:
        return self.rank < other.rank


class Squares:
    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        if index >= self.count:
            raise IndexError
        return index * index


class Counted(int):
    def __add__(self, other: int) -> Counted:
        return Counted(int(self) + int(other) + 1)


class Name(str):
    def shout(self) -> str:
        return self.upper() + "!"


class Failing:
    def __iter__(self) -> Failing:
        return self

    def __next__(self) -> int:
        raise KeyError("no item")


def error_of(function: Callable[..., object], *args: object, **kwargs: object) -> tuple[str, tuple[object, ...]]:
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, error.args
    return "none", ()


def conversions(x: torch.Tensor) -> object:
    index = Index(3)
    used = (
        bytes(index),
        hex(index),
        "ab" * index,
        [1, 2, 3, 4][index],
        range(9)[index],
        b"abcd"[index:],
        2 ** Index(2).number,
    )
    return x + 1, used, index.asked, [5, 6, 7][Index(0) : Index(2)], "abc"[Index(1)]


def errors_of_conversions(x: torch.Tensor) -> object:
    bad = Index("x")
    found = [error_of(bytes, bad), error_of(hex, bad), error_of(operator.getitem, [1], bad), error_of(range, bad)]
    found += [
        error_of(list, Failing()),
        error_of("".join, Failing()),
        error_of(sum, Failing()),
        error_of(bytes, Failing()),
    ]
    found += [
        error_of(enumerate),
        error_of(enumerate, 1),
        error_of(int, "1", 40),
        error_of(math.sqrt, -1),
        error_of(chr, -1),
    ]
    return x + 1, found


def heaps(x: torch.Tensor) -> object:
    heap: list[object] = []
    for number in (3, 1, 2):
        heapq.heappush(heap, (number, str(number)))
    ranked = [Ranked(3), Ranked(1), Ranked(2)]
    heapq.heapify(ranked)
    least = heapq.nsmallest(2, [5, 3, 4], key=lambda n: -n)
    return x + 1, heapq.heappop(heap), heap, [item.rank for item in ranked], least, bisect.bisect([1, 3, 5], 3)


def heap_of_tensors(x: torch.Tensor) -> object:
    heap = [(2, x), (1, x * 2), (3, x * 3)]
    heapq.heapify(heap)
    return heapq.heappop(heap)[1], heap[0][0], len(heap)


def arrays(x: torch.Tensor) -> object:
    numbers = array.array("i", [1, 2])
    numbers.append(3)
    numbers[0] += 5
    numbers.extend(number for number in (7, 8))
    return x + numbers[0], numbers, len(numbers), numbers.tolist(), error_of(numbers.append, "a")


def iterators(x: torch.Tensor) -> object:
    items = [1, 2]
    chained, counted = itertools.chain(items, [9]), itertools.count(5)
    items.append(3)
    first = next(counted), next(counted)
    return x + 1, list(chained), first, list(iter(Squares(4))), [*map(operator.neg, Squares(3))], counted


def deques(x: torch.Tensor) -> object:
    class Ring(collections.deque):  # type: ignore[type-arg]
        def turn(self) -> None:
            self.rotate(1)

    ring = Ring([1, 2, 3], maxlen=3)
    ring.turn()
    ring.append(4)
    plain = collections.deque([3, 1])
    plain.insert(1, 2)
    return x + 1, list(ring), ring.maxlen, plain, plain == collections.deque([3, 2, 1]), plain.index(1)


def subclasses(x: torch.Tensor) -> object:
    number, name = Counted(5), Name("ab")
    facts = number + 1, number * 2, number.bit_length(), number.real, type(number + 1).__name__, name.shout(), len(name)
    return x + number, facts, name == "ab", "a" in name, number == 5, {number: 1}[number], bool(Counted(0)), name + "c"


def objects_that_leave(x: torch.Tensor) -> object:
    return x + 1, Counted(5), Name("ab"), array.array("d", [0.5]), itertools.count(3)


def callbacks(x: torch.Tensor) -> object:
    calls: list[object] = []
    key = functools.cmp_to_key(lambda a, b: calls.append((a, b)) or b - a)
    ordered = sorted([1, 3, 2], key=key)
    return x + 1, ordered, calls, functools.reduce(lambda a, b: (a, b), Squares(3)), max(Squares(4), key=lambda n: -n)


def buffers(x: torch.Tensor) -> object:
    data = bytearray(b"abc")
    view = memoryview(data)
    view[0] = 100
    return x + 1, bytes(data), view[1:].tobytes(), struct.pack("<hh", 1, 2), struct.unpack_from("<h", data, 1)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __hash__(self) -> int:
        return hash(self.x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


class NoIterator:
    def __iter__(self) -> int:  # type: ignore[override]
        return 3


class Long:
    def __len__(self) -> int:
        return -1


def keys_with_a_hash_of_their_own(x: torch.Tensor) -> object:
    named = {Point(1): "a"}
    named[Point(1)] = "b"
    named[Point(2)] = "c"
    missing = error_of(operator.getitem, {1: 2}, 3), error_of(hash, Unhashable()), error_of(set, [Unhashable()])
    found = list(named.values()), [key.x for key in named], len({Point(1), Point(1), Point(3)}), Point(2) in named
    return x + 1, found, missing


def addresses(x: torch.Tensor) -> object:
    first: list[int] = []
    same, seen = first, {id(first): "a"}
    return x + 1, id(first) == id(same), id(x) != id(first), seen[id(same)], id(same) in seen


def locks_and_streams(x: torch.Tensor) -> object:
    lock, text = threading.RLock(), io.StringIO()
    with lock:
        text.write("ab")
    text.write("c")
    text.seek(1)
    return x + 1, text.read(1), text.getvalue(), io.BytesIO(b"xy").read(), sys.getrecursionlimit() > 0


def errors_of_builtins(x: torch.Tensor) -> object:
    found = [error_of(getattr, 1, 2), error_of(hasattr, 1, 2), error_of(max), error_of(max, 1, 2, default=3)]
    found += [error_of(iter, 1, 2), error_of(map, len), error_of(list, NoIterator()), error_of(len, Long())]
    found += [error_of(bool, Long()), error_of(sum, ["a"], ""), error_of(list, filter(42, [1]))]  # type: ignore[call-overload]
    keys = {"a": 1}.keys() & frozenset("ab")
    return x + 1, found, str(b"ab", "ascii"), pow(base=2, exp=5, mod=3), type(keys), repr([[...], (1,)])


def identities_of_tuples(x: torch.Tensor) -> object:
    pair = (1, [2])
    return x + 1, pair[:] is pair, tuple(pair) is pair, pair * 1 is pair, pair[:1] is pair


def annotations(x: torch.Tensor) -> object:
    def function(a: int, *, b: str = "c") -> None: ...

    return x + 1, function.__annotations__, function


def number_of_comparisons(x: torch.Tensor) -> object:
    asked: list[tuple[int, int]] = []

    class Number:
        def __init__(self, value: int) -> None:
            self.value = value

        def __lt__(self, other: Number) -> bool:
            asked.append((self.value, other.value))
            return self.value < other.value

    ordered = sorted([Number(3), Number(1), Number(2)], reverse=True)
    return x + 1, [number.value for number in ordered], asked


PROGRAMS: tuple[Callable[[torch.Tensor], Any], ...] = (
    conversions, errors_of_conversions, heaps, heap_of_tensors, arrays, iterators, deques, subclasses, callbacks,
    buffers, keys_with_a_hash_of_their_own, addresses, locks_and_streams, errors_of_builtins, identities_of_tuples,
    number_of_comparisons,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_result_is_eagers(program: Callable[[torch.Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True, options=OPTIONS)
    for _ in range(2):
        assert repr(compiled(X)) == repr(program(X))


def test_objects_that_leave_are_made_by_each_call() -> None:
    compiled = kiln.compile(objects_that_leave, backend="eager", fullgraph=True, options=OPTIONS)
    first, second, expected = compiled(X), compiled(X), objects_that_leave(X)
    assert repr(first[:4]) == repr(second[:4]) == repr(expected[:4]) and next(first[4]) == next(second[4]) == 3
    assert all(a is not b for a, b in zip(first[3:4], second[3:4], strict=True))
    assert [type(item) for item in first] == [type(item) for item in expected]


def test_a_function_that_leaves_keeps_its_annotations() -> None:
    found = kiln.compile(annotations, backend="eager", fullgraph=True, options=OPTIONS)(X)
    assert found[1] == annotations(X)[1] == found[2].__annotations__


def test_a_range_is_not_made_at_once() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        for number, _ in zip(range(10**9), "ab", strict=False):
            x = x + number
        return x, number

    assert kiln.compile(program, backend="eager", fullgraph=True, options=OPTIONS)(X)[1] == 1


def test_an_object_that_cannot_be_made_again_is_made_in_python() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, memoryview]:
        view = memoryview(bytearray(b"abc"))
        view[0] = 100
        return x + view[0], view

    found = kiln.compile(program, backend="eager", options=OPTIONS)(X)
    assert torch.equal(found[0], X + 100) and found[1].tobytes() == b"dbc"


def test_a_break_in_a_callback_is_one_in_front_of_the_call() -> None:
    def program(x: torch.Tensor) -> list[float]:
        seen: list[float] = []
        heapq.nlargest(2, [1.0, 2.0, 3.0], key=lambda number: seen.append(float((x * number).sum())) or number)
        return seen

    assert kiln.compile(program, backend="eager", options=OPTIONS)(X) == program(X)


def test_a_list_from_outside_is_changed_once() -> None:
    def program(x: torch.Tensor, heap: list[int]) -> torch.Tensor:
        heapq.heappush(heap, 0)
        return x + heap[0] + len(heap)

    compiled = kiln.compile(program, backend="eager", fullgraph=True, options=OPTIONS)
    for _ in range(2):
        ours, eager = [1, 2], [1, 2]
        assert torch.equal(compiled(X, ours), program(X, eager)) and ours == eager


def test_a_lock_from_outside_is_taken_and_given_back() -> None:
    lock = threading.RLock()

    def program(x: torch.Tensor) -> torch.Tensor:
        with lock:
            y = x + 1
        with lock:
            return y * 2

    compiled = kiln.compile(program, backend="eager", options=OPTIONS)
    assert torch.equal(compiled(X), program(X)) and torch.equal(compiled(X), program(X))


def test_an_exit_that_breaks_gets_an_exception_without_a_traceback() -> None:
    seen = []

    class Manager:
        def __enter__(self) -> Manager:
            return self

        def __exit__(self, kind: type[BaseException], error: BaseException, trace: object) -> bool:
            seen.append((kind, float(X.sum())))
            return True

    def program(x: torch.Tensor) -> torch.Tensor:
        with Manager():
            x = x + float(x.sum())
            raise ValueError
        return x

    assert torch.equal(kiln.compile(program, backend="eager", options=OPTIONS)(X), X + 6) and len(seen) == 1


def test_keywords_of_a_partial_that_change() -> None:
    def program(x: torch.Tensor, given: Any) -> object:
        made = functools.partial(dict, a=1)
        made.keywords["b"] = 2
        given.keywords["c"] = 3
        return x + 1, made(), given(), made

    compiled = kiln.compile(program, backend="eager", fullgraph=True, options=OPTIONS)
    for _ in range(2):
        ours, eager = functools.partial(dict, z=0), functools.partial(dict, z=0)
        assert repr(compiled(X, ours)) == repr(program(X, eager)) and ours.keywords == eager.keywords


def test_a_named_tuple_made_in_the_frame() -> None:
    def program(x: torch.Tensor) -> object:
        pair = collections.namedtuple("pair", "left right", defaults=(5,))
        made = pair(2)
        try:
            made.left = 3  # type: ignore[misc]
        except AttributeError as error:
            return x * made.left + made.right, made, str(error)
        return None

    compiled = kiln.compile(program, backend="eager", options=OPTIONS)
    for _ in range(2):
        assert repr(compiled(X)) == repr(program(X))
