"""The recorder: two levels of one trace."""

import operator
from dataclasses import replace

import pytest
import torch

from kiln.graph.ir.rewrite import symbols_of
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.text import graph_text
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.ops.data_movement import to_copy
from kiln.graph.ops.emit import Emit
from kiln.graph.trace import Recorder
from kiln.graph.trace.recorder import alike, same_layout
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.support.location import Location
from kiln.symbolic import ShapeEnv, rel_eq, sym_max
from kiln.tensor.spec import TensorSpec
from tests.trace.harness import new_recorder, trace


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
    assert [str(r.node_of(tensor).spec) for tensor in (found, chosen)] == ["i64[u0, 1 | 1, u0]", "f32[u1]"]
    assert [node.op.name for node in r.finish([chosen]).graph.nodes].count("local_scalar") == 2


def test_a_number_beside_another_is_known():
    r = recorder()
    r.env.assumes_data = True
    x = r.add_tensor(torch.randn(3, 8), "x", LocalSource("x"))
    t = r.add_tensor(torch.tensor(2), "t", LocalSource("t"))
    chosen = r.call(lambda x, t: x[:, t.item() : (t + 2).item()], (x, t), {})
    assert str(r.node_of(chosen).spec) == "f32[3, 2 | 8, 1 at u0]"
    assert [node.op.name for node in r.finish([chosen]).graph.nodes].count("local_scalar") == 1


def test_a_call_that_failed_leaves_no_count():
    r = recorder()
    r.env.assumes_data = True
    x = r.add_tensor(torch.randn(2, 3), "x", LocalSource("x"))
    mask = r.add_tensor(torch.tensor([True, False]), "mask", LocalSource("mask"))
    with pytest.raises(RuntimeError):
        r.call(operator.setitem, (x, mask, torch.ones(3, 4, 5)), {})
    chosen = r.call(operator.getitem, (x, mask), {})
    nodes = r.finish([chosen]).graph.nodes
    assert [node.op.name for node in nodes].count("local_scalar") == 1
    assert symbols_of(nodes) <= {node.spec.value for node in nodes if node.op.name == "local_scalar"}


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


def test_what_counts_as_the_same_result() -> None:
    recorder = new_recorder()
    first, second = (recorder.add_tensor(torch.ones(2, 3), name, LocalSource(name)) for name in "xy")
    other = recorder.add_tensor(torch.ones(3, 2), "z", LocalSource("z"))
    env = recorder.env
    assert alike([first, None], (second, None), env) and alike((), [], env)
    for left, right in (
        (first, other), ([first], [first, second]), ([first, second], [first]), (None, first), (first, None),
        ([first], [None]), (3, first), (first, [second]),
    ):  # fmt: skip
        assert not alike(left, right, env)


def test_layouts_are_the_same_as_far_as_is_known() -> None:
    """A window of a table, as MPT takes it of its biases: the first layer finds out that it begins with the table."""
    env = ShapeEnv()
    start = sym_max(1 - env.create_symbol(12), 0)
    first = TensorSpec(torch.float32, (4, 1 - start), (8, 8), 8 * start)
    later = TensorSpec(torch.float32, (4, 1), (8, 8), 0)
    assert not same_layout(first, later, env)
    env.decide(rel_eq(start, 0))
    assert same_layout(first, later, env) and not same_layout(first, replace(later, offset=1), env)
    assert not same_layout(first, replace(later, dtype=torch.float64), env)


def test_conversions_stay_on_the_device_of_the_tensor() -> None:
    """A default device is for tensors that are made."""
    with torch.device("meta"):
        traced = trace(lambda x: x.to(torch.float64), [torch.ones(3, device="cpu")])
    assert traced.ops == ["convert"]


def test_a_move_to_another_device_keeps_what_was_given() -> None:
    emit = Emit(GuardFreeOracle())
    x = emit.input("x", TensorSpec(torch.float32, (3,), (1,)))
    where = torch.device("cuda", 0)
    moved = to_copy(emit, x, dtype=torch.float64, device=where, non_blocking=True)
    assert moved.tensor.device == where and moved.tensor.dtype is torch.float64
    assert dict(moved.attrs["kwargs"]) == {"device": where, "dtype": torch.float64, "non_blocking": True}
    assert dict(to_copy(emit, x, device=where).attrs["kwargs"]) == {"device": where, "non_blocking": False}
