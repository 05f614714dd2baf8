"""Special methods of the program that Python runs, and those that it does not run, in the order in which it does."""

from __future__ import annotations

import collections.abc
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import kiln

LOG: list[str] = []


class Sized:
    def __init__(self, length: Any = 2) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        LOG.append("iter")
        return iter([1, 2])

    def __len__(self) -> Any:
        LOG.append("len")
        if isinstance(self.length, Exception):
            raise self.length
        return self.length


class Hinted:
    def __init__(self, hint: Any = 2) -> None:
        self.hint, self.left = hint, 2

    def __iter__(self) -> Hinted:
        LOG.append("iter")
        return self

    def __next__(self) -> int:
        LOG.append("next")
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

    def __length_hint__(self) -> Any:
        LOG.append("hint")
        return self.hint


class Items(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        LOG.append("len")
        return 1


CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "[*x]": lambda x: [*x], "sorted": sorted, "f(*x)": lambda x: max(*x),
    "extend": lambda x: [0].extend(x), "set": set, "zip": lambda x: list(zip(x, "ab", strict=False)),
}  # fmt: skip
ITERABLES: tuple[Callable[[], Any], ...] = (
    Sized, lambda: Sized(TypeError("a")), lambda: Sized(ValueError("b")), lambda: Sized(-1), Hinted,
    lambda: Hinted("c"), lambda: Hinted(NotImplemented), lambda: Hinted(-3), lambda: Items([1, 2]),
)  # fmt: skip


def logged(function: Callable[..., Any], *args: Any) -> Any:
    LOG.clear()
    try:
        found = function(*args)
    except Exception as error:
        found = repr(error)
    return found, tuple(LOG)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return kiln.compile(function, backend="eager", options={"cache": False})


@pytest.mark.parametrize("name", CONSUMERS)
def test_lengths_are_asked_for(name: str) -> None:
    consume = CONSUMERS[name]
    for make in ITERABLES:

        def program(make: Callable[[], Any] = make) -> Any:
            return consume(make())

        assert logged(compiled(program)) == logged(program)


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_the_length() -> None:
    def program(x: Tensor) -> list[str]:
        with Seen() as mode:
            a, b = x
            found = [*x], tuple(x), list(x)
        return mode.names if found and a is not b else []

    x = torch.ones(2, 2)
    assert compiled(program)(x) == program(x)


class Reads(dict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        LOG.append("getitem")
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        LOG.append("iter")
        return super().__iter__()

    def values(self) -> Any:
        LOG.append("values")
        return super().values()


def test_items_over_a_break_are_read_past_the_class() -> None:
    def program(d: Any) -> Any:
        d[1] = [1]
        time.sleep(0)
        return d.pop(2), d.get(1), d.setdefault(3, [0])

    for make in (lambda: Reads({2: [2], 3: [3]}), lambda: Reads({"a": [1], 2: [2], (1, object()): [3]})):
        assert logged(compiled(program), make()) == logged(program, make())


class Loud:
    def __hash__(self) -> int:
        LOG.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        LOG.append("eq")
        return self is other


def test_items_of_sets_are_not_hashed_while_tracing() -> None:
    def program(items: Any, wanted: Any) -> Any:
        return [len(items), wanted in items]

    items = {Loud(), Loud()}
    run = compiled(program)
    for wanted in (next(iter(items)), 5):
        assert logged(run, items, wanted) == logged(program, items, wanted)


class Unstable:
    def __hash__(self) -> int:
        return random.randrange(2)

    def __eq__(self, other: object) -> bool:
        return random.random() < 0.5


def test_keys_that_answer_at_random_are_no_fault() -> None:
    def program(items: list[Any]) -> int:
        found = {*items}
        return len(found | {*items}) >= 0

    run = compiled(program)
    for _ in range(3):
        assert run([Unstable() for _ in range(8)])
    assert not any(entry.code == "KILN9000" for entry in kiln.report_of(run).eager_reasons)


class Both(collections.abc.Sequence, collections.abc.Mapping):  # type: ignore[misc, type-arg]
    def __getitem__(self, key: Any) -> Any:
        raise KeyError

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_the_first_base_decides_what_a_pattern_matches() -> None:
    def program(value: Any) -> str:
        match value:
            case {}:
                return "mapping"
            case []:
                return "sequence"
        return ""

    assert compiled(program)(Both()) == program(Both()) == "sequence"


class Binds:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self.function.__get__(instance, owner)


class Holder:
    @classmethod
    @Binds
    def name(cls) -> str:  # type: ignore[misc]
        return cls.__name__


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="class methods no longer chain")
def test_class_methods_bind_descriptors() -> None:
    def program() -> Any:
        return Holder.name(), Holder().name()

    assert compiled(program)() == program()


class Counting:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def __eq__(self, other: object) -> bool:
        self.calls.append("eq")
        return False

    __hash__ = None  # type: ignore[assignment]


def test_an_instruction_that_breaks_has_changed_nothing() -> None:
    """The comparison runs code of the program before the search meets an item that breaks."""

    def outside(items: list[Any], found: list[str]) -> bool:
        return Counting(found) in items

    def inside(items: list[Any], found: list[str]) -> list[str]:
        made: list[str] = []
        return [made, str(Counting(made) in items)]

    for program in (outside, inside):
        run = compiled(program)
        for _ in range(2):
            left: list[str] = []
            right: list[str] = []
            assert run([1, sys.stdin], left) == program([1, sys.stdin], right)
            assert left == right


METHODS: dict[str, Callable[[Tensor], object]] = {
    "text": lambda x: (x.__str__(), x.__repr__(), x.__format__(""), x[0, 0].__format__(".3f")),
    "text of a result": lambda x: (x * 2).__repr__(),
    "attributes": lambda x: (x.__getattribute__("shape"), x.__getattribute__("abs")().tolist()),
    "hash": lambda x: (x.__hash__() == hash(x), x.__hash__() == torch.Tensor.__hash__(x)),
    "iterator": lambda x: [row.sum().item() for row in x.__iter__()],
    "one row": lambda x: next(x.__iter__()).tolist(),
    "pickling": lambda x: (x.__reduce_ex__(2)[0].__name__, torch.Tensor.__reduce_ex__(x, 2)[0].__name__),
    "copying": lambda x: (x.__deepcopy__({}).tolist(), torch.Tensor.__deepcopy__(x, {}).tolist()),
    "size": lambda x: x.__sizeof__(),
}


@pytest.mark.parametrize("name", METHODS)
def test_special_methods_of_tensors_tell_of_the_tensor(name: str) -> None:
    """They were called on the fake tensor: `x.__repr__()` was "FakeTensor(f32[2, 3])"."""
    compiled = kiln.compile(METHODS[name])
    for _ in range(2):
        x = torch.randn(2, 3)
        assert compiled(x) == METHODS[name](x)
