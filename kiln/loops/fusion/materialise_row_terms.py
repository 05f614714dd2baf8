"""Terms of a sum over rows are computed where the rows are, on a GPU.

    total[i0] = sum over (i1: 4096): exp(load x[i0, i1])
    loss      = sum over (i0: 32768): sub(log(load total[i0]), load x[i0, target[i0]])

    loss_terms[i0] = sub(log(load total[i0]), load x[i0, target[i0]])         joins the kernel that makes `total`
    loss           = sum over (i0: 32768): load loss_terms[i0]

A program that has just read a row finds its elements in the cache, and `total` need not be in memory; the sum, which
few programs compute, reads one number per row. (A CPU keeps what it read in its cache anyway.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kiln.loops.body.analyses import result_dtypes
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import points
from kiln.loops.program.analyses import node_axes, reads
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, Reduction
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec, contiguous_strides

LONG_ROW = 32
"""A row of so many elements is worth far more than one number."""


def with_row_terms(program: LoopProgram) -> LoopProgram:
    """`program` with nodes for the terms of reductions over rows, where an earlier reduction gave a number per row."""
    nodes: list[LoopNode] = []
    rows: dict[str, int] = {}
    for node in program.nodes:
        nodes += _apart(node) if isinstance(node, Reduction) and _is_over_rows(node, rows) else (node,)
        if isinstance(node, Reduction) and size_hint(points(node.reduced)) >= LONG_ROW:
            rows[node.out.name] = size_hint(points(node.kept))
    return replace(program, nodes=tuple(nodes))


def _is_over_rows(node: Reduction, rows: dict[str, int]) -> bool:
    """Is there a term per row, made of more than one number? `rows`: the lengths of what reductions of rows gave."""
    loads = reads(node)
    own = size_hint(points(node_axes(node)))
    return len(loads) > 1 and any(rows.get(one.buffer) == own for one in loads)


def _apart(node: Reduction) -> Iterator[LoopNode]:
    axes = node_axes(node)
    sizes = tuple(axis.size for axis in axes)
    (dtype,) = result_dtypes(node.body)
    spec = TensorSpec(dtype, sizes, contiguous_strides(sizes), 0, node.out.spec.device)
    terms = Buffer(f"{node.out.name}_terms", spec)
    yield Pointwise(terms, axes, node.body, node.origin)
    builder = BodyBuilder()
    term = builder.load(terms.name, tuple(axis.symbol for axis in axes), dtype)
    yield replace(node, body=builder.finish(term))
