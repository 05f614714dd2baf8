"""Results of loops that nothing reads are dropped, with the carried values that nothing else needs."""

from __future__ import annotations

import torch

from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes.unused_states import without_unused_states

COUNTED = """\
graph(%0: i64[] "n", %1: i64[] "i", %2: f32[4] "x", %3: f32[4] "y", %4: f32[4] "w"):
    %5: (i64[], i64[], f32[4], f32[4]) = while_loop(%0, %1, %2, %3, %4, test=@0, body=@1)
        @0 = graph test(%0: i64[] "n", %1: i64[] "i", %2: f32[4] "x", %3: f32[4] "y", %4: f32[4] "w"):
            %5: i64[] = constant(value=3, dtype=i64, device=cpu)
            %6: b8[] = lt(%1, %5)
            return %6
        @1 = graph body(%0: i64[] "n", %1: i64[] "i", %2: f32[4] "x", %3: f32[4] "y", %4: f32[4] "w"):
            %5: i64[] = constant(value=1, dtype=i64, device=cpu)
            %6: i64[] = add(%0, %5)
            %7: i64[] = add(%1, %5)
            %8: f32[4] = mul(%2, %4)
            %9: f32[4] = add(%3, %2)
            return %6, %7, %8, %9
    %6: i64[] = item(%5, index=0)
    %7: f32[4] = item(%5, index=INDEX)
    return %6"""

SCAN = """\
graph(%0: f32[8] "c", %1: f32[8] "d", %2: f32[5, 8] "x"):
    %3: (f32[8], f32[8], f32[5, 8], f32[5]) = scan(%0, %1, %2, body=@0, carried=2, rows=1)
        @0 = graph body(%0: f32[8] "c", %1: f32[8] "d", %2: f32[8] "row"):
            %3: f32[8] = add(%0, %2)
            %4: f32[8] = mul(%1, %0)
            %5: f32[] = sum(%3, axes=(0,))
            %6: f32[8] = neg(%4)
            return %3, %4, %6, %5
    %4: f32[5] = item(%3, index=3)
    return %4"""


def test_the_loop_that_counts() -> None:
    graph = parse_graph(COUNTED.replace("INDEX", "2"))
    found, dropped = without_unused_states(graph)
    verify(found, "test")
    assert (
        dropped == 2
        and "mul" not in graph_text(found)
        and "(i64[], i64[]) = while_loop(%0, %1, %4" in graph_text(found)
    )
    inputs = [torch.tensor(0), torch.tensor(1), *torch.randn(3, 4)]
    assert interpret(found, inputs).outputs[0].item() == 2


def test_what_a_result_depends_on_in_a_later_turn_stays() -> None:
    text = COUNTED.replace("INDEX", "3")
    text = text[: text.rindex("return")] + "return %7"
    graph = parse_graph(text)
    found, dropped = without_unused_states(graph)
    verify(found, "test")
    assert dropped == 1
    inputs = [torch.tensor(0), torch.tensor(0), *torch.randn(3, 4)]
    torch.testing.assert_close(interpret(found, inputs).outputs, interpret(graph, inputs).outputs)


def test_rows_of_a_scan() -> None:
    graph = parse_graph(SCAN)
    found, dropped = without_unused_states(graph)
    verify(found, "test")
    assert dropped == 2 and "carried=1, rows=1" in graph_text(found)
    inputs = [*torch.randn(2, 8), torch.randn(5, 8)]
    torch.testing.assert_close(interpret(found, inputs).outputs, interpret(graph, inputs).outputs)
