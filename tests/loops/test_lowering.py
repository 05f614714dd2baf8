"""Lowering: the loop program computes what the graph does, for every program of `programs.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.loops.ir.text import program_text
from kiln.loops.lowering import ELEMENT, STATEMENT
from tests.loops.checks import assert_same, expected, lowered, results_of_program
from tests.loops.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_equals_graph(name: str) -> None:
    graph, inputs = PROGRAMS[name]()
    program = lowered(graph)
    assert_same(results_of_program(program, graph, inputs), expected(graph, inputs))


@pytest.mark.parametrize("name", ["gelu", "add_layer_norm", "view_split", "rotary", "mlp", "embedding_backward"])
def test_text(name: str, golden: Callable[..., None]) -> None:
    golden(program_text(lowered(PROGRAMS[name]()[0])))


def test_every_op_has_a_rule() -> None:
    missing = set(ELEMENT.gaps()) - set(STATEMENT.cells)
    assert not missing
    assert not STATEMENT.gaps()
