"""Generators and coroutines as the compiled function: each piece between two `yield`s is compiled."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

X = torch.arange(4.0)
LOG: list[object] = []


def doubled(x: Tensor, n: int = 3) -> Iterator[Tensor]:
    for step in range(n):
        x = x * 2
        LOG.append(step)
        yield x + step


def received(x: Tensor) -> Generator[Tensor, Any, Tensor]:
    y = yield x + 1
    z = yield x * y
    return z + y


def guarded(x: Tensor) -> Generator[Tensor, Any, None]:
    try:
        y = yield x + 1
        yield x * y
    except ValueError as error:
        LOG.append(str(error))
        yield x - 1
    finally:
        LOG.append("closed")


def delegating(x: Tensor) -> Generator[Tensor, Any, None]:
    result = yield from received(x)
    yield result * 2
    yield from [x, x + 1]


def without_gradients(x: Tensor) -> Iterator[Any]:
    with torch.no_grad():
        yield x * 2, torch.is_grad_enabled()
    yield x * 3, torch.is_grad_enabled()


SENDS: list[tuple[Callable[..., Any], list[Any]]] = [
    (doubled, [None] * 4),
    (received, [3.0, 4.0]),
    (received, ["close"]),
    (guarded, [5.0, None]),
    (guarded, [ValueError("v"), None]),
    (guarded, [KeyError("k")]),
    (guarded, ["close"]),
    (delegating, [3.0, 4.0, None, None, None]),
    (without_gradients, [None, None]),
]


def driven(made: Generator[Any, Any, Any], sends: list[Any]) -> list[Any]:
    """What a generator gives for what it is sent, and how it ends."""
    LOG.clear()
    found: list[Any] = []
    try:
        found.append(next(made))
        for value in sends:
            if value == "close":
                made.close()
            else:
                found.append(made.throw(value) if isinstance(value, Exception) else made.send(value))
    except Exception as error:
        found.append([type(error).__name__, *error.args])
    return [*found, *LOG]


def assert_same(got: Any, expected: Any) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, list | tuple):
            assert_same(one, other)
        else:
            assert torch.equal(one, other) if isinstance(other, Tensor) else one == other


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "sends"), SENDS, ids=lambda given: getattr(given, "__name__", ""))
def test_generators(program: Callable[..., Any], sends: list[Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X + 1):
        assert_same(driven(compiled(x), sends), driven(program(x), sends))


def test_pieces_are_compiled_once() -> None:
    compiled = kiln.compile(received, backend="eager", options={"cache": False})
    for x in (X, X * 2, X * 3):
        assert_same(driven(compiled(x), [3.0, 4.0]), driven(received(x), [3.0, 4.0]))
    report = kiln.report_of(compiled)
    assert report.compiles <= 5 and not report.breaks and not report.eager_reasons


def test_they_are_what_they_were() -> None:
    compiled = kiln.compile(doubled)
    LOG.clear()
    made = compiled(X)
    assert isinstance(made, types.GeneratorType) and made.__name__ == "doubled" and not LOG
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        compiled()
    assert inspect.iscoroutinefunction(kiln.compile(awaiting))


class Streaming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def stream(self, x: Tensor, count: int) -> Iterator[Tensor]:
        for _ in range(count):
            x = self.layer(x).relu()
            yield x


def test_a_method_with_kernels_and_gradients() -> None:
    model = Streaming()
    compiled = kiln.compile(model.stream, options={"cache": False})
    gradients: list[Tensor] = []
    for stream in (model.stream, compiled, compiled):
        model.zero_grad()
        torch.stack(list(stream(torch.ones(2, 4), 3))).sum().backward()
        assert model.layer.weight.grad is not None
        gradients.append(model.layer.weight.grad.clone())
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2)


async def inner(x: Tensor) -> Tensor:
    return x * 2


async def awaiting(x: Tensor) -> Tensor:
    y = await inner(x)
    await asyncio.sleep(0)
    return await inner(y) + 1


class Manager:
    async def __aenter__(self) -> int:
        LOG.append("in")
        await asyncio.sleep(0)
        return 3

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        LOG.append(kind)
        return kind is ValueError


async def managed(x: Tensor) -> Tensor:
    async with Manager() as factor:
        x = x * factor
    async with Manager():
        raise ValueError
    return x


class Countdown:
    def __init__(self, count: int) -> None:
        self.count = count

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        if not self.count:
            raise StopAsyncIteration
        self.count -= 1
        return self.count


async def counted(x: Tensor) -> Tensor:
    async for number in Countdown(3):
        x = x * 2 + number
    return x


async def gathered(x: Tensor) -> Tensor:
    y, z = await asyncio.gather(inner(x), inner(x + 1))
    return y + z  # type: ignore[no-any-return]


async def failing(x: Tensor) -> Tensor:
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.001)
    except TimeoutError:
        x = x + 5
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [awaiting, managed, counted, gathered, failing], ids=lambda given: given.__name__)
def test_coroutines(program: Callable[..., Coroutine[Any, Any, Tensor]]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X + 1):
        LOG.clear()
        expected = [asyncio.run(program(x)), *LOG]
        LOG.clear()
        assert_same([asyncio.run(compiled(x)), *LOG], expected)


def test_a_coroutine_that_waits_for_nothing_is_one_graph() -> None:
    compiled = kiln.compile(counted, backend="eager", options={"cache": False})
    assert torch.equal(asyncio.run(compiled(X)), asyncio.run(counted(X)))
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons and report.compiles == 1
