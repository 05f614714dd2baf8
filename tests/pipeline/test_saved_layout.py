"""What is saved of padded products: by text, and forward with backward against the partition without padding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kiln.graph.autograd import JointGraph, Partition, partition
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.verify import verify
from kiln.graph.passes.unfuse_bias import UnfuseBias
from kiln.pipeline.context import CompileContext
from kiln.pipeline.saved_layout import saved_as_made
from kiln.plan.signature import SavedTensor
from kiln.runtime.cache.store import DiskStore
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target
from kiln.symbolic import ShapeEnv, Symbol
from tests.graph.passes.graphs import drawn
from tests.graph.passes.test_align_products import ALWAYS, NO_SYMBOLS, body, env_of, on_cpu, on_gpu

HEAD = """
graph(%0: bf16[{rows}, 8] "x", %1: bf16[8, 11] "w", %2: f32[{rows}, 11] "tangent"):
    %3: bf16[{rows}, 11] = aten.mm.default(%0, %1)
    %4: f32[{rows}, 11] = convert(%3, dtype=f32)
    %5: f32[{rows}, 11] = exp(%4)
    %6: f32[{rows}, 11] = mul(%2, %5)
    %7: bf16[{rows}, 11] = convert(%6, dtype=bf16)
    %8: bf16[8, {rows} | 1, 8] = permute(%0, dims=(1, 0))
    %9: bf16[8, 11] = aten.mm.default(%8, %7)
    return {outputs}%5, %9
"""


def partitioned(first: str = "", rows: str = "16", env: ShapeEnv | None = None) -> Partition:
    """Outputs: `first`, the exponential; the gradient of `w`."""
    graph = on_gpu(HEAD.format(outputs=first, rows=rows))
    count = len(graph.outputs) - 1
    return partition(JointGraph(graph, 2, count, (), (count - 1,), (None, count), env=env))


def changed(parts: Partition, folder: Path, env: ShapeEnv | None = None) -> Partition:
    host = Target(vector_bytes=32)
    context = CompileContext(Options(), host, host, EventSink(), Dump(None), DiskStore(str(folder)), env)
    made = saved_as_made(parts, context, (UnfuseBias(), ALWAYS))
    verify(made.forward, "forward")
    verify(made.backward, "backward")
    assert made.saved == parts.saved
    return made


def run(parts: Partition, symbols: Mapping[Symbol, int] = NO_SYMBOLS) -> list[Tensor]:
    """The user's outputs and the gradients, for the same small numbers."""
    torch.manual_seed(0)
    inputs = [drawn(node.tensor, symbols) / 8 for node in on_cpu(parts.forward).inputs]
    with torch.backends.mkldnn.flags(enabled=False):
        outputs = interpret(on_cpu(parts.forward), inputs).outputs
        saved = [
            (inputs if entry.of == "input" else outputs)[entry.index]
            for entry in parts.saved
            if isinstance(entry, SavedTensor)
        ]
        for tensor, node in zip(saved, parts.backward.inputs, strict=False):
            assert tensor.stride() == node.tensor.strides
        tangents = [drawn(spec, symbols) for spec in parts.tangent_specs]
        gradients = interpret(on_cpu(parts.backward), [*saved, *[tangent.cpu() for tangent in tangents]]).outputs
    return [*outputs[: parts.num_user_outputs], *gradients]


def same(before: Partition, after: Partition, symbols: Mapping[Symbol, int] = NO_SYMBOLS) -> None:
    for a, b in zip(run(before, symbols), run(after, symbols), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
        assert a.stride() == b.stride()


def test_a_saved_product_is_no_copy(tmp_path: Path) -> None:
    before = partitioned()
    after = changed(before, tmp_path)
    assert any("clone" in line for line in body(after.backward))
    same(before, after)


def test_a_returned_product_has_eager_strides_and_is_saved_as_returned(tmp_path: Path) -> None:
    before = partitioned("%3, ")
    after = changed(before, tmp_path)
    same(before, after)


@pytest.mark.parametrize("first", ["", "%3, "])
def test_symbolic_rows(first: str, tmp_path: Path) -> None:
    env = env_of(s0=64)
    before = partitioned(first, "s0", env)
    after = changed(before, tmp_path, env)
    assert any(line.startswith("%") and "bf16[s0, 16] = aten.mm" in line for line in body(after.forward))
    assert any("clone" in line for line in body(after.backward)) or first
    assert not env.guards
    for number in (1, 5, 16):
        same(before, after, dict.fromkeys(env.symbols(), number))


def test_an_aligned_partition_is_the_same_object(tmp_path: Path) -> None:
    parts = changed(partitioned(), tmp_path)
    assert changed(parts, tmp_path) is parts
