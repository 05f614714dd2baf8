"""Conjugates are lazy views in eager; in a region they are computed at once, if nothing sees the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def correlation(x: Tensor, y: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x) * torch.conj(torch.fft.rfft(y)), n=x.shape[-1])


def products(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, y)
    outer = torch.einsum("ij,kj->ik", z, z.conj())
    return (z @ z.mH).real, torch.view_as_real(outer), torch.vdot(z[0], z[1]).abs(), z.conj()[0].resolve_conj().imag


def in_a_branch(x: Tensor, y: Tensor) -> Tensor:
    z = torch.complex(x, y)
    if x.sum() > 0:
        return (z * z.conj()).real + 1
    return (z.conj() * 2).imag + 1


def changed_before(x: Tensor, y: Tensor) -> Tensor:
    z = torch.complex(x, y)
    z.mul_(2)
    return (z.conj() * (1 + 2j)).imag


def changed(x: Tensor, y: Tensor) -> Tensor:
    z = torch.complex(x, y)
    conjugate = z.conj()
    z.mul_(2)
    return (conjugate * 1).imag


def written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, y)
    z.conj().add_(1j)
    return z.real, z.imag


def returned(x: Tensor, y: Tensor) -> Tensor:
    return torch.complex(x, y).conj()


def asked(x: Tensor, y: Tensor) -> Any:
    conjugate = torch.complex(x, y).conj()
    return conjugate.is_conj(), (conjugate * 1).imag


def require_equal(program: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        given, found = torch.randn(2, 3, 4), []
        for function in (program, compiled):
            x, y = given.clone().requires_grad_()
            results = function(x, y)
            results = results if isinstance(results, tuple) else (results,)
            tensors = [result for result in results if isinstance(result, Tensor)]
            loss = torch.stack([result.abs().square().sum() for result in tensors]).sum()
            flags = [
                (result.is_conj(), result.is_neg()) if isinstance(result, Tensor) else result for result in results
            ]
            found.append((flags, [*tensors, *torch.autograd.grad(loss, (x, y))]))
        assert found[0][0] == found[1][0]
        torch.testing.assert_close(found[1][1], found[0][1])


@pytest.mark.parametrize(
    "program", [correlation, products, in_a_branch, changed_before], ids=lambda program: program.__name__
)
def test_one_graph(program: Callable[..., Any]) -> None:
    options = {"control_flow": "graph"} if program is in_a_branch else {}
    require_equal(program, kiln.compile(program, fullgraph=True, options={"cache": False, **options}))


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("program", [changed, written, returned, asked], ids=lambda program: program.__name__)
def test_what_sees_the_view_breaks(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    require_equal(program, compiled)
    assert compiled.report().breaks


LAYOUTS: dict[str, Callable[[Tensor], Any]] = {
    "strides": lambda x: (x[::2].conj().stride(), x.sum()),
    "of a repeated one": lambda x: (x[None].expand(3, -1).conj().stride(), x.sum()),
    "offset": lambda x: (x[1:].conj().storage_offset(), x.sum()),
    "contiguity": lambda x: x.sum() if x[::2].conj().is_contiguous() else x[0],
    "of the same layout": lambda x: (x.conj().stride(), (x * 2).conj().is_contiguous(), x.sum()),
}


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_those_of_the_view(name: str) -> None:
    compiled = kiln.compile(LAYOUTS[name], options={"cache": False})
    for size in (4, 5, 6):
        x = torch.randn(size, dtype=torch.complex64)
        torch.testing.assert_close(compiled(x), LAYOUTS[name](x))
    assert bool(compiled.report().breaks or compiled.report().eager) == (name != "of the same layout")
