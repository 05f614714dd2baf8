"""Gradients of results of a region, some computed from others: hooks, `retain_grad`, `torch.autograd.grad`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_same

Program = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
Scenario = Callable[[tuple[Tensor, ...], Tensor, Tensor, list[Any]], object]


def chain(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x * w
    z = h.exp()
    return h, z, (z * h).sin()


def backwards(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h, z, last = chain(x, w)
    return last, z, h


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a, b = x.exp(), w.sin()
    return a, a * x, b * w


def features(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The first is a view of a tensor that is no result."""
    f = (x * w).view(2, 3).flatten()
    return f, f.view(3, 2) @ w[:2], f * w


def view_of_input(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    v = x.view(3, 2)
    return v, v.exp().view(-1) * w, (x * w).sqrt()


def at_zero(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the second with respect to the first is infinite at an element."""
    h = x - x.detach()[0]
    s = h.sqrt()
    return h, s, s + h * w


def parts(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a, b = (x * w).split(3)
    return a, b, a * b


def view_before_base(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x * w
    return h.t(), h, (h * w).sin()


PROGRAMS = (chain, backwards, apart, features, view_of_input, at_zero, parts, view_before_base)


def total(results: tuple[Tensor, ...], *numbers: int) -> Tensor:
    return sum((results[number] ** 2).sum() for number in numbers or range(len(results)))  # type: ignore[return-value]


def hook(first: int, *wanted: int) -> Scenario:
    # Eager calls a hook on one of several results of an operator with None, if another has a gradient.
    def scenario(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
        results[first].register_hook(lambda grad: None if grad is None else seen.append(grad.clone()))
        return total(results, *wanted).backward()

    return scenario


def changing_hooks(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    for result in results:
        result.register_hook(lambda grad: grad * 2)
    return total(results).backward()


def retained(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    for result in results:
        result.retain_grad()
    total(results).backward(retain_graph=True)
    seen += [result.grad.clone() for result in results]  # type: ignore[union-attr]
    total(results, 2).backward()
    return [result.grad for result in results]


def grad(of: int, *wanted: int) -> Scenario:
    def scenario(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
        inputs = [results[number] for number in wanted]
        return torch.autograd.grad(total(results, of), [*inputs, x], allow_unused=True)

    return scenario


def one_after_the_other(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    """As a training loop by hand: the gradient of a hidden value, then that of the inputs for it."""
    hidden = torch.autograd.grad(total(results, 2), results[1], retain_graph=True, allow_unused=True)[0]
    return hidden, torch.autograd.grad(results[1], [x, w], None if hidden is None else 2 * hidden)


def unused(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    return torch.autograd.grad(total(results, 0), results[1])


def backward_to(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    total(results, 1, 2).backward(inputs=[results[0], w])
    return results[0].grad


def from_one(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    """The engine begins at the node of a result itself."""
    results[0].retain_grad()
    results[1].backward(torch.ones_like(results[1]), retain_graph=True)
    ones = torch.ones_like(results[2])
    return results[0].grad, torch.autograd.grad(results[2], [results[0], x], ones, allow_unused=True)


def second(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    (gradient,) = torch.autograd.grad(total(results), results[0], create_graph=True)
    gradient.sum().backward()
    return gradient


def second_of_result(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    """A gradient between results has a path back to the result, not only to the inputs."""
    (gradient,) = torch.autograd.grad(total(results, 2), results[0], create_graph=True, allow_unused=True)
    if gradient is None:
        return None
    wanted = [results[0], x, w]
    return gradient, torch.autograd.grad((gradient**2).sum(), wanted, retain_graph=True, allow_unused=True)


def penalty(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    gradients = torch.autograd.grad(total(results, 2), results[:2], create_graph=True, allow_unused=True)
    return (total(results) + sum((grad**2).sum() for grad in gradients if grad is not None)).backward()  # type: ignore[no-untyped-call]


def freed(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    results[0].retain_grad()
    total(results, 1).backward()
    total(results, 1).backward()
    return None


def hook_of_node(results: tuple[Tensor, ...], x: Tensor, w: Tensor, seen: list[Any]) -> object:
    for result in results[:1]:
        result.grad_fn.register_prehook(lambda grads: seen.append(grads[0].clone()))  # type: ignore[union-attr]
    return total(results, 1, 2).backward()


SCENARIOS: dict[str, Scenario] = {
    **{f"hook {first}, {wanted or 'all'}": hook(first, *wanted) for first in range(3) for wanted in ((), (1, 2), (0,))},
    **{f"grad {of} {wanted}": grad(of, *wanted) for of, *wanted in ((2, 0), (2, 1), (2, 0, 1), (1, 0), (0, 1))},
    "changing hooks": changing_hooks,
    "retained": retained,
    "one after the other": one_after_the_other,
    "unused": unused,
    "backward to": backward_to,
    "from one": from_one,
    "second": second,
    "second of a result": second_of_result,
    "penalty": penalty,
    "freed": freed,
    "hook of a node": hook_of_node,
}


def observed(function: Program, scenario: Scenario) -> list[Any]:
    x = torch.linspace(0.5, 2, 6, dtype=torch.float64).requires_grad_()
    w = torch.linspace(1, 2, 6, dtype=torch.float64).requires_grad_()
    torch.manual_seed(0)
    seen: list[Any] = []
    try:
        found: object = scenario(function(x, w), x, w, seen)
    except RuntimeError as error:
        found = str(error)[:40]
    return [found, seen, x.grad, w.grad]


@pytest.mark.filterwarnings("error:.*runs eager")
@pytest.mark.parametrize("backend", ["kiln", "eager"])
def test_gradients_between_results(backend: str) -> None:
    for program in PROGRAMS:
        if backend == "kiln" or program is chain:
            compiled = kiln.compile(program, backend=backend)
            for name, scenario in SCENARIOS.items():
                try:
                    assert_same(observed(compiled, scenario), observed(program, scenario))
                except AssertionError as error:
                    raise AssertionError(f"{program.__name__}: {name}") from error


def test_random_numbers_are_those_of_the_forward() -> None:
    @kiln.compile
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.nn.functional.dropout(x * 2, 0.5)
        return h, h.exp()

    x = torch.linspace(1, 2, 50, requires_grad=True)
    h, z = program(x)
    h.retain_grad()
    (h.sum() + z.sum()).backward()
    torch.testing.assert_close(h.grad, 1 + z.detach())
    torch.testing.assert_close(x.grad, torch.where(h == 0, 0, 4 * (1 + z.detach())))


def test_a_hook_in_a_second_backward_is_refused() -> None:
    """It would be called again, by the graph of the gradient, which a region makes of a copy."""
    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    results = kiln.compile(chain)(x, w)
    results[0].register_hook(lambda grad: grad * 2)
    with pytest.raises(RuntimeError, match="KILN4017"):
        torch.autograd.grad(total(results), x, create_graph=True)


def test_what_a_region_saved_is_freed() -> None:
    """The values of a backward that ends at a result die with it."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        return h, h.sin()

    x = torch.ones(3, requires_grad=True)
    h, z = kiln.compile(program)(x)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(z.sum(), h, retain_graph=True)
        assert torch.equal(gradient, h.cos())
    kept = weakref.ref(x)
    del x, h, z
    assert kept() is None


GRADIENTS_FROM_BEFORE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "of a leaf": lambda x, y: torch.autograd.grad((x * y).sum(), x),
    "of an unused leaf": lambda x, y: torch.autograd.grad(y.sum(), x, allow_unused=True),
    "of both": lambda x, y: torch.autograd.grad((x * y).sum(), (x, y)),
    "by name": lambda x, y: torch.autograd.grad((x * y).sum(), {"x": x}),
    "create_graph": lambda x, y: torch.autograd.grad((x * y).sum(), x, create_graph=True),
    "backward": lambda x, y: ((x * y).sum().backward(inputs=[x]), x.grad),  # type: ignore[func-returns-value]
    "of the result before": lambda x, y: torch.autograd.grad((x * y).sum(), y),
}


@pytest.mark.parametrize("inside", ["grad", "backward"])
def test_two_arguments_that_become_one(inside: str) -> None:
    """The gradient of a tensor that is both arguments is the sum of both."""

    def program(x: torch.Tensor, y: torch.Tensor) -> object:
        z = (x * y.sum()).sum()
        return torch.autograd.grad(z, x) if inside == "grad" else (z.backward(), x.grad)  # type: ignore[func-returns-value]

    compiled = kiln.compile(program)
    for same in (False, True, False):
        results = []
        for function in (program, compiled):
            x, y = (torch.tensor([0.5, 1.0], requires_grad=True) for _ in range(2))
            results.append((function(x, x if same else y), x.grad, y.grad))
        assert_same(results[1], results[0])


@pytest.mark.parametrize("name", GRADIENTS_FROM_BEFORE)
def test_gradients_through_what_was_computed_before(name: str) -> None:
    """An argument was computed from the one whose gradient is asked for, in front of the region."""
    program = GRADIENTS_FROM_BEFORE[name]
    if name == "by name" and torch.__version__ < "2.13":
        pytest.skip("torch.autograd.grad takes no dict yet")
    results = []
    for function in (program, kiln.compile(program)):
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        results.append(function(x, x.exp()))
    assert_same(results[1], results[0])


def test_a_compile_leaves_the_numbers_of_hooks() -> None:
    """A hook of a module that is there for one call: the guard on the number of its handle holds."""
    module = torch.nn.Linear(4, 4)

    def program(x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = module.register_forward_hook(lambda *given: seen.append(given[-1]))
        module(x)
        handle.remove()
        return seen[0] * 2

    compiled = kiln.compile(program, options={"cache": False})
    for size in (3, 4, 3):
        x = torch.randn(size, 4)
        assert_same(compiled(x), program(x))
    assert not compiled.report().eager and not compiled.report().breaks, compiled.report()


def views_of_views(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    part = y[:2]
    turned = part.t()
    return part, turned, turned[1:], turned.exp()


def views_of_an_argument(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    part = x[:2]
    turned = part.t()
    return turned, part, turned.reshape(2, 2), w * turned[0]


@pytest.mark.parametrize("program", [views_of_views, views_of_an_argument])
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_views_of_views(program: Program, dynamic: bool | None) -> None:
    """A view was rebuilt from the memory of all, not from the view of which it was made."""
    compiled = kiln.compile(program, dynamic=dynamic)
    found = []
    for function in (program, compiled):
        x = torch.arange(6.0).reshape(3, 2).requires_grad_()
        results = function(x * 1, torch.ones(2))
        gradients = [
            torch.autograd.grad((result * result).sum(), other, retain_graph=True, allow_unused=True)[0]
            for result in results
            for other in (*results, x)
        ]
        results[0].mul_(2)
        found.append((gradients, *torch.autograd.grad(results[1].sum(), [x, results[0]], allow_unused=True)))
    assert_same(found[1], found[0])


def test_two_arguments_that_are_changed_in_place() -> None:
    """Each gets the gradient of its own new value."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        b.mul_(3)
        return a.sum() + b.sum()

    compiled = kiln.compile(program)
    for _ in range(2):
        left: list[list[Tensor]] = []
        for function in (program, compiled):
            x, y = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
            a, b = x * 1, y * 1
            function(a, b)
            left.append([*torch.autograd.grad((a * a).sum() + (b * b * 5).sum(), (x, y)), a.detach(), b.detach()])
        assert all(map(torch.equal, *left))
