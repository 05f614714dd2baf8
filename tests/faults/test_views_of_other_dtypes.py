"""Results in the memory of an input or another result, under another dtype, are views with eager's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.tensor.strided_view import strided_view
from tests.faults.outcome import assert_like_eager

FLOATS = torch.arange(24.0).reshape(3, 4, 2)
NUMBERS = torch.view_as_complex(FLOATS)


def bits_changed(x: Tensor) -> Any:
    bits = x.view(torch.int32)
    bits.add_(1)
    return bits


def parts_changed(x: Tensor) -> Any:
    y = x * 2
    y.real.add_(1)
    return torch.view_as_real(x), y.imag, y


PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "bits": (lambda x: x.view(torch.int32), FLOATS),
    "bytes of a part": (lambda x: (x.view(torch.uint8)[1:, ::2], x + 1), FLOATS),
    "larger numbers": (lambda x: x[1:].view(torch.float64).transpose(0, 1), FLOATS),
    "changed bits": (bits_changed, FLOATS),
    "bytes of a mask": (lambda x: x.view(torch.uint8), FLOATS > 3),
    "complex": (torch.view_as_complex, FLOATS),
    "complex, through another shape": (lambda x: torch.view_as_complex(x.reshape(len(x), -1, 2))[1:], FLOATS),
    "real": (lambda x: torch.view_as_real(x).flatten(1), NUMBERS),
    "parts": (lambda x: (x.real, x[1:].imag), NUMBERS),
    "a result and its parts": (parts_changed, NUMBERS),
    "a result as complex": (lambda x: (torch.view_as_complex(y := x * 2), y, y[0]), FLOATS),
}


def outcome(program: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Results with their layouts, versions and gradients, and whether they are in the memory of the argument."""
    results = program(x)
    results = results if isinstance(results, tuple) else (results,)
    facts: list[Any] = [x._version]
    for result in results:
        shared = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        facts += [result.dtype, result.stride(), result.storage_offset(), result.requires_grad, shared]
        if shared:
            facts.append(result._version)
    if any(result.requires_grad for result in results):
        parts = [torch.view_as_real(r) if r.is_complex() else r for r in results if r.requires_grad]
        sum((part * torch.arange(part.numel()).view(part.shape)).sum() for part in parts).backward()
    return facts, [result.detach() for result in results], x.grad


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_in_memory_of_another_dtype(name: str, training: bool, dynamic: bool | None) -> None:
    program, base = PROGRAMS[name]
    if training and (base.dtype is torch.bool or name == "changed bits"):
        pytest.skip("no gradient")
    compiled = kiln.compile(program, dynamic=dynamic, options={"cache": False})
    for rows in (3, 3, 2):
        x, y = (base[:rows].clone().requires_grad_(training) for _ in range(2))
        (facts, *values), (expected_facts, *expected) = outcome(compiled, x), outcome(program, y)
        assert facts == expected_facts
        torch.testing.assert_close(values, expected)
    assert not kiln.report_of(compiled).eager_reasons


def test_a_base_that_starts_later() -> None:
    compiled = kiln.compile(lambda x: (x.view(torch.int16)[1:], torch.view_as_complex(x.view(-1, 2))))
    for start in (0, 4, 2):
        x = torch.arange(12.0)[start : start + 6]
        for actual, expected in zip(
            compiled(x), (x.view(torch.int16)[1:], torch.view_as_complex(x.view(-1, 2))), strict=True
        ):
            assert actual.storage_offset() == expected.storage_offset()
            torch.testing.assert_close(actual, expected)


def test_without_gradients_a_view_shares_the_version() -> None:
    x = torch.arange(6.0)
    with torch.no_grad():
        bits = kiln.compile(lambda x: x.view(torch.int32))(x)
    bits.add_(1)
    assert x._version == bits._version == 1


def test_an_exported_program_shares_memory() -> None:
    program = kiln.export(lambda x: (x.view(torch.int32), torch.view_as_complex(x)), (FLOATS.clone(),))
    x = FLOATS.clone()
    bits, numbers = program(x)
    x.mul_(2)
    torch.testing.assert_close((bits, numbers), (x.view(torch.int32), torch.view_as_complex(x)))


def test_a_strided_view_of_bytes_that_do_not_fill_a_number() -> None:
    x = torch.arange(7, dtype=torch.int32)
    torch.testing.assert_close(strided_view(x, torch.int64, (2,), (1,), 1), x[2:6].view(torch.int64))


LARGER: dict[str, Callable[[Tensor], object]] = {
    "a view": lambda x: x.view(torch.float64),
    "a value": lambda x: x.view(torch.int64) + 1,
    "of a part": lambda x: x[1:5].view(torch.int64) + 1,
    "complex numbers": lambda x: torch.view_as_complex(x.view(-1, 2)) * 2,
    "of smaller elements": lambda x: x.view(torch.int16).view(torch.int64) + 1,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LARGER)
def test_larger_elements_begin_at_multiples_of_their_size(name: str, dynamic: bool | None) -> None:
    program, compiled = LARGER[name], kiln.compile(LARGER[name], dynamic=dynamic)
    for begin in (0, 1, 4, 3, 2, 1):
        x = torch.arange(20.0)[begin : begin + 8]
        assert_like_eager(compiled, program, x)
    assert compiled.report().compiles <= 3
