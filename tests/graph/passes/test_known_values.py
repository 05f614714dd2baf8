"""What an earlier region has saved is read in a later one."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

import torch

from kiln.graph.ir.rewrite import without_dead_code
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes.known_values import Definitions, read_known_values
from tests.graph.passes.graphs import parsed

FIRST = """
graph(%0: f32[4, 4] "x", %1: f32[4, 4] "w"):
    %2: f32[4, 4] = aten.mm.default(%0, %1)
    %3: f32[4, 4] = tanh(%2)
    return %3
"""
GRADIENT = """
graph(%0: f32[4, 4] "x", %1: f32[4, 4] "w", %2: f32[4, 4] "tangent", %3: f32[4, 4] "saved"):
    %4: f32[4, 4] = aten.mm.default(%0, %1)
    %5: f32[4, 4] = tanh(%4)
    %6: f32[4, 4] = mul(%5, %5)
    %7: f32[4, 4] = mul(%2, %6)
    return %7
"""


def read(first: str, later: str, values: Sequence[torch.Tensor], given: int | None = None) -> str:
    """The first two inputs of `later` are those of `first`, whose result its input 3 is; or its input 3 is input
    `given` of `first`, with the value of its result."""
    defined, graph = parsed(first), parsed(later)
    result = defined.outputs[0].value
    positions = {node: number for number, node in enumerate(graph.inputs) if number != 2 and (given or number < 2)}
    pairs = () if given is None else ((given, result),)
    definitions = Definitions(defined, (0,), pairs)
    held = {} if given is not None else {0: graph.inputs[3]}
    made, before = read_known_values(graph, positions, held, definitions, values)
    made, _ = without_dead_code(made)
    verify(made, "test")
    assert set(before.values()) <= set(graph.nodes)
    return graph_text(made)


def test_a_saved_value_is_an_input() -> None:
    assert (
        read(FIRST, GRADIENT, [torch.zeros(4, 4)] * 2)
        == dedent("""
        graph(%0: f32[4, 4] "x", %1: f32[4, 4] "w", %2: f32[4, 4] "tangent", %3: f32[4, 4] "saved"):
            %4: f32[4, 4] = mul(%3, %3)
            %5: f32[4, 4] = mul(%2, %4)
            return %5
    """).strip()
    )


def test_an_input_with_a_definition_is_read() -> None:
    first = FIRST.replace('"w")', '"w", %9: f32[4, 4] "tangent", %8: f32[4, 4] "earlier")')
    assert "tanh" not in read(first, GRADIENT, [torch.zeros(4, 4)] * 4, given=3)


def test_sizes_of_the_call_stand_for_symbols() -> None:
    assert "tanh" not in read(FIRST.replace("4, 4", "s0, s0"), GRADIENT, [torch.zeros(4, 4)] * 2)


def test_other_values_are_computed() -> None:
    x = [torch.zeros(4, 4)] * 2
    assert "tanh" in read(FIRST.replace("mm.default(%0, %1)", "mm.default(%1, %0)"), GRADIENT, x)
    assert "tanh" in read(FIRST.replace("tanh(%2)", "sin(%2)"), GRADIENT, x)
    transposed = FIRST.replace("%3: f32[4, 4] = tanh", "%3: f32[4, 4 | 1, 4] = tanh")
    assert "tanh" in read(transposed, GRADIENT, x)


def test_random_numbers_are_those_of_one_graph() -> None:
    drawn = FIRST.replace("aten.mm.default(%0, %1)", "aten.bernoulli.default(%0)")
    again = GRADIENT.replace("aten.mm.default(%0, %1)", "aten.bernoulli.default(%0)")
    assert "tanh" in read(drawn, again, [torch.zeros(4, 4)] * 2)
