"""Equal blocks that are compiled one by one share one compile; others do not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import kiln


class Block(nn.Module):
    def __init__(self, width: int = 8, scale: float = 2.0, shape: Sequence[int] = (-1, 8)) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.scale, self.shape, self.name = scale, list(shape), ""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x)).relu() * self.scale + len(self.name)


@pytest.fixture(autouse=True)
def no_session_of_earlier_tests() -> None:
    kiln.reset()


def compiled_blocks(blocks: Sequence[Block]) -> list[kiln.Report]:
    """Their reports, in order."""
    for block in blocks:
        block.forward = kiln.compile(block.forward, options={"cache": False})  # type: ignore[method-assign]
    x = torch.rand(3, 8)
    for block in blocks:
        torch.testing.assert_close(block(x), Block.forward(block, x))
    return [kiln.api.report_of(block.forward) for block in blocks]


def distinct(reports: Sequence[kiln.Report]) -> int:
    return len({id(report) for report in reports})


def test_one_compile_for_equal_blocks() -> None:
    reports = compiled_blocks([Block() for _ in range(57)])
    assert distinct(reports) == 1
    assert reports[0].compiles == 1


def test_gradients_go_to_the_parameters_of_each_block() -> None:
    blocks = [Block() for _ in range(3)]
    compiled_blocks(blocks)
    x = torch.rand(3, 8)
    for block in blocks:
        block.zero_grad()
        block(x).sum().backward()
        found = [parameter.grad for parameter in block.parameters()]
        block.zero_grad()
        Block.forward(block, x).sum().backward()
        torch.testing.assert_close(found, [parameter.grad for parameter in block.parameters()])


def test_what_differs_is_compiled_apart() -> None:
    reports = compiled_blocks([Block(), Block(scale=3.0), Block(shape=(8, -1)), Block().eval()])
    assert distinct(reports) == 4


def test_a_block_that_is_changed_later_gets_a_variant() -> None:
    blocks = [Block() for _ in range(2)]
    compiled_blocks(blocks)
    blocks[1].scale = 5.0
    x = torch.rand(3, 8)
    for block in blocks:
        torch.testing.assert_close(block(x), Block.forward(block, x))


def test_each_block_may_have_as_many_variants_as_a_function() -> None:
    """Attributes that differ after compiling: 12 variants in one session, which alone may have 8."""
    blocks = [Block() for _ in range(12)]
    for block in blocks:
        block.forward = kiln.compile(block.forward, options={"cache": False})  # type: ignore[method-assign]
    x = torch.rand(3, 8)
    for number, block in enumerate(blocks):
        block.name = "b" * number
        torch.testing.assert_close(block(x), Block.forward(block, x))
    report = kiln.api.report_of(blocks[0].forward)
    assert (report.compiles, report.eager) == (12, 0)


def test_blocks_are_not_kept_alive() -> None:
    blocks = [Block() for _ in range(2)]
    compiled_blocks(blocks)
    seen = [weakref.ref(block) for block in blocks]
    del blocks
    gc.collect()
    assert [reference() for reference in seen] == [None, None]
