"""`autograd.Function`: gradients that were other than eager's, or came where eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import kiln

Program = Callable[[Tensor], Any]


class Reversed(Function):
    """Returns its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -grad


class ReversedView(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)


class Asking(Function):
    """Its backward asks which gradients there are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor:  # type: ignore[override]
        given = torch.full((3,), 5.0) if first is None else first
        return given + (7 if second is None else second * 100)


class Rows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # type: ignore[override]
        return torch.stack(grads) * 2


class Extra(Reversed):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad, grad


class ExtraNone(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad * 2, None


class Number(ExtraNone):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return 2.0


class Missing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad


def intermediate(x: Tensor) -> Tensor:
    return Reversed.apply(x).exp() + ReversedView.apply(x * 2).sin()


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.exp()
    return h, Reversed.apply(h)


def used_together(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = Asking.apply(x)
    return (first * second).sum(), x * 2


def one_unused(x: Tensor) -> tuple[Tensor, Tensor]:
    return Asking.apply(x)[1].exp(), x * 2


PROGRAMS: dict[str, Program] = {
    "the argument": lambda x: Reversed.apply(x),
    "a view of the argument": lambda x: ReversedView.apply(x),
    "a view of that": lambda x: Reversed.apply(x)[1:],
    "intermediate": intermediate,
    "both": both,
    "gradients that may be missing": lambda x: Asking.apply(x),
    "outputs used together": used_together,
    "one output unused": one_unused,
    "views of the argument": lambda x: Rows.apply(x),
    "an extra gradient": lambda x: Extra.apply(x),
    "an extra None": lambda x: ExtraNone.apply(x),
    "a number": lambda x: Number.apply(x),
    "a missing gradient": lambda x: Missing.apply(x, x * 2),
}
ONE_GRAPH = ("intermediate", "outputs used together", "one output unused", "an extra None")


def outcome(function: Program, of: int) -> Any:
    x = torch.linspace(1, 2, 3).requires_grad_()
    made = function(x)
    results = made if isinstance(made, tuple) else (made,)
    root = sum(result.sum() for result in results) if of < 0 else results[of].sum()
    try:
        (grad,) = torch.autograd.grad(root, x)
    except RuntimeError as error:
        return "RuntimeError", str(error)[:40]
    same = made.data_ptr() == x.data_ptr() if isinstance(made, Tensor) else None
    return same, grad.numpy().round(4).tolist()


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    function = PROGRAMS[name]
    compiled = kiln.compile(function)
    for of in (0, -1, 1) if isinstance(function(torch.ones(3)), tuple) else (0,):
        assert outcome(compiled, of) == outcome(function, of), of
    if name in ONE_GRAPH:
        report = compiled.report()
        assert report.regions == 1 and not report.breaks and not report.eager_reasons, report


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def test_second_gradients_of_custom_functions() -> None:
    """The function runs again, found by its import path or, made in a function, kept by the region."""

    class Local(Cube):
        pass

    def gradients(function: Any) -> list[Any]:
        x = torch.linspace(0.5, 1, 3, dtype=torch.float64).requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.exp().sum(), x)
        return [first.tolist(), second.tolist()]

    for program in (lambda x: Cube.apply(x.sin()) * 2, lambda x: Local.apply(x.sin()) * 2):
        for _ in range(2):
            assert gradients(kiln.compile(program)) == [pytest.approx(part) for part in gradients(program)]


def test_result_that_is_an_argument_breaks_the_graph_there() -> None:
    def program(x: Tensor) -> Any:
        return x.exp().sum(), Reversed.apply(x)

    compiled = kiln.compile(program)
    found = []
    for run in (program, compiled):
        x = torch.ones(3, requires_grad=True)
        total, same = run(x)
        (total + (same * 2).sum()).backward()
        assert same.data_ptr() == x.data_ptr()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
    assert not compiled.report().eager and len(compiled.report().breaks) == 1
