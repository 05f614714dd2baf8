"""Sums in 16-bit floats that are scattered on a GPU: by text, and against the interpreter on the CPU."""

from __future__ import annotations

from textwrap import dedent

import pytest

from kiln.graph.ir.text import graph_text
from kiln.graph.passes.wide_sums import WideSums
from tests.graph.passes.graphs import CONTEXT, drawn, on_cpu, on_gpu, same_values


def check(before: str, after: str) -> None:
    """Both leave the device out."""
    graph = on_gpu(before)
    changed, count = WideSums().run(graph, CONTEXT)
    assert count and graph_text(on_cpu(changed)) == dedent(after).strip()
    specs = [node.tensor for node in on_cpu(graph).inputs]
    inputs = [drawn(spec, {}) for spec in specs]
    inputs[1] = inputs[1].abs() % 5
    same_values(on_cpu(graph), on_cpu(changed), inputs)


def test_the_gradient_of_a_table() -> None:
    check(
        """
        graph(%0: bf16[5, 3] "x", %1: i64[9] "i", %2: bf16[9, 3] "v"):
            %3: bf16[5, 3] = index_put(%0, %1, %2, axes=(0,), accumulate=True)
            return %3
        """,
        """
        graph(%0: bf16[5, 3] "x", %1: i64[9] "i", %2: bf16[9, 3] "v"):
            %3: f32[5, 3] = convert(%0, dtype=f32)
            %4: f32[9, 3] = convert(%2, dtype=f32)
            %5: f32[5, 3] = index_put(%3, %1, %4, axes=(0,), accumulate=True)
            %6: bf16[5, 3] = convert(%5, dtype=bf16)
            return %6
        """,
    )


def test_sums_along_an_axis() -> None:
    check(
        """
        graph(%0: f16[5, 3] "x", %1: i64[9, 3] "i", %2: f16[9, 3] "v"):
            %3: f16[5, 3] = scatter(%0, %1, %2, axis=0, reduce="sum")
            return %3
        """,
        """
        graph(%0: f16[5, 3] "x", %1: i64[9, 3] "i", %2: f16[9, 3] "v"):
            %3: f32[5, 3] = convert(%0, dtype=f32)
            %4: f32[9, 3] = convert(%2, dtype=f32)
            %5: f32[5, 3] = scatter(%3, %1, %4, axis=0, reduce="sum")
            %6: f16[5, 3] = convert(%5, dtype=f16)
            return %6
        """,
    )


@pytest.mark.parametrize("dtype, reduce", [("f32", '"sum"'), ("bf16", '"amax"'), ("bf16", "None")])
def test_what_is_left_as_it_is(dtype: str, reduce: str) -> None:
    graph = on_gpu(f"""
        graph(%0: {dtype}[5, 3] "x", %1: i64[9, 3] "i", %2: {dtype}[9, 3] "v"):
            %3: {dtype}[5, 3] = scatter(%0, %1, %2, axis=0, reduce={reduce})
            return %3
    """)
    assert WideSums().run(graph, CONTEXT) == (graph, 0)
