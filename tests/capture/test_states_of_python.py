"""Context variables, clocks, copies, replaced `__dict__`s and hooks of subclasses: one graph, and eager's results."""

from __future__ import annotations

import contextvars
import copy
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.arange(4.0)
SCALE: contextvars.ContextVar[int] = contextvars.ContextVar("SCALE", default=3)
EMPTY: contextvars.ContextVar[Any] = contextvars.ContextVar("EMPTY")


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("extra", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


def read(x: Tensor) -> Any:
    try:
        found = EMPTY.get()
    except LookupError:
        found = "nothing"
    return x * SCALE.get(), EMPTY.get(5), found


def set_and_reset(x: Tensor) -> Tensor:
    token = SCALE.set(7)
    y = x * SCALE.get()
    SCALE.reset(token)
    return y * SCALE.get()


def made_here(x: Tensor) -> Tensor:
    own: contextvars.ContextVar[int] = contextvars.ContextVar("own", default=2)
    token = own.set(4)
    y = x * own.get()
    own.reset(token)
    return y * own.get()


def in_a_copy(x: Tensor) -> Any:
    def inner() -> Tensor:
        SCALE.set(SCALE.get() + 1)
        return x * SCALE.get()

    context = contextvars.copy_context()
    return context.run(inner), context.run(inner), SCALE.get()


def replaced(x: Tensor) -> Any:
    holder, other = Holder(1), Holder(2)
    shared = {"value": x + 1, "more": 3}
    holder.__dict__ = shared
    other.__dict__ = shared
    other.value = other.value * 2
    del other.more  # type: ignore[attr-defined]
    return holder.value, sorted(shared), vars(other) is shared, holder


def copies(x: Tensor) -> Any:
    holder, slotted = Holder([x + 1, {"a": x}]), Slotted([x])
    shallow, deep = copy.copy(holder), copy.deepcopy(holder)
    deep.value[0].add_(1)
    other = copy.deepcopy(slotted)
    again = copy.deepcopy(holder)
    return (
        shallow.value is holder.value,
        holder.value[0],
        deep.value[0],
        other.value[0],
        again.value[1]["a"],
    )


def hooked(x: Tensor) -> Any:
    class Base:
        known: list[Any] = []

        def __init_subclass__(cls, factor: int = 2, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.factor = factor  # type: ignore[attr-defined]
            Base.known.append(cls.__name__)

    class First(Base):
        pass

    class Second(First, dict[str, int], factor=5):
        pass

    return x * First.factor * Second.factor, Base.known, Second(a=1)["a"]  # type: ignore[attr-defined]


def process(x: Tensor) -> Any:
    return x + 1, os.getpid(), os.getcwd()


WHOLE = [read, set_and_reset, made_here, in_a_copy, replaced, copies, hooked, process]


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, Holder):
        assert_same(sorted(vars(got)), sorted(vars(expected)))
    else:
        assert got == expected


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X + 1):
        assert_same(compiled(x), program(x))
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons, report


def test_values_of_context_variables_are_guarded() -> None:
    compiled = kiln.compile(read, backend="eager", options={"cache": False})
    for value in (1, 2, X, "text"):
        tokens = SCALE.set(len(str(value))), EMPTY.set(value)
        assert_same(compiled(X), read(X))
        SCALE.reset(tokens[0])
        EMPTY.reset(tokens[1])
        assert_same(compiled(X), read(X))
    assert not kiln.report_of(compiled).breaks


def timed(x: Tensor) -> Any:
    begin = time.perf_counter()
    time.sleep(0.01)
    y = x + 1
    between = time.perf_counter()
    time.sleep(0.01)
    return y * 2, between - begin, time.perf_counter() - begin


def stamped(x: Tensor) -> Any:
    now = time.time()
    return x + 1, now


def test_clocks_are_read_in_their_place() -> None:
    compiled = kiln.compile(timed, backend="eager", options={"cache": False})
    for _ in range(3):
        result, first, second = compiled(X)
        torch.testing.assert_close(result, (X + 1) * 2)
        assert 0.01 <= first <= second - 0.01


class Timed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.total, self.slow = list[float](), 0.0, 0

    def forward(self, x: Tensor) -> Any:
        begin = time.perf_counter()
        y = (x @ x.T).sin()
        middle = time.perf_counter()
        z = y.exp().sum()
        self.seconds.append(middle - begin)
        self.total += time.perf_counter() - begin
        nanoseconds = time.monotonic_ns()
        return z, f"{self.total:.3f} s", nanoseconds, middle > begin


@pytest.mark.parametrize("backend", ["kiln", "eager"])
def test_clocks_between_torch_calls_are_read_in_the_graph(backend: str) -> None:
    module = Timed()
    compiled = kiln.compile(module, backend=backend, fullgraph=True, options={"cache": False})
    before, seen = 0.0, time.monotonic_ns()
    for _ in range(4):
        x = torch.randn(6, 4, requires_grad=True)
        z, text, nanoseconds, follows = compiled(x)
        z.backward()
        torch.testing.assert_close(z, (x @ x.T).sin().exp().sum())
        assert follows and 0 < module.seconds[-1] <= module.total - before < 60
        assert text == f"{module.total:.3f} s" and type(nanoseconds) is int and nanoseconds >= seen
        before, seen = module.total, nanoseconds
    assert len(module.seconds) == 4 and kiln.report_of(compiled).compiles <= 2


def test_a_clock_in_front_of_the_region_breaks_nothing() -> None:
    compiled = kiln.compile(stamped, backend="eager", options={"cache": False})
    times = [compiled(X)[1] for _ in range(3)]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 60
    report = kiln.report_of(compiled)
    assert report.compiles == 1 and not report.breaks
