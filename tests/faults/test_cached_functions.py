"""Functions under `functools.lru_cache`: what a cache holds is one object, and side effects are not repeated."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Compile = Callable[[Any], Any]


def changed_tensor(compile: Compile) -> Iterator[Any]:
    buffer = functools.lru_cache(torch.zeros)
    compiled = compile(lambda x: buffer(3).add_(x) * 2)
    for _ in range(3):
        yield compiled(torch.ones(3)).clone()
    buffer.cache_clear()
    yield compiled(torch.ones(3))


def changed_list(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def table(n: int) -> list[int]:
        return [n]

    def program(x: Tensor) -> Tensor:
        table(3).append(1)
        return x * sum(table(3))

    compiled = compile(program)
    for _ in range(3):
        yield compiled(torch.ones(2))


def not_kept(compile: Compile) -> Iterator[Any]:
    buffer = functools.lru_cache(maxsize=0)(torch.zeros)
    compiled = compile(lambda x: buffer(3).add_(x))
    for _ in range(2):
        yield compiled(torch.ones(3))


def counted_calls(compile: Compile) -> Iterator[Any]:
    seen: list[int] = []

    @functools.cache
    def added(x: Tensor) -> Tensor:
        seen.append(len(seen))
        return x + 1

    compiled = compile(lambda x: added(x) * 2)
    x = torch.ones(3)
    for argument in (x, x, torch.zeros(3), x):
        yield compiled(argument), list(seen)


def changed_object(compile: Compile) -> Iterator[Any]:
    class Sum:
        def __init__(self) -> None:
            self.value = 4

        @functools.lru_cache  # noqa: B019
        def add(self, number: int) -> None:
            self.value += number

    def program(x: Tensor) -> Tensor:
        made = Sum()
        made.add(3)
        made.add(3)
        return x + made.value

    compiled = compile(program)
    for _ in range(2):
        yield compiled(torch.ones(2))


class Table:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @functools.lru_cache  # noqa: B019
    def scaled(self, number: int) -> int:
        return number * self.factor

    @functools.cache  # noqa: B019
    def filled(self) -> Tensor:
        return torch.full((2,), float(self.factor))

    @functools.cache  # noqa: B019
    def refused(self) -> None:
        raise ValueError(self.factor)


def changed_receiver(compile: Compile) -> Iterator[Any]:
    def program(table: Table, x: Tensor) -> Tensor:
        return x * table.scaled(2) + table.filled() + table.factor

    compiled, table = compile(program), Table(2)
    for factor in (2, 3, 2, 4):
        table.factor = factor
        yield compiled(table, torch.ones(2))
    Table.scaled.cache_clear()
    for n in range(10):
        yield compiled(Table(n), torch.ones(2))


def changed_inside(compile: Compile) -> Iterator[Any]:
    def program(table: Table, x: Tensor) -> Tensor:
        y = x * table.scaled(2)
        table.factor += 1
        return y + table.scaled(2) + table.scaled(3) + table.filled()

    compiled = compile(program)
    for factor in (2, 3, 4):
        yield compiled(Table(factor), torch.ones(2))


def changed_argument(compile: Compile) -> Iterator[Any]:
    @functools.cache
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    @functools.cache
    def factor(table: Table) -> int:
        return table.factor

    compiled = compile(lambda x, table: doubled(x) + doubled(x + 1) + factor(table))
    x, table = torch.ones(2), Table(1)
    for n in range(3):
        table.factor = n
        yield compiled(x, table)
        x.add_(1)


def errors_are_not_cached(compile: Compile) -> Iterator[Any]:
    def program(table: Table, x: Tensor) -> Tensor:
        try:
            table.refused()
        except ValueError as error:
            return x * error.args[0]
        return x

    compiled, table = compile(program), Table(1)
    for table.factor in (1, 2, 3):
        yield compiled(table, torch.ones(2))


def changed_variables(compile: Compile) -> Iterator[Any]:
    factor, table = 2, Table(2)

    def by_factor(number: int) -> int:
        return number * factor

    @functools.cache
    def scaled(number: int) -> int:
        return by_factor(number) + torch.ones(number).shape[0]

    compiled = compile(lambda table, x: x * scaled(x.shape[0]) + table.scaled(x.shape[0]))
    for size, factor in ((3, 2), (3, 4), (4, 4), (4, 5), (5, 6), (4, 7)):
        table.factor = factor
        yield compiled(table, torch.ones(size))
    scaled.cache_clear()
    yield compiled(table, torch.ones(4))


def changed_factor(compile: Compile) -> Iterator[Any]:
    factor = 1

    @functools.lru_cache
    def table(numbers: tuple[int, ...]) -> int:
        return sum(numbers) * factor

    compiled = compile(lambda x: x * table((1, 2)))
    for factor in (1, 2):  # noqa: B007
        yield compiled(torch.ones(2))
    table.cache_clear()
    yield compiled(torch.ones(2))


def changed_variable_of_what_is_not_kept(compile: Compile) -> Iterator[Any]:
    factor = 2

    @functools.lru_cache(maxsize=0)
    def scaled(number: int) -> int:
        return number * factor

    compiled = compile(lambda x: x * scaled(x.shape[0]))
    for size, factor in ((3, 2), (3, 4), (4, 4), (4, 5)):  # noqa: B007
        yield compiled(torch.ones(size))


def written_before(compile: Compile) -> Iterator[Any]:
    class Weights:
        def __init__(self) -> None:
            self.weight = torch.ones(2)

        @functools.cache  # noqa: B019
        def total(self) -> float:
            return float(self.weight.sum())

    def program(weights: Weights, x: Tensor) -> Tensor:
        weights.weight.mul_(3)
        return x * weights.total()

    compiled, weights = compile(program), Weights()
    for _ in range(3):
        yield compiled(weights, torch.ones(2)), weights.weight


def cleared_after_a_change(compile: Compile) -> Iterator[Any]:
    class Counter:
        number = 2

        @functools.cache  # noqa: B019
        def total(self) -> int:
            return self.number + 1

    counter = Counter()
    compiled = compile(lambda x: x * counter.total())
    for number in (2, 5, 7, 5):
        counter.number = number
        yield compiled(torch.ones(2))
        Counter.total.cache_clear()
        yield compiled(torch.ones(2))


def changed_tensor_of_a_size(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def table(n: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(n, dtype=dtype)

    def program(x: Tensor, dtype: torch.dtype) -> Tensor:
        found = table(x.shape[0], dtype)
        found += 1
        return found * x

    compiled = compile(program)
    for size in (3, 4, 3, 5, 4):
        yield compiled(torch.ones(size), torch.float32)
        yield compiled(torch.ones(size), torch.float64)


def changed_list_of_a_size(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def table(n: int) -> dict[str, list[int]]:
        return {"sizes": [n]}

    def program(x: Tensor) -> Tensor:
        table(x.shape[0])["sizes"].append(1)
        return x * sum(table(x.shape[0])["sizes"])

    compiled = compile(program)
    for size in (3, 4, 3, 5, 4):
        yield compiled(torch.ones(size))


def handed_on(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def table(n: int) -> Tensor:
        return torch.zeros(n, 2)

    compiled = compile(lambda x: (table(x.shape[0])[0], x + 1))
    for size in (3, 4, 3, 5, 4):
        row, _ = compiled(torch.ones(size))
        row += 1
        yield row.clone()


def changed_in_a_later_variant(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def mask(n: int) -> Tensor:
        return torch.ones(n, n).tril_()

    def program(x: Tensor, first: int) -> Tensor:
        found = mask(x.shape[0])
        if first:
            found[0, 0] = first
        return x @ found

    compiled = compile(program)
    for size, first in ((2, 0), (3, 0), (4, 0), (3, 5), (3, 0), (2, 0), (2, 4), (2, 0), (4, 0)):
        yield compiled(torch.ones(size, size), first)


def drawn_once(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def noise(n: int) -> Tensor:
        return torch.rand(n)

    program = compile(lambda x: x + noise(x.shape[0]))
    for size in (2, 3, 4, 3, 4, 5):
        once, again = program(torch.ones(size)), program(torch.ones(size))
        yield torch.equal(once, again)


def begins_to_require_gradients(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def scale(n: int) -> Tensor:
        return torch.ones(n)

    def program(x: Tensor, changes: bool) -> Tensor:
        found = scale(x.shape[0])
        if changes:
            found.requires_grad_()
        return x * found

    compiled = compile(program)
    for size, changes in ((2, False), (3, False), (4, True), (4, False), (3, False), (3, True), (3, False)):
        yield compiled(torch.ones(size), changes).requires_grad


def changed_where_few_are_kept(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache(maxsize=1)
    def table(n: int) -> list[int]:
        return [n]

    @functools.lru_cache(maxsize=2)
    def scale(n: int) -> Tensor:
        return torch.ones(n)

    def program(x: Tensor, changes: bool) -> Tensor:
        found, factor = table(x.shape[0]), scale(x.shape[0])
        if changes:
            found.append(1)
            factor.add_(1)
        return x * factor + len(found)

    compiled = compile(program)
    for size, changes in ((2, False), (3, False), (4, False), (5, True), (5, False), (6, False), (6, True), (6, False)):
        yield compiled(torch.ones(size), changes)
    for size in (5, 6, 2, 5, 6):
        yield compiled(torch.ones(size), False)


def changed_by_its_size(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache(maxsize=1)
    def scale(n: int) -> Tensor:
        return torch.ones(n)

    def program(x: Tensor) -> Tensor:
        found = scale(x.shape[0])
        if x.shape[0] > 4:
            found.add_(1)
        return x * found

    compiled = compile(program)
    for size in (2, 3, 4, 5, 5, 6, 6, 4, 5):
        yield compiled(torch.ones(size))


def compared(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def table(n: int) -> Tensor:
        return torch.zeros(n)

    compiled = compile(lambda x: x + (table(x.shape[0]) is table(x.shape[0])))
    for size in (3, 4, 3):
        yield compiled(torch.ones(size))


class Setting:
    name = "a"


def called_by_one_of_several_variants(compile: Compile) -> Iterator[Any]:
    called: list[str] = []

    @functools.lru_cache(maxsize=9)
    def scale(name: str) -> int:
        called.append(name)
        return len(name) + 1

    compiled = compile(lambda x: x * scale(Setting.name))
    for name in ("a", "bb", "ccc", "a", "bb"):
        Setting.name = name
        yield compiled(torch.ones(2)), list(map(len, called))
        if name == "ccc":
            scale.cache_clear()


def called_on_one_side(compile: Compile) -> Iterator[Any]:
    called: list[str] = []

    @functools.lru_cache(maxsize=9)
    def scale(name: str) -> int:
        called.append(name)
        return len(name)

    def by_data(x: Tensor, k: int) -> Tensor:
        if x.sum() > 0:
            return x * scale("data")
        return x + scale("other data")

    def by_number(x: Tensor, k: int) -> Tensor:
        factor = scale("number") if k > 3 else scale("other number")
        return x * factor

    for function in (by_data, by_number):
        compiled = compile(function)
        for k in (2, 3, 4, 5, -6):
            yield compiled(torch.ones(2) * k, k), list(map(len, called))


def called_with_one_of_several_objects(compile: Compile) -> Iterator[Any]:
    called: list[int] = []

    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @functools.lru_cache(maxsize=9)  # noqa: B019
        def of(self, number: int) -> int:
            called.append(self.factor)
            return self.factor * number

    small, large = Scale(2), Scale(9)
    compiled = compile(lambda x: x * (small.of(3) if Setting.name == "a" else large.of(4)))
    for name in "aabbab":
        Setting.name = name
        yield compiled(torch.ones(2)), list(called)
        Scale.of.cache_clear()


CHANGES = [
    called_by_one_of_several_variants,
    called_on_one_side,
    called_with_one_of_several_objects,
    changed_tensor_of_a_size,
    changed_list_of_a_size,
    handed_on,
    drawn_once,
    begins_to_require_gradients,
    changed_in_a_later_variant,
    changed_where_few_are_kept,
    changed_by_its_size,
    compared,
    cleared_after_a_change,
    written_before,
    changed_variables,
    changed_factor,
    changed_variable_of_what_is_not_kept,
    changed_receiver,
    changed_inside,
    changed_argument,
    errors_are_not_cached,
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [changed_tensor, changed_list, not_kept, counted_calls, changed_object, *CHANGES])
def test_cached_functions(program: Callable[[Compile], Iterator[Any]], dynamic: bool | None) -> None:
    expected = list(program(lambda function: function))
    found = list(program(lambda function: kiln.compile(function, dynamic=dynamic)))
    torch.testing.assert_close(found, expected)


def test_a_cached_function_of_its_arguments_is_in_the_graph() -> None:
    @functools.cache
    def positions(number: int, start: int | None, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.arange(start or 0, number, dtype=dtype) + int(math.sqrt(number))

    def program(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x * positions(x.shape[0], None) + positions(x.shape[0], None, dtype)

    compiled = kiln.compile(program, dynamic=True, fullgraph=True)
    for size in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(size), torch.float64), program(torch.ones(size), torch.float64))


def test_a_cached_method_of_constants_is_in_the_graph() -> None:
    compiled = kiln.compile(lambda table, x: x * table.scaled(2) + table.filled(), fullgraph=True)
    table, x = Table(3), torch.ones(2)
    for _ in range(3):
        torch.testing.assert_close(compiled(table, x), torch.full((2,), 9.0))


class Recipe:
    def __init__(self, groups: list[list[int]]) -> None:
        self.groups = groups


SEPARATOR = ","


@functools.lru_cache
def recipe(text: str, names: tuple[str, ...]) -> Recipe:
    return Recipe([[names.index(name) for name in group] for group in text.split(SEPARATOR)])


@functools.lru_cache
def merged(recipe: Recipe, shape: tuple[int, ...]) -> list[int]:
    return [math.prod([shape[axis] for axis in group]) for group in recipe.groups]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_recipe_that_a_cache_keeps_is_applied_in_the_graph(dynamic: bool | None) -> None:
    """As einops does in each of its calls."""
    program = lambda x: x.reshape(merged(recipe("ab,c", ("a", "b", "c")), x.shape))  # noqa: E731
    compiled = kiln.compile(program, dynamic=dynamic, fullgraph=True)
    for size in (2, 3, 4):
        x = torch.randn(size, 3, 5)
        assert torch.equal(compiled(x), program(x))
    assert compiled.report().compiles <= 2


def test_whether_a_cache_keeps_anything_is_asked_of_the_cache() -> None:
    """Its function `cache_parameters` is an attribute, which a program may take away."""

    @functools.cache
    def scale(n: int) -> float:
        return n / 2

    del scale.cache_parameters
    compiled = kiln.compile(lambda x: x * scale(3), fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 1.5))


def test_a_class_is_found_by_its_identity() -> None:
    """As opt_einsum finds the package of a tensor, with changes of the frame pending."""
    calls: list[type] = []

    @functools.lru_cache(None)
    def package(cls: type) -> str:
        calls.append(cls)
        return cls.__module__.split(".")[0]

    class Scaled(torch.nn.Module):
        scale = 2

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x.shape[0]
            return x * self.scale if package(x.__class__) == "torch" else x

    module = Scaled()
    compiled = kiln.compile(module, options={"cache": False}, fullgraph=True)
    for size in (2, 3, 4):
        assert compiled(torch.ones(size)).tolist() == [2] * size
        assert module.seen == size
    assert calls == [Tensor]
    package.cache_clear()
    compiled(torch.ones(2))
    assert calls == [Tensor, Tensor]


def test_a_class_that_the_frame_changed_is_no_key() -> None:
    class Config:
        width = 3

    @functools.lru_cache(None)
    def width(cls: type[Config]) -> int:
        return cls.width

    def program(x: Tensor) -> Tensor:
        Config.width = 5
        return x * width(Config)

    compiled = kiln.compile(program, options={"cache": False})
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [5, 5]
