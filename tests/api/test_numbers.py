"""Python numbers that change from call to call are inputs of the region, not constants that need new variants."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def compiles(compiled: Any) -> int:
    return kiln.report_of(compiled).compiles


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_float_that_changed_becomes_an_input(dtype: torch.dtype) -> None:
    def scaled(x: Tensor, scale: float) -> Tensor:
        return x * scale + (1.0 - scale) / 2

    compiled, x = kiln.compile(scaled), torch.arange(6).to(dtype)
    for scale in (0.5, 0.25, -3.0, 1e-3, 7.0):
        got, expected = compiled(x, scale), scaled(x, scale)
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got, expected)
    assert compiles(compiled) == 2


def test_an_int_that_changed_becomes_an_input() -> None:
    compiled, x = kiln.compile(lambda x, n: x * n + x[: n + 1].sum()), torch.randn(20)
    for n in (1, 3, 2, 9, 5, 0):
        torch.testing.assert_close(compiled(x, n), x * n + x[: n + 1].sum())
    assert compiles(compiled) == 2
    torch.testing.assert_close(compiled(x, 4), x * 4 + x[:5].sum())


def test_dynamic_makes_an_input_at_once() -> None:
    compiled, x = kiln.compile(lambda x, a, n: x * a + n, dynamic=True), torch.randn(3)
    for a, n in ((0.5, 1), (2.5, 7), (-1.0, 2)):
        torch.testing.assert_close(compiled(x, a, n), x * a + n)
    assert compiles(compiled) == 1


def test_numbers_of_a_module_and_of_keyword_arguments() -> None:
    class Scale(torch.nn.Module):
        scale = 1.0

        def forward(self, x: Tensor, **factors: float) -> Tensor:
            return x * self.scale + factors["by"]

    model, x = Scale(), torch.randn(3)
    compiled = kiln.compile(model)
    for number in (1.0, 2.0, 3.5, 4.5, 5.0):
        model.scale = number
        torch.testing.assert_close(compiled(x, by=number * 2), x * number + number * 2)
    assert compiles(compiled) <= 3


def test_a_branch_on_a_float_is_guarded() -> None:
    def branch(x: Tensor, a: float) -> Tensor:
        return x * a if a > 1.0 else x - a

    compiled, x = kiln.compile(branch), torch.randn(3)
    for a in (0.5, 2.0, 0.25, 3.0, 0.5, 1.0):
        torch.testing.assert_close(compiled(x, a), branch(x, a))


def test_signed_zero_nan_and_infinity() -> None:
    compiled, x = kiln.compile(lambda x, a: x * a), torch.ones(2)
    for a in (1.0, 0.5, -0.0, 0.0, math.inf, math.nan, -math.inf):
        got, expected = compiled(x, a), x * a
        assert torch.equal(torch.signbit(got), torch.signbit(expected))
        torch.testing.assert_close(got, expected, equal_nan=True)


def test_a_float_in_a_training_step() -> None:
    compiled = kiln.compile(lambda x, w, a: ((x * w).sin() * a).sum())
    for a in (0.5, 1.5, 2.5, -1.0):
        x, w = torch.randn(4), torch.randn(4, requires_grad=True)
        loss = compiled(x, w, a)
        (got,) = torch.autograd.grad(loss, w)
        (expected,) = torch.autograd.grad(((x * w).sin() * a).sum(), w)
        torch.testing.assert_close(got, expected)
    assert compiles(compiled) == 2


def test_numbers_as_results_and_across_a_break() -> None:
    def program(x: Tensor, a: float, n: int) -> Any:
        y = x * a
        if y.sum() > 0:
            y = y + n
        return y, a * 2 + x.shape[0], n * x.shape[0] + 1, a

    compiled = kiln.compile(program)
    for size, a, n in ((3, 0.5, 1), (4, 1.5, 2), (5, 2.5, 3), (6, 3.5, 4)):
        x = torch.randn(size)
        got, expected = compiled(x, a, n), program(x, a, n)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1:] == expected[1:] and [type(value) for value in got[1:]] == [float, int, float]


def test_what_takes_only_numbers_gets_them() -> None:
    def program(x: Tensor, p: float, n: int) -> Any:
        text = f"{p:.2f} {n}" + "ab" * n
        return torch.nn.functional.leaky_relu(x, p) + x.sum(n % 2), [n] * n, text, round(p, 1), {n: p}, divmod(n, 2)

    compiled = kiln.compile(program)
    x = torch.randn(3, 3)
    for p, n in ((0.5, 1), (0.25, 2), (0.75, 3)):
        got, expected = compiled(x, p, n), program(x, p, n)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1:] == expected[1:]


def test_a_users_backend_gets_a_tensor_and_its_item() -> None:
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(" ".join(str(node.target) for node in module.graph.nodes if node.op != "call_function"))
        return module.forward

    compiled, x = kiln.compile(lambda x, a: x * (a + 1), backend=backend), torch.randn(3)
    for a in (0.5, 1.5, 2.5):
        torch.testing.assert_close(compiled(x, a), x * (a + 1))
    assert graphs == ["x output", "x a item output"]


def test_reset_forgets() -> None:
    compiled, x = kiln.compile(lambda x, a: x * a), torch.randn(3)
    for a in (0.5, 1.5, 2.5):
        compiled(x, a)
    kiln.reset()
    report = kiln.report_of(compiled)
    assert (report.compiles, report.regions, report.seconds) == (0, 0, {})
    compiled(x, 0.5)
    assert compiles(compiled) == 1
    compiled(x, 1.5)
    assert compiles(compiled) == 2


def test_kernels_that_differ_in_the_sign_of_zero() -> None:
    x = torch.ones(3)
    for zero in (0.0, -0.0, 0.0):
        compiled = kiln.compile(lambda x, zero=zero: torch.copysign(x, torch.full((), zero)))
        assert torch.equal(compiled(x), torch.copysign(x, torch.full((), zero)))


def as_python(function: Any, *args: Any) -> Any:
    """The result with the types of its numbers, or the exception."""
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error)
    return [(type(item), item.tolist() if isinstance(item, Tensor) else item) for item in result]


def whole_numbers(x: Tensor, n: int) -> Any:
    signs = -n, abs(-n), ~n, n // -3, n % -3, -n // 2, divmod(-n, 3), x * (-n // 2)
    bits = n << 2, n >> 1, n & 3, n | 8, n ^ 1, n.bit_length(), bin(n)
    powers = n**2, 2**n, n**-1, 0.9**n, math.sqrt(n), n**n
    return *signs, *bits, *powers, min(n, 2.5), max(n, 2.5), float(n), int(n / 2), math.floor(n / 2), x * int(n / 2)


def real_numbers(x: Tensor, a: float) -> Any:
    whole = int(a), x * int(a), round(a), math.floor(a), math.ceil(a), math.trunc(a), int(a * 2)
    return (
        *whole,
        a // 1,
        a % 1,
        divmod(a, 1),
        abs(a),
        a**2,
        a**3,
        (-a) ** 2,
        min(a, 2),
        max(a, 1),
        x * (a // 2),
        f"{a:.1f}",
    )


@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize(
    "function, numbers", [(whole_numbers, (2, 3, 7, 1, 8)), (real_numbers, (1.5, 2.75, -2.5, -0.0))]
)
def test_operators_of_numbers_give_pythons_results_and_types(function: Any, numbers: Any, backend: str) -> None:
    compiled, x = kiln.compile(function, backend=backend), torch.ones(2)
    for number in numbers:
        assert as_python(compiled, x, number) == as_python(function, x, number)


@pytest.mark.parametrize("numbers", [(-1, -2, 3, 4, -7, 0, 1), (3, 4, 1 << 62, 1 << 63, 1 << 70, -(1 << 63))])
def test_numbers_that_no_size_can_be_are_constants(numbers: Any) -> None:
    def function(x: Tensor, n: int) -> Any:
        return x * (n // 2 % 1000), n % 5, x + n % 3, n * n

    compiled = kiln.compile(function)
    for n in numbers:
        assert as_python(compiled, torch.ones(2), n) == as_python(function, torch.ones(2), n)


def test_a_divisor_that_becomes_zero_raises_where_the_program_divides() -> None:
    def function(x: Tensor, a: float, seen: list[float]) -> Any:
        x.add_(1)
        seen.append(a)
        return x * (3.0 / (1 - a)), a % (a - 2.5)

    def whole(x: Tensor, n: int, seen: list[int]) -> Any:
        seen.append(n)
        return x * (7 // n), 7 % n, x * (1 / n)

    for plain, numbers in ((function, (2.0, 3.0, 4.0, 1.0, 5.0, 2.5, 6.0)), (whole, (2, 3, 4, 0, 5))):
        compiled: Any = kiln.compile(plain)
        sides: Any = [(compiled, torch.ones(1), []), (plain, torch.ones(1), [])]
        for number in numbers:
            got, expected = (as_python(side, x, number, seen) for side, x, seen in sides)
            assert got == expected
        assert sides[0][1:] == sides[1][1:]


def test_a_schedule_of_steps_compiles_twice() -> None:
    def step(p: Tensor, m: Tensor, count: int) -> Tensor:
        return p - m / (1 - 0.9**count) / math.sqrt(count)

    compiled, p, m = kiln.compile(step), torch.ones(3), torch.randn(3)
    for count in range(1, 7):
        torch.testing.assert_close(compiled(p, m, count), step(p, m, count))
    assert compiles(compiled) == 2


def test_numbers_of_constant_tensors() -> None:
    def function(x: Tensor) -> Any:
        return int(torch.tensor(2.7)), float(torch.tensor(3)), x * int(torch.tensor(2.7)), torch.tensor(2).item()

    assert as_python(kiln.compile(function), torch.ones(1)) == as_python(function, torch.ones(1))


def test_numbers_of_sizes_stay_symbols() -> None:
    def function(x: Tensor) -> Tensor:
        scale = x.shape[0] ** 0.5 + (x.shape[0] - 1) / 2 + math.prod(x.shape) + int(x.shape[0] / 2)
        return x * scale / max(x.numel(), 1)

    compiled = kiln.compile(function, dynamic=True)
    for size in (2, 3, 7, 5):
        torch.testing.assert_close(compiled(torch.ones(size, 3)), function(torch.ones(size, 3)))
    assert compiles(compiled) == 1
