"""Sparse tensors as arguments: products with them are in the graph, all else breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import kiln

Program = Callable[[Tensor, Tensor], Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
KINDS = ("coalesced", "uncoalesced", "csr")


def matrix(rows: int, elements: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(rows + elements)
    places = torch.randint(0, rows, (2, elements), generator=generator)
    made = torch.sparse_coo_tensor(places, torch.rand(elements, generator=generator), (rows, rows))
    made = made if kind == "uncoalesced" else made.coalesce()
    return made.to_sparse_csr() if kind == "csr" else made


class Convolution(nn.Module):
    """Two layers of a graph network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        x = torch.relu(torch.sparse.mm(a, self.first(x)))
        return torch.log_softmax(a @ self.second(x), -1)


def propagated(x: Tensor, a: Tensor) -> Tensor:
    for _ in range(3):
        x = 0.9 * torch.sparse.mm(a, x) + 0.1 * x
    return x * a.shape[0]


def transposed(x: Tensor, a: Tensor) -> Tensor:
    return (a.t() @ torch.mm(a, x)).sin() + a.size(1)


def vector(x: Tensor, a: Tensor) -> Tensor:
    return torch.mv(a, x[:, 0]).exp() * (a @ x[:, 1])


def other_calls(x: Tensor, a: Tensor) -> Tensor:
    return (x * 2).relu() + torch.sparse.mm(a * 2, x).cos()


def wrong_sizes(x: Tensor, a: Tensor) -> Tensor:
    try:
        return a @ x[:5]
    except RuntimeError:
        return x + 1


def results(program: Program, kind: str) -> list[Tensor]:
    found: list[Tensor] = []
    torch.manual_seed(0)
    for rows, elements in ((30, 60), (30, 80), (12, 20), (17, 90)):
        x = torch.rand(rows, 6, requires_grad=True)
        y = program(x, matrix(rows, elements, kind))
        found += [y.detach(), *torch.autograd.grad(y.square().sum(), x)]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [Convolution(), propagated, transposed, vector, other_calls, wrong_sizes])
def test_programs_on_sparse_matrices(program: Program, kind: str) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    torch.testing.assert_close(results(compiled, kind), results(program, kind))
    if program not in (other_calls, wrong_sizes):
        report = kiln.report_of(compiled)
        assert not report.breaks and report.regions <= 4


def test_a_change_of_kind_and_of_values() -> None:
    compiled = kiln.compile(propagated, options={"cache": False})
    x, changing = torch.rand(30, 6), matrix(30, 60, "coalesced")
    for a in (changing, matrix(30, 60, "csr"), matrix(30, 60, "uncoalesced"), torch.rand(30, 30), changing):
        if a.is_sparse:
            a._values().mul_(2)
        torch.testing.assert_close(compiled(x, a), propagated(x, a))


def second_gradient(x: Tensor, a: Tensor) -> Tensor:
    (first,) = torch.autograd.grad((a @ x).pow(3).sum(), x, create_graph=True)
    return first.square()


def test_gradients_of_gradients() -> None:
    torch.testing.assert_close(
        results(kiln.compile(second_gradient), "coalesced"), results(second_gradient, "coalesced")
    )


def test_the_matrix_itself_is_returned_and_may_require_gradients() -> None:
    a = matrix(30, 60, "coalesced")
    assert kiln.compile(lambda x, a: (a, x + 1))(torch.ones(2), a)[0] is a
    leaf, other = a.clone().requires_grad_(), a.clone().requires_grad_()
    x = torch.rand(30, 6)
    torch.sparse.mm(leaf, x).sum().backward()
    kiln.compile(lambda a, x: torch.sparse.mm(a, x).sum())(other, x).backward()
    assert leaf.grad is not None and other.grad is not None
    torch.testing.assert_close(other.grad.to_dense(), leaf.grad.to_dense())


def test_a_module_with_a_sparse_buffer() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", matrix(30, 60, "csr"))

        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.a, Tensor)
            return (self.a @ x).relu()

    model, x = Own(), torch.rand(30, 6)
    compiled = kiln.compile(model)
    torch.testing.assert_close(compiled(x), model(x))
    assert not kiln.report_of(compiled).breaks


def test_elements_in_one_place_are_summed() -> None:
    places = torch.tensor([[0, 0, 1], [1, 1, 2]])

    def program(x: Tensor, values: Tensor) -> tuple[Tensor, bool, bool]:
        made = torch.sparse_coo_tensor(places, values, (3, 3))
        return made.coalesce() @ x, made.coalesce().is_coalesced(), made.is_coalesced()

    x, values = torch.ones(3, 2), torch.tensor([1.0, 2.0, 3.0])
    compiled = kiln.compile(program)
    for _ in range(2):
        found, *answers = compiled(x, values)
        assert answers == [True, False]
        torch.testing.assert_close(found, torch.tensor([[3.0, 3.0], [3.0, 3.0], [0.0, 0.0]]))
