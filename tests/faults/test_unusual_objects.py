"""Programs on unusual objects that the compiler met with an error of its own (KILN9000) instead of eager's."""

from __future__ import annotations

import collections
import collections.abc
import enum
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.faults.outcome import assert_like_eager


@pytest.fixture(autouse=True)
def no_internal_fault() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert not [str(warning.message) for warning in caught if "KILN9" in str(warning.message)]


def deep(x: Tensor, depth: int) -> Tensor:
    return deep(x + 1, depth + 1)


class Bits(enum.Flag):
    A = 1
    B = 2


def set_on_none(x: Tensor) -> Tensor:
    object.__setattr__(None, "name", x)
    return x


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "no abstract methods": lambda x: (x + 1, hasattr(Bits, "__abstractmethods__"), hasattr(int, "__abstractmethods__")),
    "isinstance of None": lambda x: isinstance(x, None),  # type: ignore[arg-type]
    "isinstance of a number": lambda x: isinstance(3, (str, 4)),  # type: ignore[arg-type]
    "issubclass of None": lambda x: issubclass(int, None),  # type: ignore[arg-type]
    "endless recursion": lambda x: deep(x, 0),
    "attribute of None": set_on_none,
    "a number of two elements": lambda x: x.item(),
    "an integer of two elements": lambda x: int(torch.ones(2, dtype=torch.int64)) + x,
    "a flag without a name": lambda x: (x + bool(Bits(0)), Bits.A & Bits.B, Bits.A | Bits.B, x + (Bits(0) is Bits.A)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str) -> None:
    assert_like_eager(kiln.compile(PROGRAMS[name]), PROGRAMS[name], torch.ones(2))


def test_a_module_without_submodules() -> None:
    linear = nn.Linear(2, 2)
    linear.__dict__["_modules"] = None
    assert_like_eager(kiln.compile(lambda x: linear(x)), lambda x: linear(x), torch.ones(2))


def test_a_method_of_tensors_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.__mul__
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__mul__", lambda x, y: original(x, y) + 1)
        assert_like_eager(kiln.compile(lambda x: x * 2), lambda x: x * 2, torch.ones(2))
    assert_like_eager(kiln.compile(lambda x: x * 2), lambda x: x * 2, torch.ones(2))


class Scale(functools.partial[Tensor]):
    pass


class Three:
    def __hash__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return bool(other == 3)


def add(x: Tensor, y: float) -> Tensor:
    return x + y


NOTED = functools.partial(add, y=2)
NOTED.note = 5  # type: ignore[attr-defined]
SCALE = Scale(add, y=2)


def closing(x: Tensor) -> Iterator[int]:
    try:
        yield 1
    finally:
        x.add_(5)


def without_gradients() -> Iterator[int]:
    with torch.no_grad():
        yield 1


def dropped_mode(x: Tensor) -> tuple[Any, ...]:
    found = next(without_gradients())
    return found, torch.is_grad_enabled(), x


def nested(x: Tensor) -> tuple[Any, ...]:
    made = functools.partial(functools.partial(add, x), y=2)
    return made.func is add, made.args, made.keywords, functools.partial(NOTED).func is NOTED, made()


def caches(x: Tensor) -> tuple[Any, ...]:
    calls: list[object] = []
    small = functools.lru_cache(maxsize=2)(calls.append)
    for number in (1, 2, 1, 3, 1, 2):
        small(number)
    for typed in (False, True):
        remembering = functools.lru_cache(None, typed)(calls.append)
        for value in (1, 1.0, True, 1):
            remembering(value)
    functools.lru_cache(0)(calls.append)(7)
    return [str(call) for call in calls], x + 1


def cached_in_class(x: Tensor) -> tuple[Any, ...]:
    class Local:
        @functools.cached_property
        def double(self) -> Tensor:
            return x.mul_(2)

    made = Local()
    return made.double, made.double, x


def factories(x: Tensor) -> tuple[Any, ...]:
    made = collections.defaultdict(list)
    return hasattr(made, "default_factory"), made.default_factory is list, made["a"], x


UNUSUAL: dict[str, Callable[[Tensor], Any]] = {
    "a generator dropped in try": lambda x: (next(closing(x)), 1 in closing(x), any(v for v in closing(x)), x),
    "a generator dropped in with": dropped_mode,
    "a subclass of partial": lambda x: (isinstance(SCALE, Scale), type(SCALE).__name__, SCALE(x)),
    "an attribute of a partial": lambda x: (x + NOTED.note, hasattr(NOTED, "note"), hasattr(NOTED, "other")),  # type: ignore[attr-defined]
    "partials in partials": nested,
    "objects in a constant set": lambda x: (Three() in {3, 4}, Three() in {4, 5}, x.shape[0] in {2, 3}),
    "no hash in a constant set": lambda x: [] in {3, 4},  # type: ignore[comparison-overlap]
    "small caches": caches,
    "a cached property made inside": cached_in_class,
    "the factory of a dict": factories,
    "sum of floats": lambda x: (sum([0.1] * 10), sum([1, *[0.1] * 10]), sum([*[0.1] * 10, x, *[0.1] * 3])),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_like_eager_on_rare_paths(name: str) -> None:
    compiled = kiln.compile(UNUSUAL[name], backend="eager")
    for _ in range(2):
        assert_like_eager(compiled, UNUSUAL[name], torch.ones(2))


def ones() -> Iterator[int]:
    yield 1
    yield 2


def delegating() -> Iterator[int]:
    yield from ones()


class Numbers(collections.abc.Sequence[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return (5, 6)[index]


def skipping(numbers: Numbers) -> Iterator[int]:
    try:
        try:
            yield from numbers
        except (KeyError, IndexError):
            yield 7
    except ValueError:
        yield 8


def test_dropped_generators_with_nothing_to_close_are_compiled() -> None:
    """That of a sequence of the standard library is left in `except IndexError`, which does not catch its end."""
    numbers = Numbers()
    program = lambda x: (  # noqa: E731
        *(next(ones()), next(delegating()), next(v for v in (3, 4)), 5 in numbers, next(skipping(numbers))),
        x + 1,
    )
    compiled = kiln.compile(program, backend="eager")
    assert_like_eager(compiled, program, torch.ones(2))
    assert not kiln.report_of(compiled).eager_reasons
