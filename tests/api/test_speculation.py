"""Speculation in the whole compiler: the check is a plan, side exits are dispatchers of the session."""

from __future__ import annotations

import torch
from torch import Tensor

import kiln
from kiln.api import report_of


def masked(x: Tensor, mask: Tensor) -> Tensor:
    if mask.to(torch.bool).all():
        return x.exp()
    return x.masked_fill(mask == 0, 0.0).exp()


ONES, HOLES = torch.ones(4, dtype=torch.int64), torch.tensor([1, 1, 0, 0])


def test_masks_that_alternate() -> None:
    compiled, x = kiln.compile(masked, fullgraph=True), torch.randn(3, 4)
    for mask in (ONES, HOLES, ONES, 1 - HOLES, ONES):
        torch.testing.assert_close(compiled(x, mask), masked(x, mask))
    report = report_of(compiled)
    assert report.compiles == 2 and report.regions == 2
    assert any("assumes that the condition" in note and "is True" in note for note in report.notes)


def test_gradients_of_both_paths() -> None:
    compiled = kiln.compile(masked, fullgraph=True)
    for mask in (ONES, HOLES, ONES):
        mine, theirs = (torch.arange(12.0).reshape(3, 4).requires_grad_() for _ in range(2))
        compiled(mine, mask).sum().backward()
        masked(theirs, mask).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_variants_are_few_whatever_the_values() -> None:
    """Beyond the limit of side exits the branch breaks the graph; that variant is right for all values."""

    def f(x: Tensor, bits: Tensor) -> Tensor:
        for index in range(5):
            if bits[index]:
                x = x * (index + 2)
        return x

    compiled = kiln.compile(f, options={"variants": 3})
    for number in (*range(32), *range(31, -1, -1)):
        bits, x = torch.tensor([bool(number >> place & 1) for place in range(5)]), torch.ones(3)
        torch.testing.assert_close(compiled(x, bits), f(x, bits))


def test_a_check_that_needs_a_kernel() -> None:
    """Padding takes several ATen calls, so it stays a primitive of the check."""

    def f(x: Tensor, mask: Tensor) -> Tensor:
        longer = torch.nn.functional.pad(mask, (1, 0), value=1)
        return x + 1 if (longer[1:] <= longer[:-1]).all() else x - 1

    compiled = kiln.compile(f, fullgraph=True)
    for mask in (ONES, HOLES, 1 - HOLES, HOLES):
        torch.testing.assert_close(compiled(torch.ones(3), mask), f(torch.ones(3), mask))


def test_sizes_that_are_symbols() -> None:
    compiled = kiln.compile(masked, fullgraph=True, dynamic=True)
    for size in (4, 7, 9):
        for mask in (torch.ones(size, dtype=torch.int64), torch.arange(size)):
            x = torch.randn(3, size)
            torch.testing.assert_close(compiled(x, mask), masked(x, mask))
    assert report_of(compiled).compiles == 2
