"""Matrix products of any rank, written with ops that accept symbols, equal torch's."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import kiln
from kiln.graph.trace.composites import COMPOSITES, linear, matmul
from tests.trace.harness import trace

LEFT = ((4,), (3, 4), (2, 3, 4), (5, 1, 3, 4), (1, 2, 3, 4))
RIGHT = ((4,), (4, 6), (2, 4, 6), (5, 2, 4, 6), (1, 4, 6))


@pytest.mark.parametrize(("left", "right"), list(itertools.product(LEFT, RIGHT)))
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = torch.randn(left), torch.randn(right)
    got, expected = matmul(x, y), torch.matmul(x, y)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("shape", LEFT)
def test_linear(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(6, 4), torch.randn(6)
    torch.testing.assert_close(linear(x, weight), functional.linear(x, weight))
    torch.testing.assert_close(linear(x, weight, bias), functional.linear(x, weight, bias))


def test_one_compile_for_all_sizes() -> None:
    def products(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> list[Tensor]:
        return [x @ w, torch.matmul(x, y), functional.linear(x, w.t()), x.matmul(v), v @ y, x.unsqueeze(1) @ y]

    compiled = kiln.compile(products, dynamic=True, fullgraph=True)
    w, v = torch.randn(8, 6), torch.randn(8)
    for batch, length in ((2, 3), (4, 5), (3, 7)):
        x, y = torch.randn(batch, length, 8, requires_grad=True), torch.randn(batch, 8, 4, requires_grad=True)
        got, expected = compiled(x, w, y, v), products(x, w, y, v)
        for value, other in zip(got, expected, strict=True):
            torch.testing.assert_close(value, other)
        grads = [torch.autograd.grad(sum(value.sum() for value in found), (x, y)) for found in (got, expected)]
        for grad, other in zip(*grads, strict=True):
            torch.testing.assert_close(grad, other)
    assert kiln.api.report_of(compiled).compiles == 1


def test_plain_sizes_are_torchs_business() -> None:
    """With plain sizes the user's call is recorded as it is."""

    def fail(*args: object) -> Tensor:
        raise AssertionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kiln.graph.trace.recorder.COMPOSITES", dict.fromkeys(COMPOSITES, fail))
        compiled = kiln.compile(lambda x, y: x @ y, fullgraph=True, dynamic=False)
        compiled(torch.randn(2, 3, 4), torch.randn(4, 5))


def transformed(theta: Tensor, x: Tensor) -> Tensor:
    """torch's backward of an affine grid reads sizes and, of volumes, data."""
    return functional.grid_sample(x, functional.affine_grid(theta, x.shape, align_corners=False), align_corners=False)


def windowed(theta: Tensor, x: Tensor) -> Tensor:
    """Eager reads the smallest sum of the windows."""
    spectrum = torch.stft(x, 16, hop_length=5, win_length=12, window=torch.hann_window(12), return_complex=True)
    return torch.istft(spectrum * theta, 16, 5, 12, torch.hann_window(12), length=24)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (transformed, [((2, 2, 3), (2, 3, 4, 5)), ((3, 2, 3), (3, 3, 5, 6))]),
        (transformed, [((2, 3, 4), (2, 1, 4, 5, 3)), ((4, 3, 4), (4, 1, 3, 4, 2))]),
        (windowed, [((), (2, 40)), ((), (3, 50)), ((), (30,))]),
        (lambda theta, x: x.var(0) + theta, [((), (2, 4)), ((), (1, 4)), ((), (5, 4))]),
    ],
)
def test_gradients_of_calls_that_torch_decomposes(program: Any, shapes: Any, dynamic: bool | None) -> None:
    compiled = kiln.compile(program, dynamic=dynamic, fullgraph=True)
    for sizes in shapes:
        inputs = [torch.randn(size, requires_grad=True) for size in sizes]
        got, expected = compiled(*inputs), program(*inputs)
        torch.testing.assert_close(got, expected, equal_nan=True)
        grads = [torch.autograd.grad(found.square().sum(), inputs) for found in (got, expected)]
        torch.testing.assert_close(*grads, equal_nan=True)


def test_windows_that_do_not_cover_the_signal() -> None:
    spectrum = torch.stft(torch.randn(64), 16, window=torch.hann_window(16), return_complex=True)
    compiled = kiln.compile(functools.partial(torch.istft, n_fft=16, window=torch.hann_window(16), center=False))
    with pytest.raises(RuntimeError, match="istft"):
        compiled(spectrum)


@pytest.mark.parametrize("sizes", [(5,), (2, 4), (3, 3), (1, 2, 3), (2,)])
def test_a_bias_that_does_not_fit_a_product_is_refused_while_tracing(sizes: tuple[int, ...]) -> None:
    """No kernel behind the product relies on its sizes."""
    with pytest.raises(RuntimeError):
        trace(torch.addmm, [torch.ones(sizes), torch.ones(2, 4), torch.ones(4, 3)])
