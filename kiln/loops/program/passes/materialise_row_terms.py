"""Materialise row terms: what a sum over rows adds up is computed by a loop of its own, on a GPU.

    total[i0] = sum over (i1: 4096): exp(load x[i0, i1])
    loss      = sum over (i0: 32768): sub(log(load total[i0]), load x[i0, target[i0]])

    loss_terms[i0] = sub(log(load total[i0]), load x[i0, target[i0]])         joins the kernel that makes `total`
    loss           = sum over (i0: 32768): load loss_terms[i0]

A program that has just read a row finds its elements in the cache, and `total` need not be in memory; the sum, which
few programs compute, then reads one number per row. A CPU keeps what it read in its cache anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import final

from kiln.loops.body.analyses import result_dtypes
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import points
from kiln.loops.program.analyses import node_axes, reads
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, Reduction
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec, contiguous_strides


@final
@dataclass(frozen=True)
class MaterialiseRowTerms:
    """`long_row`: elements from which on reading a row costs far more than reading one number."""

    long_row: int = 32
    name = "materialise-row-terms"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        nodes: list[LoopNode] = []
        row_counts: dict[str, int] = {}
        for node in program.nodes:
            if isinstance(node, Reduction):
                nodes += _separated(node) if _has_row_terms(node, row_counts) else (node,)
                if size_hint(points(node.reduced)) >= self.long_row:
                    row_counts[node.out.name] = size_hint(points(node.kept))
            else:
                nodes.append(node)
        return replace(program, nodes=tuple(nodes)), len(nodes) - len(program.nodes)


def _has_row_terms(node: Reduction, row_counts: Mapping[str, int]) -> bool:
    """Is there one term per row of an earlier reduction, computed from more than one load?"""
    loads = reads(node)
    own = size_hint(points(node_axes(node)))
    return len(loads) > 1 and any(row_counts.get(load.buffer) == own for load in loads)


def _separated(node: Reduction) -> Iterator[LoopNode]:
    axes = node_axes(node)
    sizes = tuple(axis.size for axis in axes)
    (dtype,) = result_dtypes(node.body)
    spec = TensorSpec(dtype, sizes, contiguous_strides(sizes), 0, node.out.spec.device)
    terms = Buffer(f"{node.out.name}_terms", spec)
    yield Pointwise(terms, axes, node.body, node.origin)
    builder = BodyBuilder()
    term = builder.load(terms.name, tuple(axis.symbol for axis in axes), dtype)
    yield replace(node, body=builder.finish(term))
