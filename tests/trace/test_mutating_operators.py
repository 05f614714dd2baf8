"""Operators of the program that write to their arguments: called on copies, which are the new values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import kiln
from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.support.errors import KilnError
from tests.capture.idioms.outcome import outcome, same
from tests.trace.harness import trace

LIBRARY = torch.library.Library("kilnmutating", "FRAGMENT")
LIBRARY.define("scale_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
LIBRARY.impl("scale_", lambda x, y: x.mul_(y), "CompositeExplicitAutograd")
LIBRARY.define("triple(Tensor x, *, Tensor(a!) out) -> ()")


def triple(x: torch.Tensor, *, out: torch.Tensor) -> None:
    out.copy_(x * 3)


LIBRARY.impl("triple", triple, "CompositeExplicitAutograd")
scale_, into = torch.ops.kilnmutating.scale_, torch.ops.kilnmutating.triple


@torch.library.custom_op("kilnmutating::add_to_all", mutates_args={"outs", "count"})
def add_to_all(outs: Sequence[torch.Tensor], x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    for out in outs:
        out.add_(x)
    count.add_(1)
    return x.sum()


@add_to_all.register_fake
def _(outs, x, count):
    return x.new_empty(())


def lists(a, x):
    outs = [torch.zeros(3), a]
    count = torch.zeros((), dtype=torch.int64)
    total = add_to_all(outs, x, count)
    return outs[0] * 2, outs[1] + total, count


def returns_its_argument(a, x):
    b = x.clone()
    result = scale_(b, x)
    return result * 1, result is b, a


def named(a, x):
    out = torch.empty(3)
    into(x, out=out)
    return out + a


def through_a_view(a, x):
    cache = torch.ones(3, 4)
    scale_(cache[:, 1], x)
    return cache.sum(1) + a


def an_input(a, x):
    scale_(a, x)
    return a * 2


def the_same_value_twice(a, x):
    left, right = x * 2, x * 2
    scale_(left, right)
    return left, right + a


FUNCTIONS: list[Callable[..., Any]] = [
    *(lists, returns_its_argument, named, through_a_view, an_input, the_same_value_twice),
]


@pytest.mark.parametrize("backend", ["eager", None])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_is_in_the_graph(function: Callable[..., Any], backend: str | None) -> None:
    chosen = {} if backend is None else {"backend": backend}
    compiled = kiln.compile(function, options={"cache": False}, **chosen)
    for seed in range(2):
        torch.manual_seed(seed)
        args = torch.randn(3), torch.randn(3)
        copies = tuple([arg.clone() for arg in args])
        assert same(outcome(function, args), outcome(compiled, copies))
    assert compiled.report().regions == 1
    assert not compiled.report().breaks


def test_shared_memory_breaks() -> None:
    """The operator could read what it writes."""

    def function(x):
        scale_(x[:2], x[1:])
        return x * 1

    compiled = kiln.compile(function, backend="eager", options={"cache": False})
    assert same(outcome(function, (torch.arange(3.0),)), outcome(compiled, (torch.arange(3.0),)))
    assert [found.code for found in compiled.report().breaks] == ["KILN1006"]


def computes_and_writes(x, y):
    made = scale_(x.clone(), y) + 1
    into(y, out=x)
    return made


def test_text_and_fx_view_of_the_call() -> None:
    found = trace(computes_and_writes, [torch.ones(3), torch.arange(3.0)]).trace.graph
    text = graph_text(found)
    assert "opaque kilnmutating.scale_.default" in text
    assert graph_text(parse_graph(text)) == text
    x, y = torch.ones(3), torch.arange(3.0)
    results = fx_view(found, {})(x, y)
    assert torch.equal(results[0], y + 1) and torch.equal(results[-1], y * 3) and torch.equal(x, torch.ones(3))


@torch.library.custom_op("kilnmutating::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def test_a_size_that_only_the_operator_knows_has_a_reason() -> None:
    x = torch.arange(-2.0, 3.0)
    with pytest.raises(
        KilnError, match=r"the sizes of the result of `kilnmutating.positive.default` depend on the values"
    ):
        kiln.export(lambda x: positive(x) * 2, (x,))
    torch.testing.assert_close(kiln.compile(lambda x: positive(x) * 2)(x), torch.tensor([2.0, 4.0]))
