"""Results that share memory, under autograd: gradients, histories and memory as eager has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Results = tuple[Tensor, ...]


def first_row(x: Tensor) -> Results:
    y = x * 2
    return y[0], y


def two_rows(x: Tensor) -> Results:
    y = x * 2
    return y[0], y[1]


def chunks(x: Tensor) -> Results:
    return (x @ x.t()).chunk(3, 1)


def turned_parts(x: Tensor) -> Results:
    y = torch.cat([x, x.exp()])
    return y[:2].t(), y[1:], y


def written_row(x: Tensor) -> Results:
    y = x * 2
    return y[0].mul_(3), y


def written_rows(x: Tensor) -> Results:
    y = x * 2
    y[0].mul_(3)
    z = y[1:]
    z.add_(x[1:])
    return z, y[:1]


def detached_first(x: Tensor) -> Results:
    y = x * 2
    return y.detach()[0], y[1], y[2]


def detached_last(x: Tensor) -> Results:
    y = x * 2
    return y, y.detach(), y.detach()[0]


def detached_part(x: Tensor) -> Results:
    y = (x * 2)[0]
    return y, y.detach()


def detached_input(x: Tensor) -> Results:
    return x.detach(), x * 2, x.view(-1)


FUNCTIONS = [
    first_row, two_rows, chunks, turned_parts, written_row, written_rows, detached_first, detached_last,
    detached_part, detached_input,
]  # fmt: skip


def gradient(results: Results, x: Tensor) -> Tensor:
    roots = [result for result in results if result.requires_grad]
    tangents = [torch.linspace(0.5, 1.5, root.numel()).reshape(root.shape) for root in roots]
    (made,) = torch.autograd.grad(roots, x, tangents)
    return made


def sharing(results: Results) -> list[int]:
    places = [result.untyped_storage().data_ptr() for result in results]
    return [places.index(place) for place in places]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager(function: Callable[..., Any]) -> None:
    ours, theirs = (torch.arange(12.0).div(12).reshape(3, 4).requires_grad_() for _ in range(2))
    actual, expected = kiln.compile(function, fullgraph=True)(ours), function(theirs)
    assert [result.requires_grad for result in actual] == [value.requires_grad for value in expected]
    assert sharing(actual) == sharing(expected)
    for result, other in zip(actual, expected, strict=True):
        assert result.stride() == other.stride()
        torch.testing.assert_close(result, other)
    torch.testing.assert_close(gradient(actual, ours), gradient(expected, theirs))


def test_a_result_that_the_loss_does_not_use() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    _, second = kiln.compile(two_rows, fullgraph=True)(x)
    second.sum().backward()
    assert x.grad is not None and x.grad.sum(1).tolist() == [0, 8, 0]


def test_a_detached_result_shares_its_version() -> None:
    x = torch.ones(3, requires_grad=True)

    def function(x: Tensor) -> Results:
        y = x.exp()
        return y, y.detach()

    y, detached = kiln.compile(function, fullgraph=True)(x)
    detached.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def overwritten(x: Tensor) -> Tensor:
    return (x * 2).fill_(3)


def overwritten_by_nothing(x: Tensor) -> Tensor:
    y = (x * 2).fill_(3)
    return y.sub_(y).fill_(2)


@pytest.mark.parametrize("function", [overwritten, overwritten_by_nothing])
def test_the_gradient_of_what_was_overwritten_is_zero(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(3, requires_grad=True)
    kiln.compile(function, fullgraph=True)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 0]


def test_an_input_whose_part_was_written_and_another_that_nothing_needs() -> None:
    def function(x: Tensor, y: Tensor) -> Results:
        z = y * 1
        z.view(-1).add_(1)
        z[0] = 0
        return x > 0, z.flatten()

    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    _, made = kiln.compile(function, fullgraph=True)(x, y)
    made.sum().backward()
    assert x.grad is None and y.grad is not None and y.grad.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_tangents_of_a_row_whose_size_changes() -> None:
    """A size that only the stride of a size-1 dimension reveals is not read from a tangent."""

    def function(x: Tensor) -> Results:
        y = torch.nn.functional.pad(x, (0, -1))
        return y * 2, y

    compiled = kiln.compile(function, fullgraph=True, dynamic=True)
    for sizes in ((6, 2), (1, 4), (1, 7)):
        x = torch.randn(sizes, requires_grad=True)
        results = compiled(x)
        tangents = [torch.ones(sizes[0], sizes[1] - 1) for _ in results]
        (made,) = torch.autograd.grad(results, x, tangents)
        assert made.tolist() == [[3.0] * (sizes[1] - 1) + [0.0]] * sizes[0]
