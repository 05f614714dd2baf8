"""Kernels that differ only in sizes that their code does not need are shared."""

from __future__ import annotations

import torch
from torch.nn import functional

import kiln


def padded(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return functional.pad(x.relu(), (0, 0, 1, 1, 1, 1)), functional.pad(y.relu(), (0, 0, 1, 1, 1, 1))


def test_images_of_all_sizes_are_padded_by_one_kernel() -> None:
    x, y = torch.randn(2, 5, 6, 16), torch.randn(3, 9, 4, 24)
    for item, other in zip(kiln.compile(padded, fullgraph=True)(x, y), padded(x, y), strict=True):
        assert torch.equal(item, other)
    report = kiln.explain(padded)(x, y)
    assert (report.kernels, report.launches) == (1, 1)


def test_parts_of_rows_are_copied_by_one_kernel() -> None:
    def parts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, 1:, 3:].exp(), y[:, 4:, 2:].exp()

    x, y = torch.randn(4, 6, 40), torch.randn(5, 9, 30)
    for item, other in zip(kiln.compile(parts, fullgraph=True)(x, y), parts(x, y), strict=True):
        torch.testing.assert_close(item, other)
    assert kiln.explain(parts)(x, y).kernels == 1


def test_a_result_in_a_larger_buffer_shares_no_kernel_with_one_written_over_an_argument() -> None:
    def last_two(matrix: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first = matrix @ x + bias
        return torch.cat([x, matrix @ first + bias])

    matrix, bias, x = torch.randn(3, 3), torch.randn(3), torch.randn(3)
    torch.testing.assert_close(kiln.compile(last_two)(matrix, bias, x), last_two(matrix, bias, x))
