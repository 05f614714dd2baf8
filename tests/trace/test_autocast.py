"""Autocast: eager's casts and gradients, one cast per weight, nothing left in torch's cache."""

import contextlib

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.runtime.autocast_nesting import nesting
from kiln.runtime.guards.source import LocalSource
from tests.faults.outcome import assert_same
from tests.trace.harness import eager, new_recorder, tangent_of


def run(function, x, w):
    """The gradients by graph and by eager."""
    from kiln.graph.ir.interpret import interpret

    recorder = new_recorder()
    fakes = [recorder.add_tensor(item, name, LocalSource(name)) for item, name in ((x, "x"), (w, "w"))]
    with torch.autocast("cpu", torch.bfloat16):
        y = function(recorder, *fakes)
    tangent = recorder.add_tensor(tangent_of(torch.empty(y.shape, dtype=y.dtype)), "t", LocalSource("t"))
    grads = recorder.run_backward([y], [tangent], fakes)
    trace = recorder.finish([y, *grads])
    given = [record.real.detach() for record in trace.used_inputs]
    return trace, interpret(trace.graph, given).outputs


class Direct:
    """Calls the functions, where a recorder records them."""

    def call(self, target, args, kwargs):
        return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def test_a_weight_is_cast_once():
    x, w = torch.randn(3, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()

    def twice(r, x, w):
        y = r.call(F.linear, (x, w), {})
        y = r.call(torch.relu, (y,), {})
        return r.call(F.linear, (y, w), {})

    trace, got = run(twice, x, w)

    def same(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return twice(Direct(), x, w)

    want = eager(same, [x, w], backward=True)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    weight = next(node for node in trace.graph.inputs if node.attrs["name"] == "w")
    assert sum(node.op.name == "convert" and node.inputs == (weight,) for node in trace.graph.nodes) == 1


def test_a_changed_weight_is_cast_again_when_autocast_has_ended():
    def changed(x, w):
        results = []
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                results.append(F.linear(x, w))
                with torch.no_grad():
                    w.mul_(2)
                results.append(F.linear(x, w))
        return results

    x, w = torch.randn(3, 4), torch.randn(4, 4).requires_grad_()
    found, expected = [f(x, w.detach().clone().requires_grad_()) for f in (kiln.compile(changed), changed)]
    assert torch.equal(expected[0], expected[1]) and not torch.equal(expected[1], expected[2])
    for result, other in zip(found, expected, strict=True):
        assert torch.equal(result, other)


def test_functions_in_float32_stay_there():
    x, w = torch.randn(3, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()
    _, got = run(lambda r, x, w: r.call(F.softmax, (r.call(torch.mm, (x, w), {}), -1), {}), x, w)
    with torch.autocast("cpu", torch.bfloat16):
        want = F.softmax(torch.mm(x, w), -1)
    assert got[0].dtype == want.dtype and torch.allclose(got[0], want, rtol=1e-2)


def test_distances_of_many_points_stay_in_float32():
    """They are computed by a product, which eager does not cast there."""
    codes = torch.randn(40, 8)

    def nearest(x):
        return torch.cdist(x @ x.mT @ x, codes).argmin(1)

    x = torch.randn(30, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(kiln.compile(nearest, fullgraph=True)(x), nearest(x))


def test_two_types_in_turn():
    """The second cast is that of the weight, not of its first cast."""

    def program(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            first = x @ w
        with torch.autocast("cpu", torch.float16):
            return first, x @ w

    x, w = torch.randn(8, 8), torch.randn(8, 8).requires_grad_()
    for result, expected in zip(kiln.compile(program)(x, w), program(x, w), strict=True):
        assert torch.equal(result, expected)


def nested(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        first = x @ w
        with torch.autocast("cpu", torch.float16):
            second = x @ w
        with torch.autocast("cpu", torch.float16, cache_enabled=False):
            return first, second, x.relu() @ w.relu()


def nested_without_gradients(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            first = x @ w
        with torch.autocast("cpu", torch.float16):
            return first, F.linear(x, w)


def nested_calls(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        outer = x.relu() @ w, x.relu() @ w.relu(), F.linear(x, w, None), F.linear(x, weight=w)
        with torch.autocast("cpu", torch.float16):
            return *outer, F.linear(x, w, None), F.linear(x, weight=w), torch.addmm(x, x, w, beta=2)


@pytest.mark.parametrize("program", [nested, nested_without_gradients, nested_calls])
def test_a_nested_autocast_gets_the_casts_of_the_outer(program):
    x, w = torch.randn(8, 8).requires_grad_(), torch.randn(8, 8).requires_grad_()
    found, expected = kiln.compile(program)(x, w), program(x, w)
    assert [result.dtype for result in found] == [result.dtype for result in expected]
    torch.testing.assert_close(found, expected)
    assert torch.bfloat16 in [result.dtype for result in expected[1:]]


def left_by_a_break(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return in_python(x @ w, w) @ w


@kiln.disable
def in_python(x, w):
    if x[0, 0] > 1000:
        raise ValueError("too large")
    return x @ w


def generated(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        yield x @ w
        yield in_python(x, w)


@pytest.mark.parametrize("program", [left_by_a_break, lambda x, w: list(generated(x, w)), generated])
def test_what_runs_in_python_within_autocast_casts_in_each_call(program):
    """Nothing of a call stays in torch's cache, which ends with the outermost autocast, also by an exception."""
    compiled = kiln.compile(program)
    x, w = torch.ones(2, 2), torch.eye(2).requires_grad_()
    for factor in (1.0, 2.0, 3.0, 1e4, 2.0):
        with torch.no_grad():
            w.fill_(factor)
        expected, found = [outcome(f, x, w) for f in (program, compiled)]
        assert_same(found, expected)
        assert nesting() == 0


def outcome(function, x, w):
    try:
        results = function(x, w)
        return results if isinstance(results, torch.Tensor) else list(results)
    except ValueError as error:
        return str(error)


def test_a_variant_belongs_to_the_depth_of_autocast():
    def entered(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return in_python(x, w)

    compiled, x, w = kiln.compile(entered), torch.ones(2, 2), torch.eye(2).requires_grad_()
    for depth in (0, 1, 0, 2):
        with contextlib.ExitStack() as stack:
            for _ in range(depth):
                stack.enter_context(torch.autocast("cpu", enabled=False))
            torch.testing.assert_close(compiled(x, w), entered(x, w))
            assert nesting() == depth


def test_a_backward_is_not_under_the_autocast_of_its_forward():
    def program(x, w):
        with torch.autocast("cpu", enabled=False):
            return x.float() @ w

    x, w = torch.randn(8, 8).bfloat16().requires_grad_(), torch.randn(8, 8).requires_grad_()
    compiled = kiln.compile(program)
    with torch.autocast("cpu", torch.bfloat16):
        results = compiled(x, w), program(x, w)
    mine, eager = [torch.autograd.grad(y.square().sum(), (x, w)) for y in results]
    torch.testing.assert_close(mine, eager)


def test_the_depth_of_autocast_is_returned():
    def program(x):
        depths = [torch.autocast_increment_nesting(), torch.autocast_increment_nesting()]
        depths += [torch.autocast_decrement_nesting(), torch.autocast_decrement_nesting()]
        return x + depths[1], depths

    compiled = kiln.compile(program)
    for _ in range(2):
        assert_same(compiled(torch.ones(2)), program(torch.ones(2)))
    assert nesting() == 0


def test_the_cache_of_casts_is_cleared_inside():
    def program(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            before = x @ w
            with torch.no_grad():
                w.mul_(2)
            cached = x @ w
            torch.clear_autocast_cache()
            return before, cached, x @ w

    compiled, x = kiln.compile(program), torch.randn(4, 4)
    for _ in range(2):
        mine, eager = [torch.ones(4, 4, requires_grad=True) for _ in range(2)]
        torch.testing.assert_close(compiled(x, mine), program(x, eager))
