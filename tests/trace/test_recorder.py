"""The recorder: two levels of one trace."""

import operator

import pytest
import torch

from kiln.graph.ir.text import graph_text
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.trace import Recorder
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.support.location import Location
from kiln.symbolic import ShapeEnv


def recorder() -> Recorder:
    return Recorder(env=ShapeEnv(), events=EventSink())


def test_torch_graph_has_the_names_that_the_field_expects():
    r = recorder()
    a = r.add_tensor(torch.randn(10), "a", LocalSource("a"))
    b = r.add_tensor(torch.randn(10), "b", LocalSource("b"))
    r.add_tensor(torch.randn(10), "unused", LocalSource("unused"))
    x = r.call(operator.truediv, (a, r.call(operator.add, (r.call(torch.abs, (a,), {}), 1), {})), {})
    test = r.call(operator.lt, (r.call("sum", (b,), {}), 0), {})
    trace = r.finish([x, test])
    rows = [(n.op, n.name, n.target, str(n.args)) for n in trace.torch_graph().graph.nodes]
    assert rows == [
        ("placeholder", "a", "a", "()"),
        ("placeholder", "b", "b", "()"),
        ("call_function", "abs_1", torch.abs, "(a,)"),
        ("call_function", "add", operator.add, "(abs_1, 1)"),
        ("call_function", "truediv", operator.truediv, "(a, add)"),
        ("call_method", "sum_1", "sum", "(b,)"),
        ("call_function", "lt", operator.lt, "(sum_1, 0)"),
        ("output", "output", "output", "((truediv, lt),)"),
    ]


def test_a_write_through_views_reaches_the_input():
    r = recorder()
    b = r.add_tensor(torch.randn(10), "b", LocalSource("b"))
    v = r.call(operator.getitem, (r.call("t", (r.call("view", (b, 5, 2), {}),), {}), 1), {})
    r.call("add_", (v, 1), {})
    trace = r.finish([v, b])
    assert [node.op.name for node in trace.graph.nodes] == [
        "view", "permute", "select", "constant", "add", "select_scatter", "permute", "view",
    ]  # fmt: skip
    assert trace.graph.writes[0].target is trace.graph.inputs[0]
    assert [(o.alias.of, o.alias.index, o.alias.view and str(o.alias.view)) for o in trace.graph.outputs] == [
        ("input", 0, "f32[5 | 2 at 1]"),
        ("input", 0, None),
    ]
    assert trace.calls[-1].effects and not trace.calls[0].effects


def test_values_that_follow_from_constants_are_known():
    r = recorder()
    x = r.add_tensor(torch.randn(2, 16), "x", LocalSource("x"))

    def positions_are_plain(x):
        positions = torch.arange(16)[None]
        return x * 2 if bool((positions.diff() == 1).all()) else x

    y = r.call(positions_are_plain, (x,), {})
    assert [node.op.name for node in r.finish([y]).graph.nodes] == ["constant", "mul"]


def test_values_of_inputs_break():
    r = recorder()
    x = r.add_tensor(torch.randn(3), "x", LocalSource("x"))
    with pytest.raises(TraceBreak, match="KILN2403"):
        r.call(lambda x: bool(x.sum() > 0), (x,), {})


def test_sizes_that_depend_on_data_are_counted_first():
    r = recorder()
    r.env.assumes_data = True
    x = r.add_tensor(torch.randn(3), "x", LocalSource("x"))
    found = r.call(torch.nonzero, (x,), {})
    chosen = r.call(lambda x: x[x > 0], (x,), {})
    assert [str(r.spec_of(tensor)) for tensor in (found, chosen)] == ["i64[u0, 1 | 1, u0]", "f32[u1]"]
    assert [node.op.name for node in r.finish([chosen]).graph.nodes].count("local_scalar") == 2


def test_tensors_from_outside_break():
    r = recorder()
    with pytest.raises(TraceBreak, match="made outside"):
        r.call(torch.get_rng_state, (), {})


def test_text_of_a_trace(golden):
    r = recorder()
    x = r.add_tensor(torch.randn(2, 3, 4), "x", LocalSource("x"))
    w = r.add_tensor(torch.nn.Parameter(torch.randn(4, 4)), "w", LocalSource("w"))
    here = (Location("model.py", 7, "Net.forward"),)
    y = r.call(torch.nn.functional.linear, (x, w), {}, stack=here)
    y = r.call(torch.nn.functional.gelu, (y,), {}, stack=here)
    y = r.call(torch.nn.functional.layer_norm, (y, (4,)), {}, stack=here)
    r.call("mul_", (x, 2), {}, stack=here)
    golden(graph_text(r.finish([y, x]).graph))
