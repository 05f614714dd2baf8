"""Parts of the standard library that a program uses between operations on tensors: one graph, and eager's results."""

from __future__ import annotations

import collections
import copy
import datetime
import functools
import hashlib
import json
import pickle
import threading
import types
import typing
import warnings
import weakref
from typing import Any, Dict, Generic, List, Literal, NewType, Optional, Protocol, TypedDict, TypeVar, Union, cast

import pytest
import torch
import torch._dynamo
from numpy.lib.array_utils import normalize_axis_index
from torch import Tensor

import kiln

# mypy: disallow_untyped_defs = False, check_untyped_defs = False
# ruff: noqa: UP006, UP035, UP007, UP045

T = TypeVar("T")
UserId = NewType("UserId", int)


class Node:
    pass


class Items(set):  # type: ignore[type-arg]
    pass


class Named(set):  # type: ignore[type-arg]
    def __init__(self, *items):
        super().__init__(*items)
        self.name = "n"


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


class Record(TypedDict, total=False):
    a: int


@typing.runtime_checkable
class HasValue(Protocol):
    value: int


KEY = Node()
WEAK_KEYS = weakref.WeakKeyDictionary({KEY: 3})
WEAK_VALUES = weakref.WeakValueDictionary(a=KEY)
WEAK_SET = weakref.WeakSet([KEY])
REFERENCE = weakref.ref(KEY)


@functools.singledispatch
def shifted(kind, x):
    return x


@shifted.register
def _(kind: int, x):
    return x + kind


class Scaler:
    def scale(self, x, factor=2):
        return x * factor

    tripled = functools.partialmethod(scale, factor=3)


def weak_containers(x):
    return x * WEAK_KEYS[KEY], KEY in WEAK_KEYS, WEAK_KEYS.get(Node()), KEY in WEAK_SET, Node() in WEAK_SET


def weak_values(x):
    return x, WEAK_VALUES["a"] is KEY, "b" in WEAK_VALUES, [key is KEY for key in WEAK_KEYS]


def weak_references(x):
    return x, weakref.ref(KEY) == REFERENCE, weakref.ref(Node()) == REFERENCE, REFERENCE() is KEY


def dispatched(x):
    return shifted(2, x), shifted("a", x), Scaler().tripled(x)


def this_thread(x):
    return x, threading.current_thread().name, threading.current_thread() is threading.main_thread()


def types_of_typing(x):
    y = cast(Optional[int], 3) + x
    return y, List[int], Dict[str, int], Union[int, str], Literal["a"], Box[Tensor](x).value, UserId(3), Record(a=1)


def protocols(x):
    return x, isinstance(Box(1), HasValue), isinstance(Node(), HasValue), isinstance(KEY, HasValue)


def copies_of_sets(x):
    first, second = Items([1, 2]), Named([1])
    copied, other = copy.deepcopy(first), copy.copy(second)
    return x + len(copied), type(copied).__name__, copied == first, type(other).__name__, other.name


def filtered_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("ignore", message="a.*")
        return x + 1


def dates(x):
    day = datetime.date(2020, 1, 31)
    later, step = day.replace(month=3), datetime.timedelta(hours=25)
    text = f"{day:%Y}", str(day), repr(later), datetime.datetime.strptime("2020-02", "%Y-%m").isoformat()
    return x * (later - day).days, day < later, day == later, divmod(step, datetime.timedelta(days=1)), -step, text


def digests(x):
    first = hashlib.sha256(b"a")
    second = first.copy()
    second.update(str(tuple(x.shape)).encode())
    return x + int(first.hexdigest()[:2], 16), second.hexdigest(), hashlib.md5(b"b").digest()


def json_texts(x):
    return x, json.dumps({"sizes": list(x.shape)}), json.dumps([Box(1)], default=vars, indent=1, sort_keys=True)


def texts(x):
    return x, repr(types.SimpleNamespace(a=1, b="c"))


PROGRAMS = [
    *(weak_containers, weak_values, weak_references, dispatched, this_thread, types_of_typing, protocols),
    *(copies_of_sets, filtered_warnings, texts, dates, digests, json_texts),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Any) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for size in (2, 2, 3):
        filters = list(warnings.filters)
        assert repr(compiled(torch.ones(size))) == repr(program(torch.ones(size)))
        assert warnings.filters == filters


SETTINGS: dict[str, Any] = {"sizes": [1, 2], "names": ("a", 2.5)}


def test_pickles_are_made_of_what_is_there() -> None:
    def pickled(x: Tensor) -> Any:
        axis = normalize_axis_index(-1, x.dim())
        return x.sum(axis), pickle.dumps(SETTINGS), len(pickle.dumps([x.dim(), {"a": None}]))

    compiled = kiln.compile(pickled, fullgraph=True, options={"cache": False})
    for size in (2, 3):
        x = torch.ones(2, size)
        SETTINGS["sizes"].append(size)
        assert repr(compiled(x)) == repr(pickled(x))


def reversed_with_arguments(x):
    try:
        return list(types.MappingProxyType({1: 1}).__reversed__(2))
    except TypeError as error:
        return x, str(error)


def clock(x):
    return x + 1, datetime.date.today() >= datetime.date(2020, 1, 1), datetime.datetime.now().year > 2000


def digest_over_a_break(x):
    digest = hashlib.md5(b"a")
    torch._dynamo.graph_break()
    digest.update(b"b")
    return x, digest.hexdigest()


@pytest.mark.parametrize("program", [clock, digest_over_a_break])
def test_what_the_frame_cannot_know_is_asked_at_each_call(program: Any) -> None:
    compiled = kiln.compile(program)
    for size in (2, 3):
        assert repr(compiled(torch.ones(size))) == repr(program(torch.ones(size)))
    assert kiln.report_of(compiled).breaks


def test_errors() -> None:
    assert repr(kiln.compile(reversed_with_arguments)(1)) == repr(reversed_with_arguments(1))


def test_aliases_of_classes_are_called() -> None:
    def program(x: torch.Tensor) -> tuple[object, ...]:
        items, counts = list[int]((1, 2)), collections.defaultdict[str, list[int]](list)
        items.append(4)
        counts["a"].append(2)
        kept = collections.deque[int](items, maxlen=2)
        return x + items[-1], items, counts, kept, dict[str, int](k=3), set[int](), tuple[int, ...](kept)

    compiled: Any = kiln.compile(program, fullgraph=True)
    found, expected = compiled(torch.ones(2)), program(torch.ones(2))
    assert torch.equal(found[0], expected[0])  # type: ignore[arg-type]
    assert found[1:] == expected[1:] and [*map(type, found)] == [*map(type, expected)]
