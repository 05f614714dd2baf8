"""Truncation of the log: calls with effects are undone by replaying what stays on fresh fakes."""

import operator

import torch

from kiln.runtime.guards.source import LocalSource
from tests.trace.harness import new_recorder


def recorded():
    r = new_recorder()
    x = r.add_tensor(torch.randn(4, requires_grad=True), "x", LocalSource("x"))
    y = r.call(operator.mul, (x, 2), {})
    return r, x, y


def ops(trace):
    return [node.op.name for node in trace.graph.nodes]


def test_calls_without_effects_are_dropped():
    r, _x, y = recorded()
    mark = r.mark()
    r.call(torch.exp, (y,), {})
    assert r.truncate(mark).of(y) is y
    trace = r.finish([y])
    assert len(trace.calls) == 1 and ops(trace) == ["constant", "mul"]


def test_calls_with_effects_are_undone():
    r, x, y = recorded()
    mark = r.mark()
    r.call("add_", (y, 1), {})
    r.call("unsqueeze_", (y, 0), {})
    new = r.truncate(mark)
    assert new.of(y) is not y and new.of((x, [y]))[1][0] is new.of(y)
    trace = r.finish([new.of(y)])
    assert ops(trace) == ["constant", "mul"]
    assert trace.fake_outputs[0].shape == (4,) and trace.fake_outputs[0].grad_fn.name() == "MulBackward0"
    assert [record.name for record in trace.inputs] == ["x"]


def test_changes_of_autograd_state_are_undone():
    r, _x, y = recorded()
    mark = r.mark()
    r.call("detach_", (y,), {})
    assert not y.requires_grad and r.truncate(mark).of(y).requires_grad


def test_modes_are_replayed():
    r, x, _y = recorded()
    r.set_state("grad_enabled", False)
    with torch.no_grad():
        z = r.call(torch.exp, (x,), {})
    r.set_state("grad_enabled", True)
    mark = r.mark()
    r.call("zero_", (z,), {})
    new = r.truncate(mark)
    assert not new.of(z).requires_grad and torch.is_grad_enabled()
    graph = r.finish([new.of(z)]).torch_graph().graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [
        operator.mul, torch._C._set_grad_enabled, torch.exp, torch._C._set_grad_enabled,
    ]  # fmt: skip
