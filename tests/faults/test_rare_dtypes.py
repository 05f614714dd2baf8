"""Arithmetic of dtypes that few kernels take (uint16, float8 and others), which eager refuses, was computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + x,
    "in place": lambda x: x.clone().add_(1),
    "compare": lambda x: x < 2,
    "reduce": lambda x: x.amax(),
    "gather": lambda x: x.gather(0, torch.tensor([0])),
    "flip": lambda x: x.flip(0),
    "power": lambda x: x**2,
    "range": lambda x: torch.arange(3, dtype=x.dtype),
    "product": lambda x: x * 2,
    "copy": lambda x: torch.cat([x, x]).to(torch.int64 if not x.dtype.is_complex else torch.complex64),
    "sum": lambda x: x.sum(),
}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.complex32], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    x = torch.ones(3).to(dtype)

    def outcome(function: Callable[[Tensor], Tensor]) -> object:
        try:
            found = function(x)
        except NotImplementedError:
            return "refused"
        return found.dtype, found.to(torch.complex128 if found.dtype.is_complex else torch.float64).tolist()

    assert outcome(kiln.compile(OPERATIONS[name])) == outcome(OPERATIONS[name])


def test_random_numbers_in_double_precision() -> None:
    """A kernel of float64 alone, whose lanes fill a register, did not compile."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.randn_like(x), torch.nn.functional.dropout(x, 0.5)

    compiled = kiln.compile(program, options={"cache": False})
    uniform, normal, dropped = compiled(torch.ones(1000, dtype=torch.float64))
    assert 0.45 < uniform.mean() < 0.55 and 0.9 < normal.var() < 1.1 and set(dropped.tolist()) == {0.0, 2.0}
    assert not kiln.report_of(compiled).eager_reasons


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "product": torch.prod,
    "product of an axis": lambda x: x.prod(1),
    "filtered": lambda x: torch.fft.ifft(torch.fft.fft(x).tanh()),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_complex_numbers(name: str) -> None:
    program = COMPLEX[name]
    compiled = kiln.compile(program, fullgraph=True, options={"cache": False})
    x = torch.randn(4, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    ours, eagers = x.clone().requires_grad_(), x.clone().requires_grad_()
    result, expected = compiled(ours), program(eagers)
    torch.testing.assert_close(result, expected)
    result.abs().sum().backward()
    expected.abs().sum().backward()
    torch.testing.assert_close(ours.grad, eagers.grad)
    assert not kiln.report_of(compiled).eager
