"""Equal blocks that are compiled one by one share one compile; others do not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

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


@pytest.mark.parametrize("cache", [False, True])
def test_one_compile_for_a_pool_of_models(cache: bool, tmp_path: Path) -> None:
    options = {"cache": cache, "cache_dir": str(tmp_path)}
    originals = [Block() for _ in range(20)]
    pool = [kiln.compile(block, options=options) for block in originals]
    x = torch.rand(3, 8)
    for compiled, original in zip(pool, originals, strict=True):
        torch.testing.assert_close(compiled(x), original(x))
    report = kiln.report_of(pool[7])
    assert (report.compiles, report.loaded, len(pool[7].report().recompiles)) == (1, 0, 0)
    torch.testing.assert_close(pool[3](torch.rand(5, 8)).shape, torch.Size([5, 8]))


def test_models_of_a_pool_have_their_own_state() -> None:
    originals = [Block() for _ in range(3)]
    pool = [kiln.compile(block, options={"cache": False}) for block in originals]
    x = torch.rand(3, 8)
    pool[0](x)
    originals[1].inner.weight.data.zero_()
    originals[2].register_forward_hook(lambda module, args, result: result * 2)
    originals[0].scale = 7.0
    for compiled, original in zip(pool, originals, strict=True):
        torch.testing.assert_close(compiled(x), original(x))
        compiled(x).sum().backward()
    assert originals[1].inner.bias.grad is not None and originals[0].inner.bias.grad is not originals[1].inner.bias.grad


def test_the_same_model_compiled_again_is_compiled_again() -> None:
    block, x = Block(), torch.rand(3, 8)
    reports = []
    for _ in range(2):
        compiled = kiln.compile(block, options={"cache": False})
        compiled(x)
        reports.append(kiln.report_of(compiled))
    assert distinct(reports) == 2 and [report.compiles for report in reports] == [1, 1]


def test_a_pool_is_not_kept_alive() -> None:
    pool = [kiln.compile(Block(), options={"cache": False}) for _ in range(2)]
    for compiled in pool:
        compiled(torch.rand(3, 8))
    seen = [weakref.ref(compiled.inner) for compiled in pool]
    del pool, compiled
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_optimizers_of_equal_models_share_a_session() -> None:
    models, expected = [nn.Linear(4, 4) for _ in range(3)], []
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    steps = [kiln.compile(optimizer.step, options={"cache": False}) for optimizer in optimizers]
    for model in models:
        model(torch.ones(4)).sum().backward()
        expected.append([value - 0.1 * value.grad for value in model.parameters() if value.grad is not None])
    compiles = []
    for step in steps:
        step()
        compiles.append(kiln.report_of(step).compiles)
    torch.testing.assert_close([list(model.parameters()) for model in models], expected)
    assert len({id(kiln.report_of(step)) for step in steps}) == 1
    assert compiles[2] - compiles[0] <= 2, "what an optimizer compiles is not compiled again for another"
    other = torch.optim.SGD(nn.Linear(4, 5).parameters(), lr=0.1)
    assert kiln.report_of(kiln.compile(other.step, options={"cache": False})) is not kiln.report_of(steps[0])


def test_after_a_reset_equal_modules_begin_again() -> None:
    first = Block()
    compiled = kiln.compile(first.forward)
    kiln.reset()
    again = kiln.compile(Block().forward)
    assert kiln.api.report_of(compiled) is not kiln.api.report_of(again)


def test_explain_tells_of_its_own_call() -> None:
    first, second = Block(), Block()
    kiln.compile(first)(torch.rand(3, 8))
    for explained in (kiln.explain(second), kiln.explain(second.forward), kiln.explain(first)):
        report = explained(torch.rand(3, 8))
        assert report.compiles + report.loaded == 1
    assert kiln.report_of(kiln.compile(second)).compiles <= 1


class Unhashable(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            self.add_module(str(number), part)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Unhashable()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) + 1


@pytest.mark.parametrize("kind", [Unhashable, Holder])
def test_modules_that_cannot_be_hashed(kind: type[nn.Module]) -> None:
    x = torch.rand(3)
    for module in (kind(), kind()):
        expected = module(x)
        assert torch.equal(kiln.compile(module)(x), expected)
        assert torch.equal(kiln.compile(module.forward)(x), expected)
