"""Control flow operators as nested graphs: values, gradients and errors are those of plain Python and of torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import kiln
from kiln.api import report_of

Operator = Callable[..., Any]
LINEAR = nn.Linear(4, 4)
CONSTANT = torch.tensor([1.0, 2.0, 3.0, 4.0])


def plain_cond(pred: Any, true: Operator, false: Operator, operands: Any = ()) -> Any:
    return true(*operands) if pred else false(*operands)


def containers(x: Tensor, cond: Operator) -> Any:
    w = x * 3
    return cond(x.sum() > 0, lambda v: (v * 2, {"a": LINEAR(v) + w}), lambda v: (v - 1, {"a": w.sin()}), (x,))


def nested(x: Tensor, cond: Operator) -> Any:
    def inner(v: Tensor) -> Any:
        return cond(v.max() > 1, lambda u: u.sin(), lambda u: u.cos(), (v,))

    return cond(x.sum() > 0, inner, lambda v: v - 1, (x,))


def in_place_inside(x: Tensor, cond: Operator) -> Any:
    def true(v: Tensor) -> Tensor:
        y = v.clone()
        y[1:3].add_(5)
        return y.mul_(2)

    return cond(x.sum() > 0, true, lambda v: v - 1, (x,))


def views(x: Tensor, cond: Operator) -> Any:
    y = x.repeat(2, 1)
    operands = (y[:, 1:3], y.t().expand(4, 2).t())
    return cond(x.sum() > 0, lambda v, w: v.t() @ w, lambda v, w: v.t() @ w + 1, operands)


def views_of_operands(x: Tensor, cond: Operator) -> Any:
    return cond(x.sum() > 0, lambda v: v[1:], lambda v: v[:-1], (x,))


def constants(x: Tensor, cond: Operator) -> Any:
    made = torch.tensor([1.0, 0.0, 2.0, 3.0])
    y = cond(x.sum() > 0, lambda v: v * CONSTANT + torch.tensor([1.0, 0.0, 2.0, 3.0]) + 2.5, lambda v: v * 2.5, (x,))
    return y * 2.5 + made


def other_results(x: Tensor, cond: Operator) -> Any:
    return cond(x.sum() > 0, lambda v: (v * 2, None, 3), lambda v: (v - 1, None, 3), (x,))


def one_element(x: Tensor, cond: Operator) -> Any:
    y = cond((x.sum() > 0).reshape(1, 1), lambda v: v * 2, lambda v: v - 1, (x,))
    return cond(x.sum().relu(), lambda v: v * 2, lambda v: v - 1, (y,))


def containers_of_operands(x: Tensor, cond: Operator) -> Any:
    operands = ({"a": x, "b": [x + 1]},)
    return cond(x.sum() > 0, lambda d: d["a"] * 2 + d["b"][0], lambda d: d["a"] - 1, operands)


def without_operands(x: Tensor, cond: Operator) -> Any:
    y = x * 3
    return cond(x.sum() > 0, lambda: y * 2, lambda: y - 1)


def same_result_twice(x: Tensor, cond: Operator) -> Any:
    def true(v: Tensor) -> Any:
        y = v * 2
        return y, y

    return cond(x.sum() > 0, true, lambda v: (v, v), (x,))


def modes(x: Tensor, cond: Operator) -> Any:
    def true(v: Tensor) -> Tensor:
        with torch.no_grad():
            y = v * 2
        return y + v

    return cond(x.sum() > 0, true, lambda v: (v * v).detach() + v, (x,))


def lists_inside(x: Tensor, cond: Operator) -> Any:
    def true(v: Tensor) -> Tensor:
        parts = []
        for factor in (1, 2):
            parts.append(v * factor)
        return torch.stack(parts)

    return cond(x.sum() > 0, true, lambda v: torch.stack([v, v]), (x,))


def twice(x: Tensor, cond: Operator) -> Any:
    for bound in range(2):
        x = cond(x.sum() > bound, lambda v, w: v * 2 * w, lambda v, w: v - w, (x, x.sin()))
    return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, cond: Operator) -> Any:
        return cond(x.sum() > 0, lambda v: self.a(v).relu(), lambda v: self.b(v).tanh(), (x,))


LAYERS = nn.ModuleList([Layer() for _ in range(3)])


def layers(x: Tensor, cond: Operator) -> Any:
    for layer in LAYERS:
        x = layer(x, cond)
    return x


def sizes_from_data(x: Tensor, cond: Operator) -> Any:
    return cond(x.sum() > 0, lambda v: v * v.nonzero().shape[0], lambda v: v - 1, (x,))


WHOLE = [
    containers, nested, in_place_inside, views, views_of_operands, constants, other_results, one_element,
    containers_of_operands, without_operands, same_result_twice, modes, lists_inside, twice, layers,
    sizes_from_data,
]  # fmt: skip


def outside_list(x: Tensor, cond: Operator) -> Any:
    found: list[int] = []

    def true(v: Tensor) -> Tensor:
        found.append(1)
        return v * 2

    return cond(x.sum() > 0, true, lambda v: v - 1, (x,)), len(found)


def outside_variable(x: Tensor, cond: Operator) -> Any:
    count = 0

    def true(v: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return v * 2

    return cond(x.sum() > 0, true, lambda v: v - 1, (x,)), count


class Box:
    count = 0


def outside_object(x: Tensor, cond: Operator) -> Any:
    box = Box()

    def true(v: Tensor) -> Tensor:
        box.count += 1
        return v * 2

    return cond(x.sum() > 0, true, lambda v: v - 1, (x,)), box.count


def other_constants(x: Tensor, cond: Operator) -> Any:
    return cond(x.sum() > 0, lambda v: (v * 2, 3), lambda v: (v - 1, 4), (x,))


def other_sizes(x: Tensor, cond: Operator) -> Any:
    return cond(x.sum() > 0, lambda v: v * 2, lambda v: v[:2] * 2, (x,))


def graph_break_inside(x: Tensor, cond: Operator) -> Any:
    def true(v: Tensor) -> Tensor:
        os.getcwd()
        return v * 2

    return cond(x.sum() > 0, true, lambda v: v - 1, (x,))


PLAIN = [
    outside_list, outside_variable, outside_object, other_constants, other_sizes, graph_break_inside,
]  # fmt: skip


def agree(program: Operator, operator: Operator, plain: Operator, compiled: Any, gradients: bool) -> None:
    """For inputs that take both branches."""
    parameters = [*LINEAR.parameters(), *LAYERS.parameters()]
    for seed in range(4):
        torch.manual_seed(seed)
        x = (torch.randn(4) + seed % 2 - 0.5).requires_grad_(gradients)
        found, wanted = compiled(x, operator), program(x, plain)
        torch.testing.assert_close(found, wanted)
        if gradients:
            roots, expected = ([t for t in tree_leaves(r) if isinstance(t, Tensor)] for r in (found, wanted))
            pairs = [pair for pair in zip(roots, expected, strict=True) if pair[1].requires_grad]
            gradients_of = [backward([pair[side] for pair in pairs], [x, *parameters]) for side in (0, 1)]
            for a, b in zip(*gradients_of, strict=True):
                # A parameter of the branch that is not taken has zeros, as with torch.cond.
                torch.testing.assert_close(a, torch.zeros_like(a) if b is None and a is not None else b)


def backward(roots: list[Tensor], inputs: list[Any]) -> Any:
    return torch.autograd.grad([root.cos().sum() for root in roots], inputs, allow_unused=True)


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_one_graph(program: Operator, gradients: bool) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    agree(program, torch.cond, plain_cond, compiled, gradients)
    assert report_of(compiled).compiles == 1


@pytest.mark.parametrize("program", PLAIN, ids=lambda program: program.__name__)
def test_plain_python_where_a_branch_cannot_be_a_graph(program: Operator) -> None:
    compiled = kiln.compile(program, backend="eager")
    agree(program, torch.cond, plain_cond, compiled, False)
    assert report_of(compiled).eager == 0


def test_native() -> None:
    """One region with gradients, for sizes that change."""

    def program(x: Tensor, cond: Operator) -> Any:
        return [layers(x, cond), containers(x, cond), twice(x, cond)]

    compiled = kiln.compile(program, fullgraph=True)
    agree(program, torch.cond, plain_cond, compiled, True)
    agree(program, torch.cond, plain_cond, compiled, False)

    def sized(x: Tensor, cond: Operator) -> Any:
        return cond(x.sum() > 0, lambda v: v * v.shape[0], lambda v: v.flip(0) - v.shape[0], (x,))

    compiled = kiln.compile(sized, fullgraph=True, dynamic=True)
    for size in (4, 6, 8):
        for sign in (1, -1):
            x = sign * torch.rand(size)
            torch.testing.assert_close(compiled(x, torch.cond), sized(x, plain_cond))


def wrong(x: Tensor, kind: str) -> Any:
    p = x.sum() > 0
    if kind == "dtype":
        return torch.cond(p, lambda v: v * 2, lambda v: v.double() * 2, (x,))
    if kind == "rank":
        return torch.cond(p, lambda v: v.sum(), lambda v: v + 1, (x,))
    if kind == "count":
        return torch.cond(p, lambda v: (v + 1, v * 2), lambda v: (v + 1,), (x,))
    if kind == "mutation":
        return torch.cond(p, lambda v: v.add_(1) * 2, lambda v: v - 1, (x * 1,))
    if kind == "predicate":
        return torch.cond(x > 0, lambda v: v + 1, lambda v: v - 1, (x,))
    if kind == "none":
        return torch.cond(None, lambda v: v + 1, lambda v: v - 1, (x,))
    if kind == "callable":
        return torch.cond(p, 3, lambda v: v - 1, (x,))
    return torch.cond(p, lambda v: v + 1, lambda v: v - 1, x if kind == "operands" else (x, 3))


TRACED = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("dtype", "rank", "count", "mutation")]
"""Errors that torch finds while it traces, for which it imports its compiler."""
KINDS = [*TRACED, "predicate", "none", "callable", "operands", "number"]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_torchs(kind: str) -> None:
    with pytest.raises(RuntimeError):
        kiln.compile(wrong, backend="eager")(torch.ones(4), kind)


def test_a_branch_may_change_its_operands_without_gradients() -> None:
    def program(x: Tensor, cond: Operator) -> Any:
        y = x * 1
        with torch.no_grad():
            z = cond(x.sum() > 0, lambda v: v.add_(1) * 2, lambda v: v - 1, (y,))
        return y, z

    agree(program, torch.cond, plain_cond, kiln.compile(program, backend="eager"), False)


def test_graphs_that_torch_compile_hands_over() -> None:
    """Their branches are graph modules."""

    class Double(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v * 2

    class Less(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return v - 1

    true, false = torch.fx.symbolic_trace(Double()), torch.fx.symbolic_trace(Less())

    def program(x: Tensor, cond: Operator) -> Any:
        return cond(x.sum() > 0, true, false, (x,)) + 1

    agree(
        program, torch.ops.higher_order.cond, plain_cond, kiln.compile(program, backend="eager", fullgraph=True), False
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_numbers_from_outside_that_change(backend: str) -> None:
    def program(q: Tensor, x: Tensor, w: Tensor, s: float) -> Tensor:
        return torch.cond(q, lambda v: v * s + w.shape[0], lambda v: v + s, (x,))

    compiled = kiln.compile(program, backend=backend, fullgraph=True, options={"cache": False})
    for s, rows in ((2, 3), (3, 4), (4, 5), (0.5, 5), (1.5, 6), (2.5, 7)):
        for q in (True, False):
            expected = torch.ones(2) * s + rows if q else torch.ones(2) + s
            torch.testing.assert_close(compiled(torch.tensor(q), torch.ones(2), torch.ones(rows), s), expected)
