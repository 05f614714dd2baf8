"""Operators on arguments at the edges of what they take, through the whole compiler: eager's results or its errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.arange(24.0).reshape(4, 3, 2)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def as_eager(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> None:
    compiled = kiln.compile(function, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions_at_their_poles(dtype: torch.dtype) -> None:
    x = torch.tensor([-3.0, -2.5, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, float("inf"), float("nan")], dtype=dtype)
    as_eager(lambda x: (torch.digamma(x), torch.erfc(x), torch.exp(-x * x)), x.repeat(3))


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8])
def test_shifts_by_all_bits_and_more(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, info.max, 5, 0, max(-7, info.min)], dtype=dtype)[:, None]
    by = torch.arange(0, info.bits + 2, dtype=dtype)[None]
    as_eager(lambda x, by: x >> by, x.repeat(1, 1), by)


def test_shifts_of_single_bytes() -> None:
    """One element at a time, as no vector computes it."""
    x, by = torch.tensor([128, 255], dtype=torch.uint8), torch.tensor([0, 1, 6, 7, 8, 200], dtype=torch.uint8)
    as_eager(lambda x, by: [(x[0] >> one, x[1] >> one) for one in by], x, by)
    as_eager(lambda x, by: (x[:, None] >> by).cumsum(1), x, by)


@pytest.mark.parametrize("dynamic", [False, True])
def test_slices_beyond_the_ends(dynamic: bool) -> None:
    def ends(x: Tensor) -> tuple[Tensor, ...]:
        return x[-100:2], x[1:-100], x[-3:-1], x[50:], x[:100], x[0:-1:2], x.narrow(0, 1, 2), x[-4:], x[:-4]

    as_eager(lambda x: tuple(part + 1 for part in ends(x)), X, dynamic=dynamic)


@pytest.mark.parametrize("shape", [(2, 4, 4, 6), (1, 4, 2, 2), (2, 8, 2, 2)])
def test_moved_channels_keep_the_format_of_images(shape: tuple[int, ...]) -> None:
    functions = (torch.pixel_shuffle, torch.pixel_unshuffle, torch.channel_shuffle)
    for program in [partial(lambda function, x: function(x, 2), function) for function in functions]:
        for x in (torch.rand(shape), torch.rand(shape).to(memory_format=torch.channels_last)):
            assert kiln.compile(program)(x).stride() == program(x).stride()
            as_eager(program, x)


def test_images_without_a_batch() -> None:
    def moved(x: Tensor) -> tuple[Tensor, ...]:
        return torch.pixel_shuffle(x, 2), torch.pixel_unshuffle(x.transpose(0, 2), 1), torch.channel_shuffle(x[None], 2)

    as_eager(moved, torch.arange(32.0).reshape(4, 4, 2))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 0), (2, 0, 5)), ((2, 0, 4), (4, 5)), ((2, 4, 0, 3), (2, 1, 3, 6)), ((2, 7, 4, 0), (2, 1, 0, 5)),
        ((3, 2, 0, 4), (4,)), ((0, 3, 4), (0, 4, 5)),
    ],
)  # fmt: skip
def test_products_without_elements(left: tuple[int, ...], right: tuple[int, ...], dynamic: bool) -> None:
    as_eager(torch.matmul, torch.ones(left), torch.ones(right), dynamic=dynamic)


def test_products_with_a_size_of_0_beside_one_from_data() -> None:
    def scores(q: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        return q @ x[:, mask].transpose(-1, -2).unsqueeze(1)

    for heads, width in ((0, 8), (4, 0)):
        as_eager(scores, torch.ones(2, 7, heads, width), torch.ones(2, 5, width), torch.arange(5) > 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.unfold(0, 2, 0), lambda x: x.unfold(0, -1, 1), lambda x: x.unfold(0, 5, 1),
        lambda x: torch.pixel_shuffle(x[0], 1), lambda x: torch.arange(4) ** -1 + x.sum(),
    ],
    ids=["no_step", "negative_size", "too_large", "no_image", "negative_power"],
)  # fmt: skip
def test_what_eager_refuses(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError) as expected:
        function(X)
    with pytest.raises(type(expected.value)):
        kiln.compile(function)(X)


def test_assertions_with_and_without_a_message() -> None:
    def checked(x: Tensor) -> Tensor:
        torch._assert_async((x >= 0).all())
        torch._assert_async((x < 100).all(), "too large")
        return x + 1

    compiled = kiln.compile(checked, fullgraph=True)
    torch.testing.assert_close(compiled(X), X + 1)
    with pytest.raises(RuntimeError, match="too large"):
        compiled(X + 100)
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):  # eager's own words
        compiled(X - 100)


CHECKS: dict[type[Exception], tuple[Any, ...]] = {
    RuntimeError: (torch._check, torch._check_with),
    IndexError: (torch._check_index,),
    ValueError: (torch._check_value,),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_checks_of_numbers(kind: type[Exception]) -> None:
    for check in CHECKS[kind]:
        first = (RuntimeError,) if check is torch._check_with else ()

        def checked(x: Tensor, limit: int, check: Any = check, first: Any = first) -> Tensor:
            check(*first, x.shape[0] < limit, lambda: "too long")
            return x + 1

        compiled = kiln.compile(checked)
        torch.testing.assert_close(compiled(X, 5), X + 1)
        with pytest.raises(kind, match="too long"):
            compiled(X, 4)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -1.0, 1 + 1j])
def test_powers_by_numbers(exponent: complex) -> None:
    as_eager(lambda x: x**exponent, X + 1)
    if isinstance(exponent, complex) or exponent >= 0:
        as_eager(lambda x: x**exponent, torch.arange(1, 5))


def test_counting_beyond_what_is_exact() -> None:
    """Folding a conversion into a count must round as eager does."""
    for dtype in (torch.float16, torch.bfloat16):
        as_eager(lambda x, dtype=dtype: torch.arange(4100).to(dtype) + x, torch.zeros((), dtype=dtype))
        as_eager(lambda x, dtype=dtype: torch.arange(-3000, 20, 3).to(dtype) * 2 + x, torch.zeros((), dtype=dtype))


def test_unique_of_floats_tells_each_nan_from_the_others() -> None:
    def program(x: torch.Tensor) -> Any:
        return *x.unique(return_inverse=True, return_counts=True), *x.unique_consecutive(return_counts=True)

    compiled = kiln.compile(program, fullgraph=True, options={"cache": False})
    for values in ([1.0, 2, 1, 0, -2, 1], [math.nan, 1, math.nan, -0.0, 0, math.inf], [0.0, 0, 0, 0, 0, 0]):
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
    assert compiled.report().compiles == 1


def test_unique_with_and_without_its_inverse() -> None:
    def counted(x: Tensor) -> object:
        values, inverse = torch.unique_consecutive(x, return_inverse=True)
        plain = torch.unique_consecutive(x)
        return values + 1, inverse + 1, plain + 1, torch.unique_consecutive(x, dim=-1) + 1

    x = torch.tensor([1, 1, 2, 2, 2, 1])
    torch.testing.assert_close(kiln.compile(counted, fullgraph=True)(x), counted(x))


def test_addition_to_products() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    as_eager(
        lambda a, b, c: (torch.addmm(c, a, b), torch.addmm(c, a, b, beta=2, alpha=3), torch.addmm(c, a, b, beta=0)),
        a,
        b,
        c,
    )
