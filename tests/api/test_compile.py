"""`kiln.compile` on functions, methods and callables; disable, reset, explain, warnings."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import KilnError


def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return torch.sin(x) * factor


def test_function_and_decorator() -> None:
    x = torch.randn(4, 5)
    torch.testing.assert_close(kiln.compile(scaled)(x), scaled(x))
    torch.testing.assert_close(kiln.compile(scaled)(x, factor=3.0), scaled(x, 3.0))

    @kiln.compile(fullgraph=True)
    def decorated(x: Tensor) -> Tensor:
        return scaled(x) + 1

    torch.testing.assert_close(decorated(x), scaled(x) + 1)
    assert decorated.__name__ == "decorated"


def test_method() -> None:
    class Model:
        factor = 3.0

        def run(self, x: Tensor) -> Tensor:
            return x * self.factor

    model, x = Model(), torch.randn(3)
    compiled = kiln.compile(model.run)
    assert torch.equal(compiled(x), x * 3)
    model.factor = 4.0
    assert torch.equal(compiled(x), x * 4)


def test_disable_returns_the_original() -> None:
    assert kiln.compile(scaled, disable=True) is scaled


def test_disabled_function_runs_in_python() -> None:
    seen: list[Any] = []

    @kiln.disable
    def outside(x: Tensor) -> Tensor:
        seen.append(type(x))
        return x + 1

    @kiln.compile
    def inside(x: Tensor) -> Tensor:
        return outside(x * 2) * 3

    x = torch.randn(4)
    for _ in range(3):
        torch.testing.assert_close(inside(x), (x * 2 + 1) * 3)
    assert seen == [Tensor] * 3


def test_python_numbers_are_guarded() -> None:
    compiled, x = kiln.compile(scaled), torch.randn(4)
    for factor in (1.0, 2.0, 3.5, -1.0):
        torch.testing.assert_close(compiled(x, factor), scaled(x, factor))


def test_is_compiling() -> None:
    @kiln.compile(options={"is_compiling": "true"})
    def asks(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x - 1

    @kiln.compile
    def asks_by_default(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x - 1

    x = torch.zeros(2)
    assert torch.equal(asks(x), x + 1)
    assert torch.equal(asks_by_default(x), x - 1)
    assert kiln.is_compiling() is False


def test_reset_compiles_again() -> None:
    compiled, x = kiln.compile(scaled), torch.randn(4)
    compiled(x)
    report = kiln.report_of(compiled)
    assert report.compiles == 1
    kiln.reset()
    assert report.compiles == 0
    compiled(x)
    assert report.compiles == 1


def test_explain() -> None:
    report = kiln.explain(scaled)(torch.randn(4))
    assert len(report.text().splitlines()) <= 10
    assert (report.regions, report.compiles, report.eager) == (1, 1, 0)


def broken(x: Tensor) -> Tensor:
    return x + 1


def failing_backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
    raise RuntimeError("the backend is broken")


def test_a_fault_runs_eager_with_one_warning() -> None:
    compiled, x = kiln.compile(broken, backend=failing_backend), torch.randn(3)
    with pytest.warns(KilnWarning, match="KILN9000"):
        assert torch.equal(compiled(x), x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(x), x + 1)
    assert kiln.report_of(compiled).eager == 1


def test_a_fault_keeps_every_kind_of_argument() -> None:
    def many(a: Tensor, *rest: Tensor, scale: float = 1.0, **named: Tensor) -> Tensor:
        return (a + sum(rest)) * scale + sum(named.values())

    compiled, x = kiln.compile(many, backend=failing_backend), torch.randn(3)
    with pytest.warns(KilnWarning):
        first = compiled(x, x, scale=2.0, other=x)
    for result in (first, compiled(x, x, scale=2.0, other=x)):
        assert torch.equal(result, many(x, x, scale=2.0, other=x))
    model = kiln.compile(torch.nn.Linear(3, 2), backend=failing_backend)
    with pytest.warns(KilnWarning):
        assert model(input=x).shape == model(x).shape == (2,)


def test_a_fault_raises_with_fullgraph() -> None:
    compiled = kiln.compile(broken, backend=failing_backend, fullgraph=True)
    with pytest.raises(KilnError, match="the backend is broken"):
        compiled(torch.randn(3))


def test_fullgraph_raises_at_a_break() -> None:
    @kiln.compile(fullgraph=True, options={"control_flow": "python"})
    def branches(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(KilnError, match=r"(?s)KILN1007.*test_compile\.py"):
        branches(torch.randn(3))


def test_users_exception_passes_through() -> None:
    @kiln.compile
    def raises(x: Tensor) -> Tensor:
        y = x * 2
        if y.dim() == 1:
            raise ValueError("one dimension")
        return y

    with pytest.raises(ValueError, match="one dimension"):
        raises(torch.randn(3))
    assert raises(torch.randn(3, 3)).shape == (3, 3)


def test_too_many_variants_run_eager() -> None:
    compiled = kiln.compile(scaled, dynamic=False, options={"variants": 2})
    with pytest.warns(KilnWarning, match="KILN1090"):
        for size in range(2, 6):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), scaled(x))


def test_a_size_that_changed_becomes_a_symbol() -> None:
    compiled = kiln.compile(scaled)
    for size in range(2, 12):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), scaled(x))
    assert kiln.report_of(compiled).compiles == 2


def test_dynamic_compiles_once() -> None:
    compiled = kiln.compile(scaled, dynamic=True)
    for size in range(2, 12):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), scaled(x))
    assert kiln.report_of(compiled).compiles == 1


@pytest.mark.parametrize("train", [False, True])
def test_an_input_that_only_tells_a_size(train: bool) -> None:
    """After the break only the number of rows of `x` is used; `y` has another symbol."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        if y.sum() > -100:
            y = y * x.shape[0]
        return y * 2

    compiled = kiln.compile(rows)
    for count in (2, 3, 4):
        x = torch.randn(count, 4, requires_grad=train)
        torch.testing.assert_close(compiled(x), rows(x))
    assert kiln.report_of(compiled).eager == 0


def test_an_exception_of_the_program_is_a_variant_of_its_own() -> None:
    def checked(x: Tensor, n: int) -> Tensor:
        if n < 0:
            raise ValueError("negative")
        return x * n

    compiled, x = kiln.compile(checked, fullgraph=True), torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (-1, 2, -1, 2):
            if n < 0:
                with pytest.raises(ValueError, match="negative"):
                    compiled(x, n)
            else:
                torch.testing.assert_close(compiled(x, n), x * n)
    report = kiln.report_of(compiled)
    assert (report.compiles, report.eager) == (2, 0)
