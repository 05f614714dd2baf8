"""Which gradients exist, as values of the backward graph."""

from __future__ import annotations

from kiln.graph.autograd.absent_gradients import with_existence
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify

BACKWARD = """\
graph(%0: b8[] "p", %1: b8[] "q", %2: f32[4] "t"):
    %3: (f32[4], f32[4]) = cond(%0, %2, true=@0, false=@1, only_true=(1,), only_false=())
        @0 = graph(%0: f32[4] "t"):
            %1: f32[4] = neg(%0)
            %2: f32[4] = sin(%0)
            return %1, %2
        @1 = graph(%0: f32[4] "t"):
            %1: f32[4] = neg(%0)
            %2: f32[4] = cos(%0)
            return %1, %2
    %4: f32[4] = item(%3, index=0)
    %5: f32[4] = item(%3, index=1)
    %6: (f32[4],) = cond(%1, %5, true=@0, false=@1, only_true=(), only_false=(0,))
        @0 = graph(%0: f32[4] "t"):
            %1: f32[4] = neg(%0)
            return %1
        @1 = graph(%0: f32[4] "t"):
            %1: f32[4] = sin(%0)
            return %1
    %7: f32[4] = item(%6, index=0)
    %8: f32[4] = add(%5, %7)
    %9: f32[4] = add(%4, %7)
    return %4, %5, %7, %8, %9
"""


def test_a_value_exists_if_one_of_its_sources_does() -> None:
    graph = parse_graph(BACKWARD)
    verify(graph, "parse")
    made, numbers = with_existence(graph, graph.inputs[2:])
    verify(made, "with_existence")
    assert numbers == (None, 5, 6, 7, None)
    assert graph_text(made).splitlines()[-7:] == [
        "    %10: b8[] = logical_not(%1)",
        "    %11: b8[] = bitwise_and(%10, %0)",
        "    %12: b8[] = bitwise_or(%0, %11)",
        "    %13: b8[] = clone(%0, strides=None)",
        "    %14: b8[] = clone(%11, strides=None)",
        "    %15: b8[] = clone(%12, strides=None)",
        "    return %4, %5, %7, %8, %9, %13, %14, %15",
    ]
