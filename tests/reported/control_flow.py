"""Exceptions, generators, iterators, context managers, branches and loops that depend on values."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats

PROGRAMS = Programs("control flow")
program, scenario = PROGRAMS.program, PROGRAMS.scenario


class Meter(contextlib.AbstractContextManager["Meter"]):
    """Notes when it is entered and left; swallows ValueError."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __enter__(self) -> Meter:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append("none" if kind is None else kind.__name__)
        return kind is ValueError


@program()
def an_exception_that_is_caught(x: Tensor) -> Any:
    log = []
    try:
        try:
            x = x * 2
            raise ValueError("a", 1)
        except ValueError as error:
            log.append(error.args)
            raise KeyError("b") from error
        finally:
            log.append("finally")
            x = x + 1
    except KeyError as error:
        log.append(type(error.__cause__).__name__)
    else:
        log.append("else")
    return x, log


@program()
def a_finally_that_returns(x: Tensor) -> Any:
    try:
        return x * 2
    finally:
        x.add_(1)


@program()
def a_finally_that_overrides(x: Tensor) -> Any:
    for i in range(3):
        try:
            if i == 1:
                continue
            x = x + i
            if i == 2:
                break
        finally:
            x = x * 2
    return x


@scenario
def an_exception_that_leaves(compile: Compile) -> Iterator[Any]:
    log: list[Any] = []

    def failing(x: Tensor, n: int) -> Tensor:
        log.append(n)
        x.add_(1)
        if n > 1:
            raise LookupError("too large")
        return x * n

    f = compile(failing)
    for n in (1, 2, 0, 2):
        x = floats(2)
        yield attempt(f, x, n), x, list(log)


@scenario
def an_error_of_torch_that_is_caught(compile: Compile) -> Iterator[Any]:
    def caught(x: Tensor, y: Tensor) -> Tensor:
        try:
            return x @ y
        except RuntimeError:
            return x @ y.t()

    f = compile(caught)
    for sizes in ((3, 2), (2, 3), (3, 2)):
        yield f(floats(2, 3), floats(*sizes))


@scenario
def errors_by_class(compile: Compile) -> Iterator[Any]:
    def failing(x: Tensor, n: int) -> Any:
        if n == 0:
            return x[7]
        if n == 1:
            return {}["a"]
        if n == 2:
            return x.missing
        if n == 3:
            return int("a")
        if n == 4:
            return x + "a"  # type: ignore[operator]
        if n == 5:
            return x.view(7)
        if n == 6:
            raise StopIteration
        if n == 7:
            assert x.shape[0] == 9, "size"
        if n == 8:
            return next(iter([]))
        if n == 9:
            return 1 // 0
        return [1, 2].index(3)

    f = compile(failing)
    for n in range(11):
        yield attempt(f, floats(2), n)


@program()
def a_generator(x: Tensor) -> Any:
    def parts() -> Iterator[Tensor]:
        try:
            for i in range(4):
                yield x * i
        finally:
            x.add_(1)

    g = parts()
    first = next(g)
    rest = list(itertools.islice(g, 2))
    g.close()
    return first, rest, x * 1


@program()
def a_generator_that_is_sent_values(x: Tensor) -> Any:
    def accumulate() -> Any:
        total = x * 0
        while True:
            received = yield total
            if received is None:
                return total * 10
            total = total + received

    g = accumulate()
    next(g)
    values = [g.send(x), g.send(x * 2)]
    try:
        g.send(None)
    except StopIteration as stop:
        values.append(stop.value)
    return values


@program()
def a_generator_that_delegates(x: Tensor) -> Any:
    def inner() -> Any:
        yield x
        return x + 1

    def outer() -> Any:
        result = yield from inner()
        yield result * 2

    return list(outer())


@scenario
def a_generator_from_outside(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, numbers: [x * next(numbers), x + next(numbers, 7)])
    numbers = iter(range(5))
    for _ in range(3):
        yield attempt(f, torch.ones(2), numbers)


@program()
def iterators(x: Tensor) -> Any:
    pairs = list(zip(x, range(10), strict=False))
    total = functools.reduce(operator.add, (part * i for part, i in pairs))
    return (
        total, list(itertools.chain([x], (1,))), [*itertools.product([1, 2], "ab")], list(enumerate("ab", 5)),
        list(itertools.accumulate([1, 2, 3])), any(i > 1 for i in range(3)), next(map(torch.neg, [x])),
    )  # fmt: skip


@program()
def chained_comparisons(x: Tensor) -> Any:
    n = x.shape[0]
    return 0 < n <= 5, n and "yes", n or 1, not n, n if n > 4 else -n, (n > 4) + 1, n == 4.0


@scenario
def context_managers(compile: Compile) -> Iterator[Any]:
    log: list[str] = []

    def program(x: Tensor, fail: int) -> Tensor:
        with Meter(log), Meter(log) as meter:
            meter.log.append("body")
            if fail == 1:
                raise ValueError
            if fail == 2:
                raise KeyError
            x = x * 2
        return x + 1

    f = compile(program)
    for fail in (0, 1, 2, 0):
        yield attempt(f, torch.ones(2), fail), list(log)
        log.clear()


@program()
def contextlib_managers(x: Tensor) -> Any:
    log = []

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[str]:
        log.append(name)
        try:
            yield name * 2
        finally:
            log.append("end " + name)

    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(noted(name)) for name in "ab"]
        stack.callback(log.append, "callback")
        x = x * len(names)
    with contextlib.suppress(ZeroDivisionError):
        x = x + 1 // 0
    return x, log, names


@scenario
def values_of_tensors_in_python(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Any:
        if x.sum() > 0:
            x = x * 2
        n = int(x.abs().sum().item())
        items = x.tolist()
        return x * n, n, items, bool(x[0] > 0), float(x[1]), len(x), x.argmax().item()

    f = compile(program)
    for sign in (1.0, -1.0, 1.0):
        yield f(torch.tensor([1.0, 2.5]) * sign)


@scenario
def loops_that_depend_on_values(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Any:
        steps = 0
        while x.norm() > 1:
            x = x / 2
            steps += 1
        for row in x:
            if row < 0:
                break
        else:
            steps += 100
        return x, steps

    f = compile(program)
    for scale in (1.0, 10.0, -10.0):
        yield f(torch.ones(2) * scale)


@program()
def match_statements(x: Tensor) -> Any:
    match x.shape:
        case (4, n):
            kind: Any = ("four", n)
        case (_, _):
            kind = "two"
    match {"a": 1, "b": [1, 2, 3]}:
        case {"b": [first, *rest]}:
            kind = (kind, first, rest)
    return x * 2, kind


@scenario
def recursion(compile: Compile) -> Iterator[Any]:
    def depth(x: Any, n: int) -> Any:
        return x if n == 0 else depth([x, x[0]] if isinstance(x, list) else [x], n - 1)

    def power(x: Tensor, n: int) -> Tensor:
        return torch.ones_like(x) if n == 0 else x * power(x, n - 1)

    f = compile(lambda x, n: (power(x, n), depth(x, 2)))
    for n in (0, 2, 5):
        yield f(floats(2), n)
