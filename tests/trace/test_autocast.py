"""Autocast: eager's casts and gradients, one cast per weight and version, nothing left in torch's cache."""

import torch
import torch.nn.functional as F

import kiln
from kiln.runtime.guards.source import LocalSource
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


def test_a_changed_weight_is_cast_again():
    x, w = torch.randn(3, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()

    def changed(r, x, w):
        y = r.call(F.linear, (x, w), {})
        with torch.no_grad():
            r.call("mul_", (w, 2), {})
        return r.call(torch.add, (y, r.call(F.linear, (x, w), {})), {})

    trace, got = run(changed, x, w)
    narrow = [node for node in trace.graph.nodes if node.op.name == "convert" and node.tensor.sizes == (4, 4)]
    assert len([node for node in narrow if node.tensor.dtype is torch.bfloat16]) == 2
    plain = x.detach().bfloat16() @ w.detach().t().bfloat16()
    assert torch.allclose(got[0].float(), 3 * plain.float(), rtol=0.05, atol=0.1)


def test_functions_in_float32_stay_there():
    x, w = torch.randn(3, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()
    _, got = run(lambda r, x, w: r.call(F.softmax, (r.call(torch.mm, (x, w), {}), -1), {}), x, w)
    with torch.autocast("cpu", torch.bfloat16):
        want = F.softmax(torch.mm(x, w), -1)
    assert got[0].dtype == want.dtype and torch.allclose(got[0], want, rtol=1e-2)


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
