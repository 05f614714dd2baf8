"""The bias of a convolution on a GPU, and its gradient: by text, and against the interpreter on the CPU."""

from __future__ import annotations

from textwrap import dedent

import pytest

from kiln.graph.ir.text import graph_text
from kiln.graph.passes.convolution_bias import ConvolutionBias
from kiln.graph.passes.dead_code import DeadCode
from tests.graph.passes.graphs import CONTEXT, check_unchanged, on_cpu, on_gpu, same_values

FORWARD = """
graph(%0: f32[2, 3, 5, 5] "x", %1: f32[4, 3, 3, 3] "w", %2: f32[4] "b"):
    %3: f32[2, 4, 5, 5] = aten.convolution.default(%0, %1, %2, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    %4: f32[2, 4, 5, 5] = tanh(%3)
    return %4
"""
BACKWARD = """
graph(%0: f32[2, 4, 5] "g", %1: f32[2, 3, 7] "x", %2: f32[4, 3, 3] "w"):
    %3: (f32[2, 3, 7], f32[4, 3, 3], f32[4]) = aten.convolution_backward.default(%0, %1, %2, (4,), (1,), (0,), (1,), False, (0,), 1, (True, True, True))
    %4: f32[2, 3, 7] = item(%3, index=0)
    %5: f32[4, 3, 3] = item(%3, index=1)
    %6: f32[4] = item(%3, index=2)
    return %4, %5, %6
"""  # noqa: E501


def check(before: str, after: str) -> None:
    """Both leave the device out."""
    graph = on_gpu(before)
    changed, count = ConvolutionBias().run(graph, CONTEXT)
    changed, _ = DeadCode().run(changed, CONTEXT)
    assert count and graph_text(on_cpu(changed)) == dedent(after).strip()
    same_values(on_cpu(graph), on_cpu(changed))


def test_a_bias_is_added_by_the_op_that_follows() -> None:
    check(
        FORWARD,
        """
        graph(%0: f32[2, 3, 5, 5] "x", %1: f32[4, 3, 3, 3] "w", %2: f32[4] "b"):
            %3: f32[2, 4, 5, 5] = aten.convolution.default(%0, %1, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
            %4: f32[4, 1, 1] = view(%2, sizes=(4, 1, 1))
            %5: f32[2, 4, 5, 5] = add(%3, %4)
            %6: f32[2, 4, 5, 5] = tanh(%5)
            return %6
        """,
    )


def test_the_gradient_of_a_bias_is_a_sum() -> None:
    check(
        BACKWARD,
        """
        graph(%0: f32[2, 4, 5] "g", %1: f32[2, 3, 7] "x", %2: f32[4, 3, 3] "w"):
            %3: (f32[2, 3, 7], f32[4, 3, 3], none) = aten.convolution_backward.default(%0, %1, %2, (4,), (1,), (0,), (1,), False, (0,), 1, (True, True, False))
            %4: f32[2, 3, 7] = item(%3, index=0)
            %5: f32[4, 3, 3] = item(%3, index=1)
            %6: f32[4] = sum(%0, axes=(0, 2))
            return %4, %5, %6
        """,  # noqa: E501
    )


def test_a_copy_adds_it() -> None:
    """As behind a convolution whose result is laid out channels last."""
    check(
        FORWARD.replace("tanh(%3)", "clone(%3, strides=None)"),
        """
        graph(%0: f32[2, 3, 5, 5] "x", %1: f32[4, 3, 3, 3] "w", %2: f32[4] "b"):
            %3: f32[2, 4, 5, 5] = aten.convolution.default(%0, %1, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
            %4: f32[4, 1, 1] = view(%2, sizes=(4, 1, 1))
            %5: f32[2, 4, 5, 5] = add(%3, %4)
            %6: f32[2, 4, 5, 5] = clone(%5, strides=None)
            return %6
        """,
    )


LEAVES = FORWARD.replace("return %4", "return %4, %3")
READ_BY_A_LIBRARY = """
graph(%0: f32[2, 3, 5, 5] "x", %1: f32[3, 3, 1, 1] "w", %2: f32[3] "b"):
    %3: f32[2, 3, 5, 5] = aten.convolution.default(%0, %1, %2, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    %4: f32[2, 3, 5, 5] = aten.convolution.default(%3, %1, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    return %4
"""


OF_ANOTHER_DTYPE, OF_ONE_ELEMENT = (
    FORWARD.replace('f32[4] "b"', 'f64[4] "b"'),
    FORWARD.replace('f32[4] "b"', 'f32[1] "b"'),
)


@pytest.mark.parametrize("text", [LEAVES, READ_BY_A_LIBRARY, OF_ANOTHER_DTYPE, OF_ONE_ELEMENT])
def test_a_bias_stays(text: str) -> None:
    """Where the sum would be in memory, and where ATen refuses it."""
    graph = on_gpu(text)
    assert ConvolutionBias().run(graph, CONTEXT) == (graph, 0)


def test_libraries_of_a_cpu_have_a_bias() -> None:
    check_unchanged(ConvolutionBias(), FORWARD, BACKWARD)
