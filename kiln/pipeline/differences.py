"""Compares a compiled run with eager's: what differs, in words; "" where nothing does.

    differences(found, expected, referee)      "gradient 1: largest error 0.5 at (3,): 1.5, eager 1.0"

Integers, truths, errors, dtypes, layouts and shared memory must be equal. Floating-point numbers may differ by
rounding: where they differ by more than `torch.testing` allows, the referee, a run of eager in float64, decides: our
largest error must be at most twice eager's. In strict numerics all bits must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, repeat
from typing import final

import torch

from kiln.pipeline.observation import Observation

Referee = Callable[[], Observation]
"""A run of eager in float64; asked only where results differ."""

TOLERANCE = {torch.float64: (1e-7, 1e-7), torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}
DEFAULT_TOLERANCE = (1.3e-6, 1e-5)
"""Relative and absolute, as `torch.testing.assert_close` has them."""
WITHOUT_REFEREE = 100
"""How much larger the relative tolerance is, in units of the dtype, where there is no referee."""


def differences(found: Observation, expected: Observation, referee: Referee | None, *, exact: bool = False) -> str:
    """The first difference of two runs."""
    if found.error is not None or expected.error is not None:
        return error_difference(found.error, expected.error)
    return _Comparison(referee, exact).first(found, expected)


def error_difference(found: Exception | None, expected: Exception | None) -> str:
    if found is not None and expected is not None and isinstance(found, type(expected)):
        return ""
    texts = [f"{type(error).__name__}: {error}" if error else "no error" for error in (found, expected)]
    return "{}, eager: {}".format(*[text.splitlines()[0] for text in texts])


@final
class _Comparison:
    """One comparison; runs the referee at most once."""

    def __init__(self, referee: Referee | None, exact: bool) -> None:
        self.referee = referee
        self.exact = exact
        self.reference: Observation | None = None

    def first(self, found: Observation, expected: Observation) -> str:
        for name, number, value, wanted in pairs(found, expected):
            problem = self.value_difference(name, number, value, wanted)
            if problem:
                return f"{name} {number}: {problem}"
        for number, (ours, theirs) in enumerate(zip(found.shared, expected.shared, strict=True)):
            if ours != theirs:
                return f"result {number} does not share memory as eager's does"
        return ""

    def value_difference(self, name: str, number: int, found: object, expected: object) -> str:
        if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
            both = found is not None and expected is not None
            return "" if found == expected or (both and found != found) else f"{found!r}, eager {expected!r}"
        problem = layout_difference(found, expected, strides=name != "gradient")
        if problem or found.layout is not torch.strided or equal_bits(found, expected):
            return problem
        if self.exact or not (found.is_floating_point() or found.is_complex()):
            return largest_error(found, expected)
        return self.rounding_difference(name, number, found, expected)

    def rounding_difference(self, name: str, number: int, found: torch.Tensor, expected: torch.Tensor) -> str:
        relative, absolute = TOLERANCE.get(found.dtype, DEFAULT_TOLERANCE)
        if torch.allclose(found, expected, relative, absolute, equal_nan=True):
            return ""
        if not same_special_values(found, expected):
            return largest_error(found, expected)
        exact = self.in_double(name, number)
        unit, scale = torch.finfo(found.dtype).eps, largest(expected)
        if exact is None or exact.shape != found.shape or not same_special_values(exact, expected):
            return largest_error(found, expected) if error(found, expected) > WITHOUT_REFEREE * unit * scale else ""
        ours, theirs = error(found, exact), error(expected, exact)
        if ours <= 2 * theirs + 4 * unit * scale:
            return ""
        return f"{largest_error(found, expected)} (against float64: {ours:.3g}, eager {theirs:.3g})"

    def in_double(self, name: str, number: int) -> torch.Tensor | None:
        """The value that the referee gives."""
        if self.referee is None:
            return None
        if self.reference is None:
            self.reference = self.referee()
        values = {"result": self.reference.results, "input": self.reference.inputs}.get(name, self.reference.gradients)
        value = values[number] if number < len(values) else None
        return value if isinstance(value, torch.Tensor) else None


def pairs(found: Observation, expected: Observation) -> Iterable[tuple[str, int, object, object]]:
    def named(name: str, left: Sequence[object], right: Sequence[object]) -> Iterable[tuple[str, int, object, object]]:
        if len(left) != len(right):
            return [(f"number of {name}s", 0, len(left), len(right))]
        return zip(repeat(name), count(), left, right, strict=False)

    return chain(
        named("result", found.results, expected.results),
        named("input", found.inputs, expected.inputs),
        named("gradient", found.gradients, expected.gradients),
    )


def layout_difference(found: torch.Tensor, expected: torch.Tensor, *, strides: bool = True) -> str:
    """Strides of dimensions of size 1 do not matter."""
    if found.dtype != expected.dtype or found.device != expected.device or found.shape != expected.shape:
        return f"{describe(found)}, eager {describe(expected)}"
    if not strides or found.layout is not torch.strided or not found.numel():
        return ""
    rows = zip(found.shape, found.stride(), expected.stride(), strict=True)
    if any(size > 1 and ours != theirs for size, ours, theirs in rows):
        return f"strides {tuple(found.stride())}, eager {tuple(expected.stride())}"
    return ""


def describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def equal_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """NaN equals NaN, whatever its payload; 0.0 does not equal -0.0."""
    if not (found.is_floating_point() or found.is_complex()):
        return torch.equal(found, expected)
    if found.is_complex():
        return equal_bits(torch.view_as_real(found.resolve_conj()), torch.view_as_real(expected.resolve_conj()))
    alike = (found == expected) & (found.signbit() == expected.signbit())
    return bool((alike | (found.isnan() & expected.isnan())).all())


def same_special_values(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """NaN and infinities at the same places."""
    if not torch.equal(found.isnan(), expected.isnan()):
        return False
    return found.is_complex() or torch.equal(found.isposinf(), expected.isposinf())


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return largest(found.to(torch.complex128 if found.is_complex() else torch.float64) - exact)


def largest(values: torch.Tensor) -> float:
    """The largest finite magnitude."""
    magnitudes = values.abs().double()
    return float(magnitudes.nan_to_num(0.0, 0.0, 0.0).max()) if values.numel() else 0.0


def largest_error(found: torch.Tensor, expected: torch.Tensor) -> str:
    """Where the difference is largest, and both values there."""
    wide = torch.complex128 if found.is_complex() else torch.float64
    distances = (found.to(wide) - expected.to(wide)).abs()
    both = found.isnan() & expected.isnan()
    distances = torch.where(both | (found == expected), 0.0, distances.nan_to_num(torch.inf, torch.inf))
    place = tuple(map(int, torch.unravel_index(distances.argmax(), distances.shape)))
    error = float(distances[place])
    return f"largest error {error:.3g} at {place}: {found[place].item()}, eager {expected[place].item()}"
