"""Large misaligned products that are only returned: equal values, aligned calls, and little memory besides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.passes import products_in_blocks
from kiln.graph.passes.manager import PassContext
from kiln.plan.plan import Plan
from kiln.plan.steps import AllocateStep, AtenStep, FreeStep
from tests.graph.passes.test_align_products import ALWAYS, on_gpu, plan_of, same_values

HEAD = """
graph(%0: bf16[1100, 16] "x", %1: bf16[51, 16] "w"):
    %2: bf16[16, 51 | 1, 16] = permute(%1, dims=(1, 0))
    %3: bf16[1100, 51] = aten.mm.default(%0, %2)
    return %3
"""
WITH_BIAS = """
graph(%0: bf16[1100, 16] "x", %1: bf16[51, 16] "w", %4: bf16[51] "b"):
    %2: bf16[16, 51 | 1, 16] = permute(%1, dims=(1, 0))
    %3: bf16[1100, 51] = aten.addmm.default(%4, %0, %2)
    %5: bf16[4, 275, 51] = view(%3, sizes=(4, 275, 51))
    return %5
"""
READ = HEAD.replace("    return %3\n", "    %4: bf16[1100, 51] = exp(%3)\n    return %3, %4\n")
LARGE = """
graph(%0: bf16[4096, 768] "x", %1: bf16[50257, 768] "w"):
    %2: bf16[768, 50257 | 1, 768] = permute(%1, dims=(1, 0))
    %3: bf16[4096, 50257] = aten.mm.default(%0, %2)
    return %3
"""


@pytest.fixture(autouse=True)
def small_results_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products_in_blocks, "LEAST_BYTES", 1)


def aligned(graph: Graph) -> Graph:
    return ALWAYS.run(graph, PassContext(GuardFreeOracle(None)))[0]


def products(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == "aten"]


@pytest.mark.parametrize("text", [HEAD, WITH_BIAS])
def test_values(text: str) -> None:
    graph = on_gpu(text)
    changed = aligned(graph)
    same_values(graph, changed)
    assert [node.tensor.sizes for node in products(changed)] == [*[(256, 48)] * 4, (76, 48), (1100, 3)]


def test_a_result_that_loops_read_is_padded_as_a_whole() -> None:
    assert len(products(aligned(on_gpu(READ)))) == 1


def test_an_addend_of_every_row_is_not_cut_into_blocks() -> None:
    text = WITH_BIAS.replace('%4: bf16[51] "b"', '%4: bf16[1100, 51] "b"')
    graph = on_gpu(text)
    changed = aligned(graph)
    same_values(graph, changed)
    assert len(products(changed)) == 1


def most_memory(plan: Plan) -> int:
    """Bytes that a plan holds at most besides its inputs; views hold none."""
    sizes: dict[int, int] = {}
    most = 0
    for step in plan.steps:
        made: list[tuple[int | None, object]] = []
        if isinstance(step, AllocateStep):
            made = [(step.out, step.spec)]
        elif isinstance(step, AtenStep):
            made = list(zip(step.outs, step.specs, strict=True))
        for slot, spec in made:
            assert slot is not None
            sizes[slot] = int(spec.numel()) * spec.dtype.itemsize  # type: ignore[attr-defined]
        most = max(most, sum(sizes.values()))
        for slot in step.slots if isinstance(step, FreeStep) else ():
            sizes.pop(slot, None)
    return most


def test_memory_of_an_odd_vocabulary(tmp_path: Path) -> None:
    """The logits of 4096 tokens and 50257 words, 412 MB, took 1.94 times as much."""
    plan = plan_of(on_gpu(LARGE), tmp_path)
    logits = torch.Size((4096, 50257)).numel() * 2
    assert most_memory(plan) < 1.08 * logits
