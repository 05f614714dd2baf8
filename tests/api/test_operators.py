"""Operators through the whole compiler, against eager: values, dtypes, strides and shared memory, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln

Results = tuple[Tensor, ...]


def assert_as_eager(function: Callable[..., Any], *args: Tensor) -> None:
    """`args` are not changed: each side gets copies."""
    ours, theirs = [arg.clone() for arg in args], [arg.clone() for arg in args]
    actual: Results = kiln.compile(function, fullgraph=True)(*ours)
    expected: Results = function(*theirs)
    for item, other in zip((*actual, *ours), (*expected, *theirs), strict=True):
        assert item.dtype == other.dtype and item.shape == other.shape
        assert item.stride() == other.stride() or not item.numel()
        assert torch.equal(torch.nan_to_num(item), torch.nan_to_num(other))
    assert sharing(actual) == sharing(expected)


def sharing(results: Results) -> list[int]:
    """For each result, the first result with the same memory."""
    places = [result.untyped_storage().data_ptr() for result in results]
    return [places.index(place) for place in places]


def extremes(x: Tensor) -> Results:
    return x.argmax(0), x.argmin(1), *x.max(1), *x.min(0), x.argmax()


@pytest.mark.parametrize("value", [-math.inf, math.inf])
def test_the_place_of_an_extreme_among_infinities(value: float) -> None:
    """The first one, though none is better than the initial value of the search."""
    assert_as_eager(extremes, torch.full((5, 40), value))


def test_the_place_of_an_extreme_among_infinities_and_nan() -> None:
    x = torch.full((5, 40), -math.inf)
    x[2, 7], x[1, 9] = math.nan, 3
    assert_as_eager(extremes, x)


def test_the_place_of_an_extreme_among_the_smallest_integers() -> None:
    assert_as_eager(extremes, torch.full((5, 40), -(2**31), dtype=torch.int32))


def test_the_place_of_an_extreme_among_truths() -> None:
    assert_as_eager(lambda x: (*x.max(0), *x.min(1), *x.max(-1)), torch.randn(5, 40) > 0.5)


def test_nothing_has_no_extreme() -> None:
    for function in (lambda x: x.amax(0), lambda x: x.max(), lambda x: x.argmax(0), lambda x: x.min(0)):
        with pytest.raises((IndexError, RuntimeError), match=r"non-zero size|numel"):
            kiln.compile(function)(torch.randn(0, 3))


def test_scatter_of_nothing() -> None:
    assert_as_eager(lambda x: (x.scatter_reduce(1, (x > 0).long(), x, "amax"),), torch.randn(2, 0, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_kernel_that_rounds_but_reads_nothing_narrow(dtype: torch.dtype) -> None:
    assert_as_eager(lambda x: (x.double().to(dtype).double() + 1,), torch.randn(40))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss_over_nothing(dtype: torch.dtype) -> None:
    assert_as_eager(lambda x: (F.kl_div(x, x.softmax(0), reduction="batchmean"),), torch.zeros(0, dtype=dtype))


def test_arange_of_fractions_as_integers() -> None:
    def counted(x: Tensor) -> Results:
        kinds = (torch.int64, torch.int32, torch.uint8, torch.float32)
        bounds = ((0.5, 3.7), (0.5, 5.5, 1.5), (1.9, 8, 2.2), (-0.5, 2.5))
        return x + 1, *[torch.arange(*bound, dtype=kind) for kind in kinds for bound in bounds if bound[0] > 0]

    assert_as_eager(counted, torch.zeros(1))


def written_part(x: Tensor) -> Results:
    y = x + 1
    return y[0].fill_(5), y


def written_diagonal(x: Tensor) -> Results:
    y = x + 1
    return y.diagonal().fill_(5), y


def written_parts(x: Tensor) -> Results:
    y = x + 1
    first, second = y[0].mul_(2), y[1:].add_(3)
    return second, first, y.t()


def written_rows(x: Tensor) -> Results:
    y = x.clone()
    return y[:, 1:].zero_(), y[1]


@pytest.mark.parametrize("function", [written_part, written_diagonal, written_parts, written_rows])
def test_a_part_that_was_written_shares_the_memory_of_the_whole(function: Callable[[Tensor], Results]) -> None:
    assert_as_eager(function, torch.randn(3, 4))


SIZED = {
    "spread": lambda x: (x.var(1), x.var(), x.std(0, correction=0), x.var(1, correction=0.5), x.var(0, correction=2)),
    "roll": lambda x: (x.roll(1), x.roll(-1, 1), x.roll((1, 2), (0, 1))),
    "masked_scatter": lambda x: (torch.masked_scatter(x, x > 0, x + 1),),
    "dist": lambda x: (torch.dist(x, x + 1), torch.dist(x, x * 2, 1)),
}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_change_down_to_nothing(name: str) -> None:
    function: Callable[[Tensor], Results] = SIZED[name]
    compiled = kiln.compile(function, fullgraph=True, dynamic=True)
    for sizes in ((5, 6), (7, 4), (1, 3), (3, 1), (3, 0), (0, 3), (2, 2)):
        x = torch.randn(sizes)
        for result, other in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(result, other, equal_nan=True)
    most = 5 if name == "spread" else 3  # a variance of too few numbers warns, along one dimension or the other
    assert kiln.report_of(compiled).compiles <= most


def test_integers_are_not_divided_where_the_quotient_is_not_taken() -> None:
    """Outside of the inserted slice there is no divisor."""

    def part(x: Tensor) -> Results:
        quotient = torch.div(x, x, rounding_mode="trunc")
        return torch.slice_scatter(quotient, quotient[:1] * 2, 0, -1), F.pad(7 % x, (2, 1)), 5 // x

    assert_as_eager(part, torch.tensor([3, -2, 5, 7, 1], dtype=torch.int32))


def complex_layouts(x: Tensor) -> Results:
    z = x.to(torch.complex64)
    return (
        z.contiguous(memory_format=torch.channels_last),
        F.pad(z, (1, 2)),
        torch.view_as_real(x.to(torch.complex32)) * 2,
    )


def test_complex_numbers_in_another_layout_or_padded() -> None:
    """Ops on them are left to ATen; the region does not run eager."""
    assert_as_eager(complex_layouts, torch.randn(2, 3, 2, 3))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_arguments(layout: torch.layout) -> None:
    compiled, matrix, x = kiln.compile(torch.sparse.mm), torch.eye(3).to_sparse(layout=layout), torch.randn(3, 2)
    assert torch.equal(compiled(matrix, x), x)


def test_a_sparse_result_breaks_the_graph() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 2).to_sparse()

    x = torch.eye(3)
    compiled = kiln.compile(f)
    assert torch.equal(compiled(x).to_dense(), f(x).to_dense()) and compiled(x).layout == torch.sparse_coo


@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16, None])
def test_statistics_of_batch_norm_have_the_dtype_of_eager(weight: torch.dtype | None) -> None:
    def f(x: Tensor, *parameters: Tensor) -> Results:
        scale, shift = parameters or (None, None)
        zeros = torch.zeros(3, dtype=weight or x.dtype)
        trained = torch.native_batch_norm(x, scale, shift, None, None, True, 0.1, 1e-5)
        return *trained[1:], *torch.native_batch_norm(x, scale, shift, zeros, zeros, False, 0.1, 1e-5)[1:]

    x = torch.randn(4, 3, 5, dtype=torch.bfloat16)
    given = [x] if weight is None else [x, *torch.rand(2, 3, dtype=weight)]
    ours, theirs = kiln.compile(f, fullgraph=True)(*given), f(*given)
    torch.testing.assert_close(ours, theirs)


def rotated(x: Tensor, angles: Tensor) -> Results:
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    turned = z * torch.polar(torch.ones_like(angles), angles) * (2 + 1j) + torch.full((4,), 1j)
    return torch.view_as_real(turned).flatten(-2), turned.real + 0, z.imag * 2


def test_views_of_complex_numbers_and_complex_constants() -> None:
    """A rotary embedding as Llama's first code writes it."""
    assert_as_eager(rotated, torch.randn(2, 5, 8), torch.randn(5, 4))


def parts_changed(z: Tensor) -> Results:
    torch.view_as_real(z)[..., 0].add_(1)
    z.imag.mul_(2)
    return (z * 2,)


def test_rules_of_real_numbers_are_not_taken_for_complex_ones() -> None:
    """Eager computes these differently, so they break the graph."""
    z = torch.randn(6, dtype=torch.complex64)
    for function in (
        lambda z: torch.logaddexp(z, z.conj()),
        lambda z: torch.nn.functional.normalize(z, p=1.0, dim=0),
    ):
        torch.testing.assert_close(kiln.compile(function)(z), function(z))


def test_parts_of_a_complex_input_are_written() -> None:
    assert_as_eager(parts_changed, torch.randn(3, dtype=torch.complex64))


def at_no_places(x: Tensor, index: Tensor) -> Results:
    return x.gather(0, index), x.scatter(0, index, x), x.scatter(0, index, 2.0), x.scatter_add(0, index, x)


@pytest.mark.parametrize("index", [(0,), (2, 0), (0, 3)])
def test_looking_up_at_no_places(index: tuple[int, ...]) -> None:
    """Eager checks neither rank nor dtype of an empty index."""
    assert_as_eager(at_no_places, torch.randn(5), torch.empty(index, dtype=torch.uint8))


def solved(matrix: Tensor, right: Tensor) -> Results:
    return torch.linalg.solve(matrix, right), torch.linalg.det(matrix), *torch.linalg.slogdet(matrix)


def test_pivots_of_a_factorisation_count_from_one() -> None:
    """Result shapes come from a trial run, which rejects pivots of 0."""
    matrix, right = (torch.randn(4, 4) + 4 * torch.eye(4)).requires_grad_(), torch.randn(4, 2, requires_grad=True)
    ours, theirs = kiln.compile(solved, fullgraph=True)(matrix, right), solved(matrix, right)
    torch.testing.assert_close(ours, theirs)
    gradients = [
        torch.autograd.grad(sum(result.sum() for result in results), (matrix, right)) for results in (ours, theirs)
    ]
    torch.testing.assert_close(*gradients)


def test_an_op_that_returns_its_argument_is_no_step_of_a_plan() -> None:
    """Eager's `conj_physical` of real numbers returns the tensor itself, against its schema."""

    def f(x: Tensor) -> Results:
        return x.clone().conj_physical_(), x.conj_physical_()

    x = torch.randn(4)
    ours, theirs = kiln.compile(f)(given := x.clone()), f(x)
    assert torch.equal(ours[0], theirs[0]) and ours[0] is not given and ours[1] is given


VIEWS_OF_BITS: dict[str, Callable[[Tensor], Any]] = {
    "input as int32": lambda x: (x.view(torch.int32), x * 2),
    "input as complex": lambda x: (torch.view_as_complex(x),),
    "result as int32": lambda x: (y := x * 2, y.view(torch.int32)),
    "result as complex": lambda x: (torch.view_as_complex(y := x * 2), y),
    "complex alone": lambda x: (torch.view_as_complex(x * 2),),
}


@pytest.mark.parametrize("name", VIEWS_OF_BITS)
def test_results_that_are_the_same_bytes_as_another_dtype(name: str) -> None:
    def f(x: Tensor) -> Any:
        return VIEWS_OF_BITS[name](x)

    x = torch.randn(3, 2)
    ours, theirs = kiln.compile(f)(x), f(x)
    assert [result.dtype for result in ours] == [their.dtype for their in theirs]
    assert all(torch.equal(result, other) for result, other in zip(ours, theirs, strict=True))
    assert sharing((x, *ours)) == sharing((x, *theirs))


def test_autocast_casts_what_it_casts_on_this_device() -> None:
    """On CPUs `mv` stays in float32, but products inside of a pseudo-inverse do not."""

    def f(weight: Tensor, x: Tensor) -> Results:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.mv(weight, x), torch.addmv(x, weight, x), weight @ weight, torch.linalg.pinv(weight)

    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(4)
    ours, theirs = kiln.compile(f)(weight, x), f(weight, x)
    assert [result.dtype for result in ours] == [their.dtype for their in theirs]
    torch.testing.assert_close(ours[:3], theirs[:3])


def test_gradients_of_complex_products() -> None:
    """Their formulas conjugate; in a backward the conjugates may be materialised."""

    def f(x: Tensor, angles: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(5, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(z.exp() * z).sum()

    x, angles = torch.randn(5, 8, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    ours, theirs = (torch.autograd.grad(g(x, angles), (x, angles)) for g in (kiln.compile(f, fullgraph=True), f))
    torch.testing.assert_close(ours, theirs)


def sizes_of_complex(z: Tensor) -> Results:
    return torch.linalg.norm(z), z.norm(dim=1), torch.dist(z, z + 1), z.tile(2, 1, 1)


def test_sizes_of_complex_numbers_are_real() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    torch.testing.assert_close(kiln.compile(sizes_of_complex, fullgraph=True)(z), sizes_of_complex(z))


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, torch.abs], ids=lambda one: one.__name__)
def test_gradients_of_complex_functions(function: Callable[[Tensor], Tensor]) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
    results = kiln.compile(lambda z: function(z))(z), function(z)
    torch.testing.assert_close(*[torch.autograd.grad(result, z, torch.ones_like(result)) for result in results])


def test_the_variance_of_complex_numbers_is_left_to_eager() -> None:
    def f(z: Tensor) -> Results:
        return *torch.var_mean(z, 1), z.std(), z.var(0)

    z = torch.randn(3, 4, dtype=torch.complex64)
    torch.testing.assert_close(kiln.compile(f)(z), f(z))
