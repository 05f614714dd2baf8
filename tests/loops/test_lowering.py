"""Lowering: the loop program computes what the graph does, for every program of `programs.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.graph.ir.parse import parse_graph
from kiln.loops.lowering import ELEMENT, STATEMENT, lower
from kiln.loops.program.text import program_text
from kiln.support.events import EventSink
from tests.loops.checks import TARGET, assert_same, expected, lowered, results_of_program
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


def reasons(name: str) -> list[tuple[str, str]]:
    """(op, rule) of each value that got a buffer."""
    events = EventSink()
    lower(PROGRAMS[name]()[0], TARGET, events)
    (event,) = [event for event in events.events if event.kind == "realise"]
    return list(event.data["reasons"])


@pytest.mark.parametrize(
    ("name", "op", "rule"),
    [
        ("gelu", "mul", "in_memory"),
        ("shared_two_outputs", "exp", "in_memory"),
        ("softmax", "exp", "shared_work"),
        ("view_split", "exp", "shared_work"),
        ("broadcast_outer", "exp", "in_memory"),
        ("gathers", "exp", "repeated"),
        ("a_scale_for_each_group", "neg", "spread"),
        ("long_chain", "add", "deep"),
        ("nested_cats", "sin", "many_copies"),
        ("flipped_and_not", "exp", "many_copies"),
    ],
)
def test_why_a_value_has_a_buffer(name: str, op: str, rule: str) -> None:
    assert (op, rule) in reasons(name)


REFLECTED = """\
graph(%0: f32[32, 32 @D] "x"):
    %1: i64[40 @D] = iota(length=40, start=-4, step=1, dtype=i64, device=D)
    %2: i64[@D] = constant(value=31, dtype=i64, device=D)
    %3: i64[40 @D] = sub(%2, %1)
    %4: i64[40 @D] = abs(%3)
    %5: i64[40 @D] = sub(%2, %4)
    %6: i64[40 @D] = abs(%5)
    %7: i64[40 @D] = minimum(%6, %2)
    %8: f32[32, 40 @D] = index(%0, %7, axes=(1,))
    %9: f32[32 @D] = sum(%8, axes=(1,))
    %10: f32[40, 40 @D] = index(%8, %7, axes=(0,))
    return %9, %10"""


@pytest.mark.parametrize(("device", "has_buffer"), [("cpu", True), ("cuda:0", False)])
def test_what_is_computed_from_the_index_alone_has_a_buffer_on_a_cpu_only(device: str, has_buffer: bool) -> None:
    """There a vector of places is loaded faster than computed; a GPU waits for what another kernel made."""
    events = EventSink()
    lower(parse_graph(REFLECTED.replace("D", device)), TARGET, events)
    (event,) = [event for event in events.events if event.kind == "realise"]
    assert ("minimum" in [op for op, _ in event.data["reasons"]]) is has_buffer


def test_what_is_the_same_along_a_row_is_computed_by_each_reader() -> None:
    assert not [op for op, rule in reasons("sums_of_neighbours") if op == "where"]


def test_copies_of_whole_buffers_are_left_out() -> None:
    text = program_text(lowered(PROGRAMS["copies_of_copies"]()[0]))
    assert text.count("pointwise") == 2  # exp, and the copy that the caller gets


def test_a_mask_is_dropped_where_the_index_is_inside() -> None:
    text = program_text(lowered(PROGRAMS["normalised_pad"]()[0]))
    assert "load a1[i1] if" not in text and "load a0[i0, i1, i2 - 1, i3 - 1] if" in text


def test_one_live_input_of_cat_is_a_view_of_nothing_else() -> None:
    assert "kiln.empty" not in program_text(lowered(PROGRAMS["cat_of_one"]()[0]))
