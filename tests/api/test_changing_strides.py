"""Views of tensors whose sizes change: their strides become symbols, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln

LENGTHS = (5, 9, 12, 3, 20, 13, 8, 33, 21)


def compiles_over(
    function: Callable[[torch.Tensor], torch.Tensor], view: Callable[[torch.Tensor], torch.Tensor]
) -> int:
    fast = kiln.compile(function, options={"cache": False})
    for length in LENGTHS:
        x = view(torch.randn(4, length))
        expected, found = function(x), fast(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    return kiln.report_of(fast).compiles


@pytest.mark.parametrize("view", [lambda x: x[:, :-1], lambda x: x[:, 2:], lambda x: x.T[1:]])
def test_a_part_of_each_row(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert compiles_over(lambda x: x.cumsum(0).sin() + 1, view) <= 2


def test_every_second_element() -> None:
    assert compiles_over(lambda x: x.cumsum(0).sin() + 1, lambda x: x[:, ::2]) <= 4  # rows end with a gap or without


def test_the_stride_is_read() -> None:
    assert compiles_over(lambda x: x * x.stride(0), lambda x: x[:, :-1]) == 2


def test_dense_tensors_among_the_views() -> None:
    fast = kiln.compile(lambda x: (x + 1).view(-1), options={"cache": False})
    for length in LENGTHS:
        whole = torch.randn(4, length)
        for x in (whole[:, :-1], whole):
            torch.testing.assert_close(fast(x), (x + 1).reshape(-1))
    assert kiln.report_of(fast).compiles == 3


def test_gradients_of_a_view() -> None:
    fast = kiln.compile(lambda x: (x.sin() * x).sum(), options={"cache": False})
    for length in LENGTHS:
        whole = torch.randn(4, length, requires_grad=True)
        (found,) = torch.autograd.grad(fast(whole[:, :-1]), whole)
        (expected,) = torch.autograd.grad((whole[:, :-1].sin() * whole[:, :-1]).sum(), whole)
        torch.testing.assert_close(found, expected)
    assert kiln.report_of(fast).compiles == 2


def test_overlapping_elements_keep_their_strides() -> None:
    fast = kiln.compile(lambda x: x * 2, options={"cache": False})
    for stride in (3, 2, 1, 0):
        x = torch.arange(20.0).as_strided((3, 3), (stride, 1))
        torch.testing.assert_close(fast(x), x * 2)
