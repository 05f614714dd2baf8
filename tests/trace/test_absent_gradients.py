"""Which gradients exist, as values of the backward graph."""

from __future__ import annotations

from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.trace.absent_gradients import with_existence

BACKWARD = """\
graph(%0: b8[] "p", %1: b8[] "q", %2: f32[4] "t"):
    %3: (f32[4], f32[4], b8[]) = cond(%0, %2, true=@0, false=@1, exist=((1, 2),))
        @0 = graph(%0: f32[4] "t"):
            %1: f32[4] = neg(%0)
            %2: f32[4] = sin(%0)
            %3: b8[] = constant(value=True, dtype=b8, device=cpu)
            return %1, %2, %3
        @1 = graph(%0: f32[4] "t"):
            %1: f32[4] = neg(%0)
            %2: f32[4] = cos(%0)
            %3: b8[] = constant(value=False, dtype=b8, device=cpu)
            return %1, %2, %3
    %4: f32[4] = item(%3, index=0)
    %5: f32[4] = item(%3, index=1)
    %6: (f32[4], b8[]) = cond(%1, %5, true=@0, false=@1, exist=((0, 1),))
        @0 = graph(%0: f32[4] "t"):
            %1: f32[4] = neg(%0)
            %2: b8[] = constant(value=False, dtype=b8, device=cpu)
            return %1, %2
        @1 = graph(%0: f32[4] "t"):
            %1: f32[4] = sin(%0)
            %2: b8[] = constant(value=True, dtype=b8, device=cpu)
            return %1, %2
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
    assert graph_text(made).splitlines()[-8:] == [
        "    %10: b8[] = item(%3, index=2)",
        "    %11: b8[] = item(%6, index=1)",
        "    %12: b8[] = bitwise_and(%11, %10)",
        "    %13: b8[] = bitwise_or(%10, %12)",
        "    %14: b8[] = clone(%10, strides=None)",
        "    %15: b8[] = clone(%12, strides=None)",
        "    %16: b8[] = clone(%13, strides=None)",
        "    return %4, %5, %7, %8, %9, %14, %15, %16",
    ]
