"""Gradients of compiled functions whose number or order differs from that of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def check(function, *inputs: Tensor) -> None:
    """Values and gradients of `function`, compiled and eager."""
    copies = [[item.detach().clone().requires_grad_(item.requires_grad) for item in inputs] for _ in range(2)]
    results = [
        made(*given) for made, given in zip((kiln.compile(function, fullgraph=True), function), copies, strict=True)
    ]
    for result in results:
        result.backward()
    torch.testing.assert_close(*results)
    for mine, theirs in zip(*copies, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_one_tensor_is_the_gradient_of_several_inputs() -> None:
    """Inputs without a gradient stand in between, so that gradients and inputs are counted differently."""

    def f(x: Tensor, a: Tensor, scale: Tensor, b: Tensor) -> Tensor:
        return (((x + a) + (x + b)).tanh() * scale).sum()

    check(f, torch.randn(3, 4), torch.randn(4, requires_grad=True), torch.randn(4), torch.randn(4, requires_grad=True))


def gradients(function: Any, inputs: Sequence[Tensor], pick: Callable[[Any], Tensor]) -> list[Tensor | None]:
    for given in inputs:
        given.grad = None
    pick(function(*inputs)).backward()
    return [given.grad for given in inputs]


def two_results(x: Tensor, w: Tensor, pooler: Tensor) -> tuple[Tensor, Tensor]:
    """As in BERT: the second result has a parameter of its own."""
    hidden = torch.tanh(x @ w)
    return hidden, torch.sigmoid(hidden[:, 0] * pooler)


def mixed(x: Tensor, w: Tensor, pooler: Tensor) -> tuple[Tensor, ...]:
    """Gradients combined by other ops than sums, and a gradient that is the tangent itself."""
    a, b = (x * w).chunk(2)
    c = torch.cat([a * pooler, b])
    return a, c.cumsum(0), x + pooler, w - c[:4]


# fmt: off
PICKS = {
    "first":  lambda results: results[0].square().sum(),
    "last":   lambda results: results[-1].square().sum(),
    "both":   lambda results: results[0].sum() + results[-1].square().sum(),
    "middle": lambda results: results[len(results) // 2].square().sum(),
}
# fmt: on


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("function", [two_results, mixed])
def test_results_that_the_loss_does_not_use_give_no_gradient(function: Any, pick: str) -> None:
    """None as in eager, not zeros."""
    inputs = [torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    inputs.append(torch.randn(4, requires_grad=True))
    if function is mixed:
        inputs[2] = torch.randn(2, 4, requires_grad=True)[:1].detach().requires_grad_()
    compiled = kiln.compile(function, fullgraph=True)
    expected = gradients(function, inputs, PICKS[pick])
    for got, wanted in zip(gradients(compiled, inputs, PICKS[pick]), expected, strict=True):
        assert (got is None) == (wanted is None)
        torch.testing.assert_close(got, wanted)


def test_infinite_values_of_unused_results_do_not_reach_gradients() -> None:
    """With zeros for missing tangents they would become NaN."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.sqrt(x)

    x = torch.zeros(3, requires_grad=True)
    (gradient,) = gradients(kiln.compile(function, fullgraph=True), [x], lambda results: results[0].sum())
    assert gradient is not None and gradient.tolist() == [2.0] * 3


def test_no_tangent_at_all() -> None:
    """A later node may run backward and return no gradient."""

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return None

    x = torch.randn(3, requires_grad=True)
    y = kiln.compile(lambda x: torch.sin(x) * 2, fullgraph=True)(x)
    Nothing.apply(y).sum().backward()
    assert x.grad is None


def test_equal_backward_graphs_of_different_inputs(tmp_path: Path) -> None:
    """They are stored apart: their gradients belong to different inputs."""

    def first(b: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            shift = w * w
        return b.mul_(1.0).add_(shift)

    def second(w: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            shift = w * w
        return b.mul_(1.0).add_(shift)

    for function in (first, second):
        w, start = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        given = (start * 1, w) if function is first else (w, start * 1)
        kiln.compile(function, options={"cache_dir": str(tmp_path)})(*given).sum().backward()
        assert w.grad is None and start.grad is not None and start.grad.tolist() == [1.0, 1.0]


def test_an_input_that_only_the_backward_reads() -> None:
    """The forward of indexing a tensor of rank 0 does not read the index."""

    def f(index: Tensor, x: Tensor, y: Tensor) -> Tensor:
        y.mul_(2.0)
        return (torch.index_select(x, 0, index) * y).sum()

    check(f, torch.tensor([0]), torch.randn((), requires_grad=True), torch.randn(3))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.t(), lambda x: x.view(-1), lambda x: x.view(2, 3, 4).transpose(0, 2), lambda x: x[None].mT],
)
def test_the_gradient_of_a_view_is_a_view_where_eagers_is(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    result = kiln.compile(function)(x)
    assert result._base is x
    tangent = torch.randn(result.shape)
    (gradient,) = torch.autograd.grad(result, x, tangent)
    (expected,) = torch.autograd.grad(function(x), x, tangent)
    assert torch.equal(gradient, expected)
    assert (gradient.data_ptr() == tangent.data_ptr()) == (expected.data_ptr() == tangent.data_ptr())
