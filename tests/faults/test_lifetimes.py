"""Compiled code kept objects alive that eager frees: arguments, and parameters that the program replaced."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.cache = [torch.ones(8)]
        self.table = {"x": torch.ones(8)}
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return torch.relu(self.a(x) + self.cache[0] + self.table["x"]).exp() @ self.b.weight


Watched = list["weakref.ref[Any]"]
Run = Callable[[Tensor], Tensor]


def watch(*things: object) -> Watched:
    return [weakref.ref(thing) for thing in things]


def inference(run: Run, net: Net) -> Watched:
    x = torch.randn(4, 8)
    with torch.no_grad():
        return watch(x, run(x))


def training(run: Run, net: Net) -> Watched:
    x = torch.randn(4, 8)
    y = run(x)
    loss = y.sum()
    loss.backward()
    watched = watch(x, y, loss, *[p.grad for p in net.parameters() if p.grad is not None])
    net.zero_grad(set_to_none=True)
    return watched


def no_backward(run: Run, net: Net) -> Watched:
    x = torch.randn(4, 8, requires_grad=True)
    return watch(x, run(x))


def retained_graph(run: Run, net: Net) -> Watched:
    x = torch.randn(4, 8, requires_grad=True)
    y = run(x)
    y.sum().backward(retain_graph=True)
    return watch(x, y, x.grad)


def replaced_parameter(run: Run, net: Net) -> Watched:
    run(torch.randn(4, 8))
    watched = watch(net.a.weight, net.b, net.cache[0], net.table["x"], net.count)
    net.a.weight = nn.Parameter(torch.ones(8, 8))
    net.b = nn.Linear(8, 8)
    net.cache[0] = net.table["x"] = net.count = torch.zeros(8)
    return watched


def raised_by(call: Callable[[], object]) -> Exception | None:
    """The exception, without the frames of its traceback."""
    try:
        call()
    except Exception as error:
        return error.with_traceback(None)
    return None


def error(run: Run, net: Net) -> Watched:
    bad = torch.randn(4, 9)
    assert isinstance(raised_by(lambda: run(bad)), RuntimeError)
    return watch(bad)


def error_in_a_hook(run: Run, net: Net) -> Watched:
    x = torch.randn(4, 8)
    y = run(x)
    handle = net.a.weight.register_hook(lambda grad: 1 / 0)  # type: ignore[no-untyped-call]
    assert isinstance(raised_by(y.sum().backward), ZeroDivisionError)
    handle.remove()
    return watch(x, y)


def caught_at_a_break(x: Tensor) -> Tensor:
    try:
        return x[7]
    except IndexError:
        return x + 1


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


PROGRAMS = [inference, training, no_backward, retained_graph, replaced_parameter, error, error_in_a_hook]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_eager_frees_is_freed(program: Callable[[Run, Net], Watched], no_collection: None) -> None:
    """At once, without the cycle collector."""
    net = Net()
    expected = [thing() is None for thing in program(net, net)]
    assert all(expected)
    compiled = kiln.compile(net)
    for _ in range(3):
        assert [thing() is None for thing in program(compiled, net)] == expected


def test_an_exception_that_is_caught_behind_a_break(no_collection: None) -> None:
    """The code in front of the break kept it, and so its traceback and itself, in a local."""
    compiled = kiln.compile(caught_at_a_break)
    for _ in range(3):
        x = torch.ones(4, 3)
        compiled(x)
        gone = weakref.ref(x)
        del x
        assert gone() is None


def branch(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if y.sum() > 1000:
        y = y * 2
    return y


def hook(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.register_hook(lambda grad: grad * w)
    return y.sin()


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x.cos()


def function(x: Tensor, w: Tensor) -> Tensor:
    return Sine.apply(x * w)  # type: ignore[no-any-return]


def gradient_inside(x: Tensor, w: Tensor) -> Tensor:
    y = function(x, w) * w
    return torch.autograd.grad(y.sum(), w, create_graph=True)[0] + w


def saved_hooks(x: Tensor, w: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda y: y.clone(), lambda y: y):
        return (x * w).sin() * w


def generator(x: Tensor, w: Tensor) -> Tensor:
    def products() -> Iterator[Tensor]:
        for factor in range(3):
            yield x * w * factor

    return sum(products(), w)


def transform(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda row: row * w)(x)


PROGRAMS_OF_COMPILES = [branch, hook, function, gradient_inside, saved_hooks, generator, transform]


@pytest.mark.parametrize("program", PROGRAMS_OF_COMPILES)
@pytest.mark.parametrize("asked", [True, False])
def test_a_compile_keeps_nothing_alive(
    program: Callable[[Tensor, Tensor], Tensor], asked: bool, no_collection: None
) -> None:
    """The graph of autograd behind fakes called the recording, by way of C++, where the collector finds no cycle."""
    compiled = kiln.compile(program)
    x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    y = compiled(x, w)
    if asked:
        y.sum().backward()
    watched = watch(x, w, y)
    del x, w, y
    assert all(thing() is None for thing in watched)


class State:
    """What `called` reads, a global variable."""

    function: Callable[[Tensor], Tensor]


STATE = State()


def inner_function() -> Callable[[Tensor], Tensor]:
    weight = torch.ones(3)
    return lambda x: x * weight


def called(x: Tensor) -> Tensor:
    return STATE.function(x)


@pytest.mark.parametrize("make", [inner_function, lambda: functools.partial(inner_function())])
def test_a_function_among_the_globals_is_freed(
    make: Callable[[], Callable[[Tensor], Tensor]], no_collection: None
) -> None:
    """What the capture had read of the globals led back to them."""
    compiled = kiln.compile(called, backend="eager")
    STATE.function = make()
    compiled(torch.ones(3))
    gone = weakref.ref(STATE.function)
    del STATE.function
    assert gone() is None


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_compiled_module_is_freed(calls: int, no_collection: None) -> None:
    """Its class, which is part of a cycle as every class, kept the session and the module."""
    net = Net()
    compiled = kiln.compile(net)
    for _ in range(calls):
        compiled(torch.randn(4, 8)).sum().backward()
    watched = watch(net, compiled, net.a.weight)
    del net, compiled
    assert all(thing() is None for thing in watched)


def test_a_module_that_changed_its_class_is_freed(no_collection: None) -> None:
    class Other(Net):
        pass

    net = Net()
    compiled = kiln.compile(net)
    compiled(torch.randn(4, 8))
    net.__class__ = Other
    compiled(torch.randn(4, 8))
    assert isinstance(compiled, Other)
    watched = watch(net, compiled)
    del net, compiled
    assert all(thing() is None for thing in watched)
