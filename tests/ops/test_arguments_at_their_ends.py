"""Arguments at the ends of what an operator takes: the last bit of a shift, no order of a norm, a bias too large."""

from __future__ import annotations

import pytest
import torch

import kiln


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_shifts_to_the_last_bit_and_beyond(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.max, info.min, 1, 0], dtype=dtype)
    for bits in (info.bits - 2, info.bits - 1, info.bits):
        by = torch.full_like(x, bits)
        assert torch.equal(kiln.compile(torch.bitwise_right_shift, fullgraph=True)(x, by), x >> by)


def test_a_norm_without_an_order_is_that_of_order_2() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.norm.ScalarOpt_dim(x, None, [0], False)  # type: ignore[no-any-return]

    x = torch.linspace(-1, 3, 12).view(4, 3)
    torch.testing.assert_close(kiln.compile(norm, fullgraph=True)(x), norm(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool])
def test_integers_that_a_dtype_represents_exactly_are_drawn(dtype: torch.dtype) -> None:
    drawn = kiln.compile(lambda x: x.random_(), fullgraph=True)(torch.zeros(4000, dtype=dtype)).double()
    if dtype.is_floating_point:
        end = 2 ** (8 if dtype is torch.bfloat16 else 24)
    else:
        end = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    assert drawn.min() >= 0 and torch.equal(drawn, drawn.round())
    assert end / 2 < drawn.max() <= end and drawn.mean() == pytest.approx(end / 2, rel=0.1)


@pytest.mark.parametrize("sizes", [(3,), (3, 5), (1, 2, 5)])
def test_a_bias_that_fits_nowhere_is_an_error(sizes: tuple[int, ...]) -> None:
    given = torch.ones(sizes), torch.ones(2, 4), torch.ones(4, 5)
    for call in (torch.addmm, kiln.compile(torch.addmm)):
        with pytest.raises(RuntimeError):
            call(*given)


def test_a_tensor_is_not_its_own_gradient() -> None:
    def assign(x: torch.Tensor) -> torch.Tensor:
        x.grad = x
        return x * 2

    for call in (assign, kiln.compile(assign)):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="own grad"):
            call(x)
        assert x.grad is None
