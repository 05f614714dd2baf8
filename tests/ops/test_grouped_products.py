"""Products of groups of rows with a matrix each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kiln

ENDS = torch.tensor([4, 4, 16], dtype=torch.int32)

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "rows": ((16, 8), (3, 8, 16), True),
    "padded rows": ((16, 8), (3, 8, 12), True),
    "columns": ((3, 8, 8), (8, 16), True),
    "contracted": ((8, 16), (16, 16), True),
    "batches": ((3, 8, 8), (3, 8, 16), False),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_gradients_and_strides(case: str, dtype: torch.dtype) -> None:
    left, right, grouped = CASES[case]
    if dtype is torch.bfloat16 and case == "padded rows":
        pytest.skip("eager takes no rows of 24 bytes")
    torch.manual_seed(0)
    x, y = (torch.randn(sizes, dtype=dtype, requires_grad=True) for sizes in (left, right))
    ends = ENDS if grouped else None

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x * 2, y, offs=ends)

    expected, found = product(x, y), kiln.compile(product, fullgraph=True)(x, y)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    weights = torch.randn_like(expected)
    results = [torch.autograd.grad(made, (x, y), weights) for made in (expected, found)]
    torch.testing.assert_close(results[1], results[0])
    assert [part.stride() for part in results[0]] == [part.stride() for part in results[1]]


def test_the_number_of_rows_is_free() -> None:
    y = torch.randn(3, 8, 16)
    compiled: Any = kiln.compile(lambda x, ends: torch._grouped_mm(x, y, offs=ends) + 1, fullgraph=True)
    for rows in (16, 24, 32):
        x, ends = torch.randn(rows, 8), torch.tensor([4, 8, rows], dtype=torch.int32)
        torch.testing.assert_close(compiled(x, ends), torch._grouped_mm(x, y, offs=ends) + 1)
    assert compiled.report().compiles == 2


def test_what_eager_refuses() -> None:
    x, y = torch.randn(16, 8), torch.randn(3, 8, 16)
    compiled = kiln.compile(lambda x, y, ends: torch._grouped_mm(x, y, offs=ends) * 1)
    for given in ((x, y[:, :4], ENDS), (x, y, None), (x, y, ENDS[:2]), (x, y, ENDS.long()), (x, y.double(), ENDS)):
        for call in (compiled, lambda x, y, ends: torch._grouped_mm(x, y, offs=ends)):
            with pytest.raises(RuntimeError):
                call(*given)
