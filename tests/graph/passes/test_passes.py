"""Each pass by text, checked by the interpreter; the list of passes as a whole."""

from __future__ import annotations

import pytest
import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes import GRAPH_PASSES, run_passes
from kiln.graph.passes.add_embedding import AddEmbedding
from kiln.graph.passes.constant_fold import ConstantFold
from kiln.graph.passes.cse import Cse
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.manager import GraphPass, PassContext, apply_passes
from kiln.graph.passes.pool_channels_last import PoolChannelsLast
from kiln.graph.passes.separate_outputs import SeparateOutputs
from kiln.graph.passes.unfuse_bias import UnfuseBias
from kiln.support.events import EventSink
from kiln.support.passes import before, check_order
from tests.graph.passes.graphs import graph_of

CONTEXT = PassContext(GuardFreeOracle())


def check(one: GraphPass, graph: Graph, *expected: str) -> None:
    """The body after the pass and dead-code removal; the values stay."""
    changed, count = one.run(graph, CONTEXT)
    verify(changed, one.name)
    changed, _ = DeadCode().run(changed, CONTEXT)
    assert [line.strip() for line in graph_text(changed).split("\n")[1:]] == list(expected)
    same_values(graph, changed)
    assert count


def same_values(graph: Graph, changed: Graph) -> None:
    inputs = [(torch.randn(node.tensor.sizes) * 4).to(node.tensor.dtype) for node in graph.inputs]
    for a, b in zip(interpret(graph, inputs).outputs, interpret(changed, inputs).outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5)


def test_cse_sees_through_commuted_inputs() -> None:
    graph = graph_of(
        '%0: f32[4] "x", %1: f32[4] "y"',
        "%2: f32[4] = add(%0, %1)", "%3: f32[4] = add(%1, %0)", "%4: f32[4] = sub(%0, %1)",
        "%5: f32[4] = sub(%1, %0)", "%6: f32[4] = mul(%2, %3)", "return %6, %4, %5",
    )  # fmt: skip
    check(
        Cse(), graph,
        "%2: f32[4] = add(%0, %1)", "%3: f32[4] = sub(%0, %1)", "%4: f32[4] = sub(%1, %0)",
        "%5: f32[4] = mul(%2, %2)", "return %5, %3, %4",
    )  # fmt: skip


def test_cse_tells_numbers_apart() -> None:
    lines = [f"%{i}: f32[] = constant(value={v}, dtype=f32, device=cpu)" for i, v in enumerate(("0.0", "-0.0", "1.0"))]
    graph = graph_of("", *lines, "%3: f32[] = constant(value=-0.0, dtype=f32, device=cpu)", "return %0, %1, %2, %3")
    changed, count = Cse().run(graph, CONTEXT)
    assert count == 1
    assert len(changed.nodes) == 3


def test_cse_leaves_random_values() -> None:
    draw = 'random(distribution="uniform", params=(0.0, 1.0), sizes=(4,), dtype=f32, device=cpu)'
    graph = graph_of("", f"%0: f32[4] = {draw}", f"%1: f32[4] = {draw}", "return %0, %1")
    assert Cse().run(graph, CONTEXT)[1] == 0
    drop = "aten.native_dropout.default(%0, 0.5, True)"
    graph = graph_of(
        '%0: f32[4] "x"', f"%1: (f32[4], b8[4]) = {drop}", f"%2: (f32[4], b8[4]) = {drop}", "return %1, %2"
    )
    assert Cse().run(graph, CONTEXT)[1] == 0


def test_constants_fold_through_uniform_values() -> None:
    graph = graph_of(
        '%0: f32[2, 3] "x"',
        "%1: i64[] = constant(value=4, dtype=i64, device=cpu)",
        "%2: i64[2, 3] = full(%1, sizes=(2, 3))",
        "%3: f32[2, 3] = convert(%2, dtype=f32)",
        "%4: f32[2, 3] = rsqrt(%3)",
        "%5: f32[2, 3] = mul(%0, %4)",
        "return %5",
    )
    check(
        ConstantFold(), graph,
        "%1: f32[] = constant(value=0.5, dtype=f32, device=cpu)",
        "%2: f32[2, 3] = full(%1, sizes=(2, 3))",
        "%3: f32[2, 3] = mul(%0, %2)",
        "return %3",
    )  # fmt: skip


def test_counters_absorb_integers() -> None:
    graph = graph_of(
        "",
        "%0: i64[5] = iota(length=5, start=0, step=1, dtype=i64, device=cpu)",
        "%1: i64[] = constant(value=3, dtype=i64, device=cpu)",
        "%2: i64[5] = mul(%1, %0)",
        "%3: i64[5] = add(%2, %1)",
        "%4: f32[5] = convert(%3, dtype=f32)",
        "return %4",
    )
    check(ConstantFold(), graph, "%0: f32[5] = iota(length=5, start=3, step=3, dtype=f32, device=cpu)", "return %0")


def test_division_by_zero_is_left_to_run_time() -> None:
    graph = graph_of(
        "",
        "%0: i64[] = constant(value=3, dtype=i64, device=cpu)",
        "%1: i64[] = constant(value=0, dtype=i64, device=cpu)",
        "%2: i64[] = floor_div(%0, %1)",
        "return %2",
    )
    assert ConstantFold().run(graph, CONTEXT)[1] == 0


def test_outputs_get_memory_of_their_own() -> None:
    graph = graph_of(
        '%0: f32[2, 3] "x"',
        "%1: f32[2, 3] = neg(%0)",
        "%2: f32[3, 2 | 1, 3] = permute(%1, dims=(1, 0))",
        "return %0, %1, %2, %1 is output 1, %0 is input 0",
    )
    check(
        SeparateOutputs(), graph,
        "%1: f32[2, 3] = neg(%0)",
        "%2: f32[3, 2 | 1, 3] = permute(%1, dims=(1, 0))",
        "%3: f32[2, 3] = clone(%0, strides=(3, 1))",
        "%4: f32[3, 2 | 1, 3] = clone(%2, strides=(1, 3))",
        "return %3, %1, %4, %1 is output 1, %0 is input 0",
    )  # fmt: skip


def test_an_output_with_views_is_copied_with_its_memory() -> None:
    graph = graph_of(
        '%0: f32[4] "x"',
        "%1: f32[4] = neg(%0)",
        "%2: f32[2 at 2] = slice(%1, axis=0, start=2, stop=4, step=1)",
        "%3: f32[2] = slice(%1, axis=0, start=0, stop=2, step=1)",
        "return %1, %2, %3 views output 1 as f32[2]",
    )
    check(
        SeparateOutputs(), graph,
        "%1: f32[4] = neg(%0)",
        "%2: f32[2] = slice(%1, axis=0, start=0, stop=2, step=1)",
        "%3: f32[4] = clone(%1, strides=(1,))",
        "%4: f32[2 at 2] = slice(%3, axis=0, start=2, stop=4, step=1)",
        "return %1, %4, %2 views output 1 as f32[2]",
    )  # fmt: skip


LINEAR = (
    '%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"',
    "%3: f32[2, 4] = aten.addmm.default(%2, %0, %1)",
)


def test_bias_is_added_by_the_op_that_follows() -> None:
    graph = graph_of(*LINEAR, "%4: f32[2, 4] = tanh(%3)", "return %4")
    check(
        UnfuseBias(), graph,
        "%3: f32[2, 4] = aten.mm.default(%0, %1)",
        "%4: f32[2, 4] = add(%3, %2)",
        "%5: f32[2, 4] = tanh(%4)",
        "return %5",
    )  # fmt: skip


def test_bias_is_added_behind_a_view() -> None:
    graph = graph_of(
        *LINEAR, "%4: f32[1, 2, 4] = view(%3, sizes=(1, 2, 4))", "%5: f32[1, 2, 4] = tanh(%4)", "return %5"
    )
    check(
        UnfuseBias(), graph,
        "%3: f32[2, 4] = aten.mm.default(%0, %1)",
        "%4: f32[2, 4] = add(%3, %2)",
        "%5: f32[1, 2, 4] = view(%4, sizes=(1, 2, 4))",
        "%6: f32[1, 2, 4] = tanh(%5)",
        "return %6",
    )  # fmt: skip


def test_bias_stays_where_nothing_can_add_it() -> None:
    graph = graph_of(*LINEAR, "%4: f32[8] = view(%3, sizes=(8,))", "return %4")
    assert UnfuseBias().run(graph, CONTEXT)[1] == 0
    graph = graph_of(*LINEAR, "%4: f32[8] = view(%3, sizes=(8,))", "%5: f32[8] = tanh(%4)", "return %4, %5")
    assert UnfuseBias().run(graph, CONTEXT)[1] == 0
    graph = graph_of(*LINEAR, "%4: f32[2, 4] = tanh(%3)", "return %4, %3")
    assert UnfuseBias().run(graph, CONTEXT)[1] == 0


def test_the_list_runs_reports_and_keeps_values() -> None:
    events = EventSink()
    graph = graph_of(
        '%0: f32[2, 3] "x"',
        "%1: f32[] = constant(value=1.0, dtype=f32, device=cpu)",
        "%2: f32[2, 3] = mul(%0, %1)",
        "%3: f32[2, 3] = neg(%2)",
        "%4: f32[2, 3] = neg(%3)",
        "%5: f32[2, 3] = neg(%0)",
        "return %4, %3, %5",
    )
    changed = run_passes(graph, events, checks="full")
    same_values(graph, changed)
    assert [node.op.name for node in changed] == ["neg", "clone", "clone"]
    assert [event.data["name"] for event in events.events if event.kind == "pass"] == [one.name for one in GRAPH_PASSES]


def test_unused_effects_stay() -> None:
    graph = graph_of('%0: b8[] "c"', '%1: () = assert(%0, message="no")', "return")
    assert apply_passes(GRAPH_PASSES, graph, EventSink()).nodes == graph.nodes


def test_order_is_checked() -> None:
    with pytest.raises(ValueError, match="'cse' must stand before 'dead-code': why not"):
        check_order((DeadCode(), Cse()), before("cse", "dead-code", because="why not"))


def test_outputs_keep_even_the_strides_of_dimensions_of_size_one() -> None:
    """A pass takes one value for the other, since no element is elsewhere; the caller still sees eager's strides."""
    graph = graph_of(
        '%0: f32[4, 3, 1, 1] "x"',
        "%1: f32[4, 3, 1, 1 | 3, 1, 3, 3] = clone(%0, strides=(3, 1, 3, 3))",
        "%2: f32[4, 3, 1, 1 | 3, 1, 3, 3] = exp(%1)",
        "%3: f32[4, 3, 1, 1] = clone(%2, strides=(3, 1, 1, 1))",
        "return %3",
    )
    made = run_passes(graph, EventSink(), checks="full")
    assert made.outputs[0].value.tensor.strides == (3, 1, 1, 1)
    assert [node.op.name for node in made.nodes] == ["exp", "as_strided"]


def test_rows_of_an_embedding_are_added_to_the_other_gradient() -> None:
    """The index has the padding row 3 in it; a table that something else reads stays."""
    lines = (
        "%3: f32[12, 4] = mul(%0, %0)",
        "%4: i64[2, 5] = clone(%1, strides=(5, 1))",
        "%5: f32[12, 4] = aten.embedding_dense_backward.default(%2, %4, 12, 3, False)",
        "%6: f32[12, 4] = add(%5, %3)",
    )
    head = '%0: f32[12, 4] "x", %1: i64[2, 5] "at", %2: f32[2, 5, 4] "rows"'
    graph = graph_of(head, *lines, "return %6")
    changed, count = AddEmbedding().run(graph, CONTEXT)
    verify(changed, "add-embedding")
    assert count == 1
    changed, _ = DeadCode().run(changed, CONTEXT)
    made = {node.op.name for node in changed.nodes}
    assert "index_put" in made and not made & {"add", "aten"}
    inputs = [torch.randn(12, 4), torch.randint(0, 12, (2, 5)), torch.randn(2, 5, 4)]
    expected, got = (interpret(one, inputs).outputs[0] for one in (graph, changed))
    torch.testing.assert_close(got, expected)
    for end in ("return %6, %5", "return %6, %3, %5"):
        assert AddEmbedding().run(graph_of(head, *lines, end), CONTEXT)[1] == 0


def test_max_pooling_runs_channels_last() -> None:
    """Same values and same indices in eager's strides; few channels and small images stay."""
    head = '%0: f32[2, 16, 64, 64] "x"'
    call = (
        "%1: (f32[2, 16, 32, 32], i64[2, 16, 32, 32]) = "
        "aten.max_pool2d_with_indices.default(%0, (3, 3), (2, 2), (1, 1))"
    )
    items = ("%2: f32[2, 16, 32, 32] = item(%1, index=0)", "%3: i64[2, 16, 32, 32] = item(%1, index=1)")
    graph = graph_of(head, call, *items, "return %2, %3")
    changed, count = PoolChannelsLast().run(graph, CONTEXT)
    verify(changed, "pool-channels-last")
    changed, _ = DeadCode().run(changed, CONTEXT)
    assert count == 2
    assert [node.op.name for node in changed.nodes] == ["clone", "aten", "item", "clone", "item", "clone"]
    inputs = [torch.randn(2, 16, 64, 64).relu()]
    inputs[0][0, 0, 3, 5] = float("nan")
    for a, b in zip(interpret(graph, inputs).outputs, interpret(changed, inputs).outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.stride() == b.stride()
    few = [line.replace("16", "8") for line in (head, call, *items, "return %2, %3")]
    assert PoolChannelsLast().run(graph_of(*few), CONTEXT)[1] == 0
