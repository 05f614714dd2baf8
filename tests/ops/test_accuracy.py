"""Decompositions against float64: the error is at most twice eager's, or 4 units in the last place of the scale."""

import pytest
import torch
import torch.nn.functional as F

from kiln.graph.ir.interpret import interpret
from tests.trace.harness import DEVICE, copies, eager, tangent_of, trace


def g(*shape, scale=1.0, shift=0.0):
    return (torch.randn(shape) * scale + shift).requires_grad_()


CASES = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (257,), w, b), lambda: [g(33, 257), g(257), g(257)]),
    "layer_norm far from 0": (lambda x: F.layer_norm(x, (257,)), lambda: [g(33, 257, shift=100.0)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (257,), w), lambda: [g(33, 257), g(257)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), lambda: [g(3, 8, 17, 5, shift=3.0), g(8), g(8)]),
    "group_norm channels last": (
        lambda x, w, b: F.group_norm(x.contiguous(memory_format=torch.channels_last), 4, w, b),
        lambda: [g(3, 16, 17, 5, shift=30.0), g(16), g(16)],
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda: [g(9, 5, 7, 7, shift=5.0), g(5), g(5)],
    ),
    "softmax": (lambda x: x.softmax(-1), lambda: [g(33, 257, scale=5.0)]),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda: [g(33, 257, scale=5.0)]),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda: [g(33, 257, scale=5.0)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(33)), lambda: [g(33, 257)]),
    "var": (lambda x: x.var(1), lambda: [g(33, 257, shift=10.0)]),
    "std": (lambda x: x.std(0), lambda: [g(33, 257, shift=10.0)]),
    "gelu": (F.gelu, lambda: [g(999, scale=3.0)]),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda: [g(999, scale=3.0)]),
    "silu": (F.silu, lambda: [g(999, scale=5.0)]),
    "mish": (F.mish, lambda: [g(999, scale=5.0)]),
    "elu": (F.elu, lambda: [g(999)]),
    "softplus": (F.softplus, lambda: [g(999, scale=5.0)]),
    "logsigmoid": (F.logsigmoid, lambda: [g(999, scale=5.0)]),
    "bce with logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid().square()),
        lambda: [g(999, scale=5.0)],
    ),
    "mse": (lambda x, y: F.mse_loss(x, y), lambda: [g(999), g(999)]),
    "norm": (lambda x: x.norm(dim=1), lambda: [g(33, 257)]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.7), lambda: [g(999), g(999)]),
    "logaddexp": (torch.logaddexp, lambda: [g(999, scale=5.0), g(999, scale=5.0)]),
}


def doubled(args):
    return [arg.detach().double().requires_grad_(arg.requires_grad) for arg in args]


@pytest.mark.parametrize("name", CASES)
def test_error_is_at_most_twice_that_of_eager(name):
    function, make = CASES[name]
    args = make()
    single = eager(function, copies(args), backward=True)
    inputs = doubled(args)
    outputs = function(*inputs)
    exact = [outputs.detach(), *torch.autograd.grad(outputs, inputs, tangent_of(single[0]).double())]
    traced = trace(function, copies(args), backward=True)
    got = interpret(
        traced.trace.graph, [given.detach() for given in traced.inputs], constants=traced.trace.constants
    ).outputs
    assert len(got) == len(exact)
    for ours, theirs, true in zip(got, single, exact, strict=True):
        scale = true.abs().max()
        bound = max(2 * (theirs.double() - true).norm() / true.norm(), 4 * torch.finfo(torch.float32).eps)
        assert (ours.double() - true).norm() / true.norm() <= bound
        worst = max(2 * (theirs.double() - true).abs().max(), 4 * torch.finfo(torch.float32).eps * scale)
        assert (ours.double() - true).abs().max() <= worst


@pytest.mark.skipif(DEVICE != "cpu", reason="of eager's kernel on the CPU")
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_eagers_to_the_last_bit(training):
    """A relu behind it masks the same elements, so that gradients differ by rounding only."""
    torch.manual_seed(0)
    args = [torch.randn(4, 6, 9, 9) * 2 + 0.7, torch.randn(6), torch.rand(6), torch.randn(6), torch.randn(6)]

    def function(x, mean, variance, weight, bias):
        return F.relu(F.batch_norm(x, mean, variance, weight, bias, training))

    (expected, *_) = eager(function, copies(args))
    traced = trace(function, copies(args))
    got = interpret(traced.trace.graph, traced.inputs, constants=traced.trace.constants).outputs
    assert torch.equal(got[0], expected)


def test_gradients_of_gelu_are_never_subnormal():
    """Matrix products with subnormal numbers take many times as long."""
    x = torch.linspace(-15, 15, 999).requires_grad_()
    traced = trace(lambda x: F.gelu(x), [x], backward=True)
    inputs = [x.detach(), *[given.detach() for given in traced.inputs[1:]]]
    _, gradient = interpret(traced.trace.graph, inputs, constants=traced.trace.constants).outputs
    assert not ((gradient != 0) & (gradient.abs() < torch.finfo(torch.float32).tiny)).any()
