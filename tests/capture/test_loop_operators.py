"""while_loop, map, scan and associative_scan as nested graphs: values and gradients are those of Python loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import kiln
from kiln.api import report_of

LINEAR = nn.Linear(4, 4)


def plain_while(test: Any, body: Any, state: Any) -> Any:
    while test(*state):
        state = body(*state)
    return tuple(state)


def plain_scan(combine: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    order = range(tree_leaves(xs)[0].shape[dim])
    rows = []
    for number in reversed(order) if reverse else order:
        init, row = combine(init, tree_map(lambda x, number=number: x.select(dim, number), xs))
        rows.append(row)
    columns = zip(*[tree_flatten(row)[0] for row in (rows[::-1] if reverse else rows)], strict=True)
    stacked = [torch.stack(column, dim if dim <= column[0].ndim else 0) for column in columns]
    return init, tree_unflatten(stacked, tree_flatten(rows[0])[1])


def plain_map(function: Any, xs: Any, *args: Any) -> Any:
    return plain_scan(lambda _, row: ((), function(row, *args)), (), xs)[1]


def plain_prefixes(combine: Any, xs: Tensor, dim: int, reverse: bool = False, combine_mode: str = "") -> Any:
    first = xs.select(dim, -1 if reverse else 0)
    rest = xs.narrow(dim, 0 if reverse else 1, xs.shape[dim] - 1)

    def turn(carry: Tensor, row: Tensor) -> Any:
        made = combine(carry, row)
        return made, made

    rows = plain_scan(turn, first, rest, dim=dim, reverse=reverse)[1]
    parts = [rows, first.unsqueeze(dim)] if reverse else [first.unsqueeze(dim), rows]
    return torch.cat(parts, dim)


OURS = SimpleNamespace(loop=while_loop, map=torch_map, scan=scan, prefixes=associative_scan)
PLAIN = SimpleNamespace(loop=plain_while, map=plain_map, scan=plain_scan, prefixes=plain_prefixes)


def counted(x: Tensor, do: Any) -> Any:
    return do.loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x.detach()))


def until(x: Tensor, do: Any) -> Any:
    return do.loop(lambda v: v.abs().sum() < 100, lambda v: (v * 2,), (x.detach(),))


def no_turn(x: Tensor, do: Any) -> Any:
    return do.loop(lambda i, v: i < 0, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x.detach()))


def captured(x: Tensor, do: Any) -> Any:
    with torch.no_grad():
        y = x.sin()
        return do.loop(lambda i, v: i < 3, lambda i, v: (i + 1, LINEAR(v) * y), (torch.tensor(0), x.detach()))


def swapped(x: Tensor, do: Any) -> Any:
    y = x.detach()
    return do.loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a + 1), (torch.tensor(0), y, y + 1))


def carried_views(x: Tensor, do: Any) -> Any:
    y = x.detach().t()[1:].t()
    return do.loop(lambda i, a: i < 3, lambda i, a: (i + 1, (a.t() * 2).t()), (torch.tensor(0), y))


def loop_in_loop(x: Tensor, do: Any) -> Any:
    def body(i: Tensor, v: Tensor) -> Any:
        _, u = do.loop(lambda j, u: j < 2, lambda j, u: (j + 1, u + i), (torch.tensor(0), v))
        return i + 1, u

    return do.loop(lambda i, v: i < 3, body, (torch.tensor(0), x.detach()))


def grown(x: Tensor, do: Any) -> Any:
    w = x.sin()
    return do.loop(lambda i, v: i < 3, lambda i, v: (i + 1, LINEAR(v) * w), (torch.tensor(0), x))


def until_differentiated(x: Tensor, do: Any) -> Any:
    return do.loop(lambda v: v.abs().sum() < 100, lambda v: (v * v.abs() + v * 2,), (x,))


def loop_in_loop_differentiated(x: Tensor, do: Any) -> Any:
    def body(i: Tensor, v: Tensor) -> Any:
        return i + 1, do.loop(lambda j, u: j < i + 1, lambda j, u: (j + 1, u.sin() + x), (torch.tensor(0), v))[1]

    return do.loop(lambda i, v: i < 3, body, (torch.tensor(0), x))


def mapped(x: Tensor, do: Any) -> Any:
    return do.map(lambda row, w: LINEAR(row) * w, x, x[0] * 2)


def mapped_tree(x: Tensor, do: Any) -> Any:
    return do.map(lambda row: {"a": row[0] * 2, "b": (row[1] + 1,)}, (x.t(), x[:, 0]))


def reversed_scan(x: Tensor, do: Any) -> Any:
    return do.scan(lambda c, row: (c + row, c * row), torch.zeros(x.shape[0]), x, dim=1, reverse=True)


def recurrent(x: Tensor, do: Any) -> Any:
    def turn(h: Tensor, row: Tensor) -> Any:
        h = torch.tanh(LINEAR(row) + h)
        return h, h.clone()

    return do.scan(turn, torch.zeros(4), x)


def scanned_tree(x: Tensor, do: Any) -> Any:
    def turn(c: Any, row: Any) -> Any:
        made = {"a": c["a"] * row[0].cos() + row[1], "b": c["b"] + 1}
        return made, (made["a"] * 2, row[0].sum())

    return do.scan(turn, {"a": x[0] * 1, "b": torch.tensor(0)}, (x, x * 2))


def captured_by_scan(x: Tensor, do: Any) -> Any:
    w = x[0].cos()
    return do.scan(lambda c, row: (c * w + row, (c * row * w).sum()), x[1] * 2, x)


def sums(x: Tensor, do: Any) -> Any:
    return do.prefixes(lambda a, b: a + b, x, 0, combine_mode="generic")


def products(x: Tensor, do: Any) -> Any:
    return do.prefixes(lambda a, b: a * b, x, 1, reverse=True, combine_mode="generic")


PROGRAMS = [
    counted, until, no_turn, captured, swapped, carried_views, loop_in_loop, grown, until_differentiated,
    mapped, mapped_tree, reversed_scan, recurrent, scanned_tree, captured_by_scan, sums, products,
]  # fmt: skip


def agree(program: Any, compiled: Any) -> None:
    for _ in range(2):
        x = torch.randn(4, 4, requires_grad=True)
        found, wanted = compiled(x, OURS), program(x, PLAIN)
        torch.testing.assert_close(found, wanted)
        roots = [[t for t in tree_leaves(r) if t.is_floating_point() and t.requires_grad] for r in (found, wanted)]
        if not roots[1]:
            assert not roots[0]
            continue
        inputs = [x, *LINEAR.parameters()]
        a, b = (torch.autograd.grad(sum(t.cos().sum() for t in r), inputs, allow_unused=True) for r in roots)
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Any) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    agree(program, compiled)
    assert report_of(compiled).compiles == 1


def test_native() -> None:
    def program(x: Tensor, do: Any) -> Any:
        return [
            one(x, do)
            for one in (captured, loop_in_loop, grown, mapped_tree, recurrent, scanned_tree, captured_by_scan)
        ]

    agree(program, kiln.compile(program, fullgraph=True))
    sized = kiln.compile(captured_by_scan, fullgraph=True, dynamic=True)
    for length in (4, 6, 9):
        x = torch.randn(length, 4)
        torch.testing.assert_close(sized(x, OURS), captured_by_scan(x, PLAIN))


def test_no_turn_has_the_gradient_of_a_copy() -> None:
    """torch's own gradient is that of one turn."""
    compiled = kiln.compile(lambda i, x: while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v * v), (i, x))[1])
    for turns, wanted in ((0, 1.0), (1, 6.0), (2, 108.0)):
        x = torch.full((2,), 3.0, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(torch.tensor(2 - turns), x).sum(), x, create_graph=True)
        torch.testing.assert_close(found, torch.full((2,), wanted))
        if turns:
            (second,) = torch.autograd.grad(found.sum(), x)
            torch.testing.assert_close(second, torch.full((2,), 2.0 if turns == 1 else 108.0))


def test_operators_that_graphs_call() -> None:
    """Flat arguments, values that go to every turn, and functions that are graph modules."""

    class Body(nn.Module):
        def forward(self, i: Tensor, v: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, v * by

    body = torch.fx.symbolic_trace(Body())

    def program(x: Tensor, do: Any) -> Any:
        by = x.sin()
        if do is PLAIN:
            looped = do.loop(lambda i, v: i < 2, lambda i, v: body(i, v, by), (torch.tensor(0), x))
            return looped, do.scan(lambda c, row: (c * by[0] + row, c * 2), x[0] * 1, x)
        operators = torch.ops.higher_order
        looped = operators.while_loop(lambda i, v, by: i < 2, body, (torch.tensor(0), x), (by,))
        carry, rows = operators.scan(lambda c, row, by: (c * by[0] + row, c * 2), [x[0] * 1], [x], (by,))
        return looped, (carry, rows)

    agree(program, kiln.compile(program, fullgraph=True))


def test_loops_that_are_not_nested() -> None:
    """They draw random numbers, or a loop within a loop has gradients."""
    compiled = kiln.compile(loop_in_loop_differentiated, backend="eager")
    agree(loop_in_loop_differentiated, compiled)


@pytest.mark.parametrize("kind", ["rows", "length", "leaves", "mode"])
def test_errors_are_torchs(kind: str) -> None:
    def program(x: Tensor) -> Any:
        if kind == "rows":
            return torch_map(lambda row: row * 2, x[:0])
        if kind == "length":
            return torch_map(lambda pair: pair[0] + pair[1], (x, x[:2]))
        if kind == "leaves":
            return scan(lambda c, row: (c, row), (), x)
        return associative_scan(lambda a, b: a + b, x, 0)

    x, raised = torch.ones(4, 4), list[type]()
    for run in (program, kiln.compile(program, backend="eager")):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            run(x)
        raised.append(caught.type)
    assert raised[0] is raised[1]


@pytest.mark.slow
def test_a_turn_that_returns_another_dtype() -> None:
    def program(x: Tensor) -> Any:
        return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v.double()), (torch.tensor(0), x))

    with pytest.raises(RuntimeError):
        kiln.compile(program, backend="eager")(torch.ones(4))
