"""What is saved of padded products: by text, and forward with backward against the halves as they were cut."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from kiln.graph.autograd import JointGraph, Partition, partition
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.verify import verify
from kiln.graph.passes.unfuse_bias import UnfuseBias
from kiln.pipeline.context import CompileContext
from kiln.pipeline.saved_layout import saved_as_made
from kiln.runtime.cache.store import Store
from kiln.runtime.signature import SavedTensor
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target
from tests.graph.passes.test_align_products import ALWAYS, body, drawn, graph_of, on_cpu

HEAD = '%0: bf16[16, 8] "x", %1: bf16[8, 11] "w", %2: f32[16, 11] "tangent"'
LINES = (
    "%3: bf16[16, 11] = aten.mm.default(%0, %1)",
    "%4: f32[16, 11] = convert(%3, dtype=f32)",
    "%5: f32[16, 11] = exp(%4)",
    "%6: f32[16, 11] = mul(%2, %5)",
    "%7: bf16[16, 11] = convert(%6, dtype=bf16)",
    "%8: bf16[8, 16 | 1, 8] = permute(%0, dims=(1, 0))",
    "%9: bf16[8, 11] = aten.mm.default(%8, %7)",
    "return {outputs}%5, %9",
)


def halves_of(first: str = "") -> Partition:
    """Outputs: `first`, the exponential; the gradient of `w`."""
    graph = graph_of(HEAD, *[line.format(outputs=first) for line in LINES])
    count = len(graph.outputs) - 1
    return partition(JointGraph(graph, 2, count, (), (count - 1,), (None, count)))


def changed(halves: Partition, folder: Path) -> Partition:
    host = Target(vector_bytes=32)
    context = CompileContext(Options(), host, host, EventSink(), Dump(None), Store(str(folder)))
    made = saved_as_made(halves, context, (UnfuseBias(), ALWAYS))
    verify(made.forward, "forward")
    verify(made.backward, "backward")
    assert made.saved == halves.saved
    return made


def run(halves: Partition) -> list[Tensor]:
    """The user's outputs and the gradients, for the same small numbers."""
    torch.manual_seed(0)
    inputs = [drawn(node.tensor) / 8 for node in on_cpu(halves.forward).inputs]
    with torch.backends.mkldnn.flags(enabled=False):
        outputs = interpret(on_cpu(halves.forward), inputs).outputs
        saved = [
            (inputs if one.of == "input" else outputs)[one.index]
            for one in halves.saved
            if isinstance(one, SavedTensor)
        ]
        for one, node in zip(saved, halves.backward.inputs, strict=False):
            assert one.stride() == node.tensor.strides
        tangents = [drawn(spec) for spec in halves.tangent_specs]
        gradients = interpret(on_cpu(halves.backward), [*saved, *[one.cpu() for one in tangents]]).outputs
    return [*outputs[: halves.num_user_outputs], *gradients]


def same(before: Partition, after: Partition) -> None:
    for a, b in zip(run(before), run(after), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
        assert a.stride() == b.stride()


def test_a_saved_product_is_no_copy(tmp_path: Path) -> None:
    before = halves_of()
    after = changed(before, tmp_path)
    assert any("clone" in line for line in body(after.backward))
    same(before, after)


def test_a_returned_product_has_eager_strides_and_is_saved_as_returned(tmp_path: Path) -> None:
    before = halves_of("%3, ")
    after = changed(before, tmp_path)
    same(before, after)


def test_aligned_halves_are_the_same_object(tmp_path: Path) -> None:
    halves = changed(halves_of(), tmp_path)
    assert changed(halves, tmp_path) is halves
