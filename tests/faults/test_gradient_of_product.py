"""The gradient of a product that has zeros, NaN or infinite elements is that of eager, as is the second one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln

NAN, INF = float("nan"), float("inf")
ROWS = [
    *([1.0, 2.0, 3.0], [NAN, 0.0, 0.0], [NAN, 1.0, 2.0], [NAN, 0.0, 1.0], [0.0, 0.0, INF], [0.0, INF, -2.0]),
    *([2.0, 0.0, 3.0], [2.0, 3.0, 0.0], [0.0, 3.0, 0.0], [2.0, NAN, 0.0], [INF, 0.0, 1.0], [2.0, 0.0, INF]),
    *([0.0, 0.0, 3.0], [-0.0, 2.0, -3.0], [INF, 2.0, 0.5], [0.0, INF, 0.0], [0.0, NAN, 0.0]),
]
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x.prod(),
    "of rows": lambda x: torch.prod(x, 1).sum(),
    "running in rows": lambda x: (x.cumprod(-1) * torch.arange(1, x.shape[1] + 1)).sum(),
    "running in columns": lambda x: torch.cumprod(x, dim=0, dtype=torch.float64).sin().sum(),
    "of columns, kept": lambda x: x.prod(dim=0, keepdim=True, dtype=torch.float64).sum(),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_gradient_of_a_product(name: str, dynamic: bool | None) -> None:
    if name == "running in columns" and torch.__version__.startswith("2.11."):
        pytest.skip("eager's own gradient of a running product with another dtype raises")
    program = PROGRAMS[name]
    compiled = kiln.compile(program, dynamic=dynamic)
    for rows in (*[[row] for row in ROWS], *[[row, [1.0, -2.0, 3.0]] for row in ROWS]):
        x = torch.tensor(rows, requires_grad=True)
        [expected], [found] = torch.autograd.grad(program(x), x), torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_second_gradient() -> None:
    def program(x: Tensor) -> Tensor:
        products = x.prod() + x.prod(0).sum() + x.cumprod(1).sum()
        [grad] = torch.autograd.grad(products, x, create_graph=True)
        return (grad * grad).sum()

    compiled = kiln.compile(program, fullgraph=True)
    for rows in ([[1.0, 2.0], [3.0, 4.0]], [[0.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [3.0, 4.0]]):
        x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x), x), torch.autograd.grad(program(x), x), equal_nan=True
        )


def test_the_gradient_of_a_running_product_in_float64() -> None:
    """Each row by the definition: the derivative of each product is the product of the other elements."""
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (200, 7)).double()
    given = torch.randn(200, 7, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for end in range(7):
        for at in range(end + 1):
            others = torch.cat([x[:, :at], x[:, at + 1 : end + 1]], 1).prod(1)
            expected[:, at] += given[:, end] * others
    x.requires_grad_()
    [found] = torch.autograd.grad(kiln.compile(lambda x: x.cumprod(1))(x), x, given)
    torch.testing.assert_close(found, expected)


def test_the_gradient_of_a_running_product_of_a_selection() -> None:
    compiled = kiln.compile(lambda x: x[x > 0].cumprod(0).sum(), fullgraph=True)
    for size in (5, 7, 9):
        x = torch.randn(size, requires_grad=True)
        [expected] = torch.autograd.grad(x[x > 0].cumprod(0).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], expected)
