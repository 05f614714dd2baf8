"""Python semantics that compiled code once got wrong."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from tests.faults.outcome import assert_like_eager


class EqualByValue:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualByValue) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Point:
    x: int


class Hashed:
    def __hash__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return self is other


class Overriding:
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> int:
        return 1


@pytest.mark.parametrize("kind", [EqualByValue, Point])
@pytest.mark.parametrize("numbers", [(1, 1), (1, 2)], ids=str)
def test_not_equal_asks_equal(kind: Any, numbers: tuple[int, int]) -> None:
    """object's `__ne__` is the opposite of the class's `__eq__`."""

    def program(x: torch.Tensor, a: object, b: object) -> torch.Tensor:
        return x + 1 if a != b else x - 1

    assert_like_eager(kiln.compile(program), program, torch.zeros(2), *map(kind, numbers))


def test_jvp_compares_the_structure_of_its_arguments() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.func.jvp(lambda y: y * 2, (x,), (torch.ones(2),))

    assert_like_eager(kiln.compile(program), program, torch.ones(2))


CONSUMERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "list(map)": lambda x: list(map(float, [x[0], x[1]])),
    "list(filter)": lambda x: list(filter(bool, [x[0], x[1]])),
    "sum(map)": lambda x: sum(map(float, [x[0], x[1]])),
    "max(map)": lambda x: max(map(float, [x[0], x[1]])),
    "dict(zip)": lambda x: dict(zip("ab", map(float, [x[0], x[1]]))),  # noqa: B905
    "join(map)": lambda x: ",".join(map(str, map(float, [x[0], x[1]]))),
    "for in map": lambda x: [v + 1 for v in map(float, [x[0], x[1]])],
    "sorted(iter, key)": lambda x: sorted(iter([x[1], x[0]]), key=float),
    "max(iter, key)": lambda x: max(iter([x[1], x[0]]), key=float),
    "next(map)": lambda x: (lambda m: (next(m), list(m)))(map(float, [x[0], x[1], x[0]])),
    "second item": lambda x: list(map(float, [3, x[1], x[0]])),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_callable_that_breaks_loses_no_item(name: str) -> None:
    assert_like_eager(kiln.compile(CONSUMERS[name]), CONSUMERS[name], torch.arange(2.0) + 1)


def test_an_object_with_its_own_hash_in_a_set() -> None:
    item = Hashed()

    def program(x: torch.Tensor) -> torch.Tensor:
        s: set[object] = set()
        s.add(item)
        return x + len(s)

    assert_like_eager(kiln.compile(program), program, torch.zeros(1))


def test_a_global_that_another_module_writes() -> None:
    other = types.ModuleType("other")
    exec("v = 0\ndef f():\n    global v\n    v += 1\n", other.__dict__)

    def program(x: torch.Tensor) -> torch.Tensor:
        before = other.v
        other.f()
        return x + other.v * 10 + before

    assert kiln.compile(program)(torch.zeros(1)).item() == 10
    assert other.v == 1


def test_new_of_a_size() -> None:
    def program(x: torch.Tensor) -> torch.Size:
        return x.new(torch.Size([5, 8])).shape

    assert_like_eager(kiln.compile(program), program, torch.zeros(1))


def test_has_torch_function() -> None:
    def program(x: torch.Tensor, one: object) -> torch.Tensor:
        return x + torch.overrides.has_torch_function((one,)) + 2 * torch.overrides.has_torch_function_unary(one)

    for item in (Overriding(), Hashed(), 3, None, torch.ones(1)):
        assert_like_eager(kiln.compile(program), program, torch.zeros(1), item)


@pytest.mark.filterwarnings("error")
def test_the_dict_of_a_partial() -> None:
    def program(x: torch.Tensor, p: object) -> torch.Tensor:
        return x + 1 if hasattr(p, "__dict__") else x - 1

    assert_like_eager(kiln.compile(program), program, torch.zeros(1), functools.partial(max, 1))


POWERS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "float(k**3)": lambda x, k: x * 0 + float(k**3),
    "k*k % 7": lambda x, k: x * 0 + (k * k) % 7,
    "k*k*k // 7": lambda x, k: x * 0 + float(k * k * k // 7),
    "returned": lambda x, k: (x + 1, k * k * k * k),
    "(k+1)*(k-1)": lambda x, k: x * 0 + float((k + 1) * (k - 1)),
}


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.filterwarnings("ignore:.*runs eager")
def test_integers_beyond_64_bits(name: str) -> None:
    compiled = kiln.compile(POWERS[name])
    for k in (3, 5, 2**20, 7, 2**30, 2**31 + 1, 2**40, 2**62, 11):
        assert_like_eager(compiled, POWERS[name], torch.ones(3), k)


def set_of(kind: str, count: int) -> set[int]:
    """Sets whose tables are of different sizes."""
    numbers: set[int] = set()
    for number in range(count):
        numbers.add(7 * number % 1000)
    if kind == "shrunk":
        for number in range(4, count):
            numbers.discard(7 * number % 1000)
    return set(numbers) if kind == "copied" else numbers


def change_and_list(numbers: set[int], x: torch.Tensor, removed: list[int]) -> tuple[list[int], torch.Tensor]:
    numbers.add(100)
    for number in removed:
        numbers.discard(number)
    numbers.add(41)
    return [number for number in numbers], x + 1


@pytest.mark.parametrize("kind", ["copied", "grown", "shrunk"])
def test_the_order_of_a_set_that_is_changed(kind: str) -> None:
    """It depends on the size of the set's table, which a copy may not have."""
    for count in (3, 5, 11, 20, 64):
        removed = [7 * number for number in range(0, count, 2)]
        expected, _ = change_and_list(set_of(kind, count), torch.ones(3), removed)
        found, _ = kiln.compile(change_and_list)(set_of(kind, count), torch.ones(3), removed)
        assert found == expected


def test_super_outside_of_a_class() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)  # type: ignore[misc]

    compiled = kiln.compile(program)
    assert_like_eager(compiled, program, torch.ones(3))
    assert "KILN9000" not in kiln.report_of(compiled).text()


def test_the_error_of_an_empty_slot_names_it() -> None:
    class Slots:
        __slots__ = ("a",)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            del Slots().a
        except AttributeError as error:
            return x, str(error)
        return x, ""

    assert_like_eager(kiln.compile(program), program, torch.ones(3))


WRONG_CALLS: dict[str, Callable[[], object]] = {
    "too many": lambda: copy.copy(1, 2, 3),  # type: ignore[call-arg]
    "too few": lambda: copy.deepcopy(),  # type: ignore[call-arg]
    "no keyword": lambda: torch.is_tensor(x=1),  # type: ignore[call-arg]
    "none are taken": lambda: torch.compiler.is_compiling(3),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_arguments_of_library_functions(name: str) -> None:
    call = WRONG_CALLS[name]

    def program(x: torch.Tensor) -> object:
        try:
            call()
        except TypeError as error:
            return x + 1, str(error)
        return x - 1

    compiled = kiln.compile(program, backend="eager")
    assert_like_eager(compiled, program, torch.zeros(1))
    assert kiln.report_of(compiled).eager == 0


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (2, 0)], ids=str)
def test_lists_of_numbers(shape: tuple[int, ...]) -> None:
    """No element is left out, whether its dtype has symbolic numbers or not."""

    def program(x: torch.Tensor) -> object:
        return x.tolist()

    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool, torch.complex64):
        x = torch.ones(shape).to(dtype)
        assert repr(kiln.compile(program, backend="eager")(x)) == repr(program(x)), dtype


def test_a_function_of_torch_calls_one_of_the_program() -> None:
    """The distance is code of the program: it has effects and reads globals."""
    log: list[int] = []

    def distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        log.append(len(log))
        return (x - y).abs().sum(-1)

    def program(x: torch.Tensor) -> object:
        loss = F.triplet_margin_with_distance_loss(x, x + 1, x * 3, distance_function=distance)
        return loss, F.triplet_margin_with_distance_loss(x, x, x * 3, distance_function=torch.nn.PairwiseDistance())

    compiled = kiln.compile(program, backend="eager")
    for calls in (2, 4, 6):
        compiled(torch.ones(2, 3))
        assert len(log) == calls
    assert_like_eager(compiled, program, torch.ones(2, 3))
    assert not kiln.report_of(compiled).breaks


def test_numbers_beyond_64_bits_are_compared_with_symbolic_ones() -> None:
    def program(x: torch.Tensor, n: int, items: list[int]) -> Any:
        big = items[0] * items[0]
        return x + 1 if n == big else x - 1, n != big, n < big, -big < n, big in [n], n in [2**70], n * n <= 2**200

    compiled = kiln.compile(program, backend="eager")
    for n in (3, 4, 5):
        for first in (2**40, 2**31):
            assert_like_eager(compiled, program, torch.ones(1), n, [first])
