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
    assert (report.kernels, report.launches) == (1, 2)


def test_parts_of_rows_are_copied_by_one_kernel() -> None:
    def parts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, 1:, 3:].exp(), y[:, 4:, 2:].exp()

    x, y = torch.randn(4, 6, 40), torch.randn(5, 9, 30)
    for item, other in zip(kiln.compile(parts, fullgraph=True)(x, y), parts(x, y), strict=True):
        torch.testing.assert_close(item, other)
    assert kiln.explain(parts)(x, y).kernels == 1
