"""Functions of Python numbers that change from call to call: few compiles, whatever the number of calls.

What has no primitive is computed in front of the region, which takes the result as an input.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.linspace(-2, 2, 4, dtype=torch.float64)
OF_FLOATS = """
    round(f, 2); round(f, -1); round(f, ndigits) if (ndigits := 3) else 0; f % 0.3; f // 0.1; f ** -1; 2 ** f
    min(f, 0.5); max(0.2, f); sorted([f, 0.5])[0]; f if f > 0.5 else -f; sum([f, 1.0]); f or 1
    math.acos(f); math.acosh(f + 1); math.asin(f); math.asinh(f); math.atan(f); math.atan2(f, 2); math.atanh(f)
    math.cbrt(f); math.copysign(1, -f); math.copysign(f, -1); math.cos(f); math.cosh(f); math.degrees(f)
    math.dist([f, 1], [0, 0]); math.erf(f); math.erfc(f); math.exp(f); math.exp2(f); math.expm1(f); math.fabs(-f)
    math.fmod(f, 0.3); math.fsum([f, 1, f]); math.gamma(f + 1); math.hypot(f, 1, 2); math.ldexp(f, 3)
    math.isclose(f, 0.5) + 0; math.isfinite(f) + 0; math.isinf(f) + 0; math.isnan(f) + 0
    math.lgamma(f + 1); math.log(f + 1, 3); math.log10(f); math.log1p(f); math.log2(f); math.modf(f * 3)[0]
    math.modf(f * 3)[1]; math.nextafter(f, 1); math.pow(f, 1.5); math.prod([f, 2]); math.radians(f)
    math.remainder(f, 0.3); math.sin(f); math.sinh(f); math.sqrt(f); math.tan(f); math.tanh(f); math.ulp(f)
    round(math.gamma(f + 1) * f, 1); statistics.fmean([f, 1.0]); float(x.shape[0]) ** f; f * x.numel()
"""
OF_INTEGERS = """
    n // 3; n % 3; divmod(n, 4)[1]; n ** 2; 2 ** n; n & 3; 9 & n; n | 1; n ^ 5; n << 1; 1 << n; n >> 1; abs(n - 5); -n
    min(n, 5); max(n, 5); n / 3; n ** 0.5; n ** -1; round(n, -1); round(n / 3, 2); n.bit_length(); n.bit_count()
    math.comb(n, 2); math.factorial(n); math.gcd(n, 6); math.isqrt(n); math.lcm(n, 6); math.perm(n, 2)
    math.ceil(n / 3); math.floor(n / 4) * 2; math.gamma(n); math.sqrt(n); math.exp(-n); math.hypot(n, 1)
    x.new_ones(n >> 1).sum(); x.new_ones(1 << (n & 3)).cumsum(0)[-1]; x.expand(math.isqrt(n), 4).sum(0)
"""
FLOATS = (0.95, 0.847, 0.74, 0.63, 0.52, 0.41, 0.33, 0.27, 0.14, 0.08)
INTEGERS = (3, 4, 6, 5, 7, 8, 9, 10, 11, 12)
ROUNDED = (
    "int(f * 30)",
    "round(f * 100) / 100",
    "math.floor(f * 30)",
    "math.ceil(f * 30) * x.shape[0]",
    "x[: int(f * 4)].sum()",
)


def programs(lines: str, argument: str) -> dict[str, Any]:
    texts = [text.strip() for line in lines.split("\n") for text in line.split(";") if text.strip()]
    scope = {"math": math, "statistics": statistics}
    return {text: eval(f"lambda x, {argument}: x * 0 + ({text})", scope) for text in texts}


@pytest.mark.parametrize(
    ("lines", "argument", "values", "most"),
    [(OF_FLOATS, "f", FLOATS, 3), (OF_INTEGERS, "n", INTEGERS, 5), (";".join(ROUNDED), "f", FLOATS, 6)],
    ids=["floats", "integers", "rounded"],
)
def test_numbers_that_change(lines: str, argument: str, values: tuple[float, ...], most: int) -> None:
    """The first value, then the number as an input; integers are read by value, for four values in a row."""
    failures = {}
    for text, program in programs(lines, argument).items():
        compiled: Any = kiln.compile(program, backend="eager", options={"cache": False})
        for value in values:
            torch.testing.assert_close(compiled(X, value), program(X, value), rtol=1e-12, atol=1e-12)
        report = compiled.report()
        if report.compiles > most or report.eager or report.breaks:
            failures[text] = str(report)
    assert not failures


def test_a_function_that_raises_for_some_numbers() -> None:
    def program(x: Tensor, f: float) -> Tensor:
        try:
            return x * math.gamma(f)
        except ValueError:
            return x - 1

    compiled: Any = kiln.compile(program, backend="eager", options={"cache": False})
    for value in (2.5, 3.5, 0.0, 4.5, -1.0, 1.5, math.nan, 1000.0, math.inf):
        try:
            expected = program(X, value)
        except OverflowError:
            with pytest.raises(OverflowError):
                compiled(X, value)
        else:
            torch.testing.assert_close(compiled(X, value), expected, equal_nan=True)


def test_a_result_of_another_kind() -> None:
    """Negative and huge integers are no sizes: they become part of the guards."""
    compiled: Any = kiln.compile(lambda x, n: x * (n >> 1) + (n | 1), backend="eager", options={"cache": False})
    for value in (5, 6, 7, -5, -6, 2**61, 2**62, 8):
        torch.testing.assert_close(compiled(X, value), X * (value >> 1) + (value | 1))


def test_an_integer_that_sizes_decide() -> None:
    """As in vision transformers, which take the side of a square of patches."""

    def program(x: Tensor) -> Tensor:
        side = int(x.shape[1] ** 0.5)
        return x.view(x.shape[0], side, side, -1).sum(1) if side * side == x.shape[1] else x * math.isqrt(x.shape[1])

    compiled: Any = kiln.compile(program, options={"cache": False})
    for tokens in (9, 16, 25, 36, 49, 64, 50, 51, 81, 60):
        x = torch.randn(2, tokens, 3)
        torch.testing.assert_close(compiled(x), program(x))
    assert compiled.report().compiles <= 4 and not compiled.report().eager, compiled.report()


def test_numbers_of_tensors() -> None:
    """What tensors decide stays in the region, which checks that a root or a quotient exists."""

    def program(x: Tensor) -> Tensor:
        total = x.sum().item()
        return x * min(math.sqrt(total), 3.0) / max(1.0, total) + total**-0.8

    compiled: Any = kiln.compile(program, backend="eager", options={"cache": False})
    for number in range(1, 5):
        torch.testing.assert_close(compiled(X.abs() * number), program(X.abs() * number))
    with pytest.raises(ValueError, match="math domain error"):
        compiled(-X.abs())
    with pytest.raises(ZeroDivisionError):
        compiled(X * 0)
    assert compiled.report().compiles == 1 and not compiled.report().breaks


def test_numbers_of_tensors_that_are_not_numbers() -> None:
    """Python's `min` and `max` take the first of two where one is NaN."""

    def program(x: Tensor) -> list[Tensor]:
        number = x.sum().item()
        pairs = [(1.0, number), (number, 1.0)]
        return [x * 0 + choose(*pair) for choose in (min, max) for pair in pairs]

    compiled = kiln.compile(program, options={"cache": False}, fullgraph=True)
    for number in (0.5, 3.0, math.nan):
        x = torch.tensor([number, 0.0])
        torch.testing.assert_close(compiled(x)[0][1:], program(x)[0][1:], equal_nan=True)
        for got, expected in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)


def scaled(x: Tensor, f: float, n: int) -> Tensor:
    return x * round(f, 1) + (n >> 1) * math.gamma(f)


def test_the_second_process_computes_them_too(tmp_path: Any) -> None:
    """They are written to disk with the code."""
    options = {"cache_dir": str(tmp_path), "cache": True}
    for turn in range(2):
        compiled: Any = kiln.compile(scaled, options=options)
        for number in range(1, 4):
            torch.testing.assert_close(compiled(X, number + 0.37, number), scaled(X, number + 0.37, number))
        assert (compiled.report().loaded > 0) is (turn == 1)
        kiln.reset()


def test_truths_of_sizes_that_are_results_have_one_variant() -> None:
    """The transformed code compares the sizes of each call."""
    compiled = kiln.compile(truths, dynamic=True)
    for rows in (4, 7, 3, 12, 5):
        x = torch.ones(rows, 2)
        found, expected = compiled(x), truths(x)
        assert found[1:] == expected[1:] and list(map(type, found[1:])) == [bool] * 4
    assert compiled.report().compiles == 1


def truths(x: Tensor) -> Any:
    return x + 1, x.shape[0] > 5, x.shape[0] % 2 == 0, not x.shape[0] < 4, x.shape[0] != 7
