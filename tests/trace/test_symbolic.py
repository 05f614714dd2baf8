"""Symbolic sizes: one trace serves other sizes, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from kiln.graph.ir.interpret import interpret
from kiln.runtime.guards.source import LocalSource
from kiln.symbolic.policy import DimChoice, DimKind
from tests.ops.test_decompositions import GROUPS, skip_if_eager_raises
from tests.trace.harness import copies, eager, new_recorder, tangent_of, trace

SYMBOL = DimChoice(DimKind.SYMBOL, "test")


def symbols(args):
    return {i: (SYMBOL,) * arg.dim() for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}


def serves(function, args, others, *, backward=False, allow_guards=False):
    """Trace on `args` with every dimension a symbol; the graph computes eager's results on `others` too."""
    traced = trace(function, args, backward=backward, dims=symbols(args))
    env = traced.recorder.env
    for inputs in (args, others):
        want = eager(function, copies(inputs), backward=backward)
        by_name = {f"x{i}": item for i, item in enumerate(inputs)}
        if backward:
            results = [result for result in want if result.requires_grad]
            by_name |= {f"t{i}": tangent_of(result) for i, result in enumerate(results)}
        given = [by_name[record.name].detach() for record in traced.trace.used_inputs]
        hints = {}
        for record in traced.trace.inputs:
            for size, number in zip(record.spec.sizes, by_name[record.name].shape, strict=True):
                if not isinstance(size, int):
                    hints[size] = number
        got = interpret(traced.trace.graph, given, symbols=hints, constants=traced.trace.constants).outputs
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-5, check_stride=False)
    if not allow_guards:
        fixed = {str(key): value for key, value in env.replacements.items() if isinstance(value, int)}
        assert not fixed, f"specialised: {fixed}; guards {[guard.text() for guard in env.guards]}"
    return traced


def g(*shape):
    return torch.randn(shape).requires_grad_()


PAIRS = {
    "pointwise": (lambda x: F.gelu(x * 2 + 1), [g(3, 4)], [g(5, 7)]),
    "broadcast": (lambda x, y: x + y, [g(3, 4), g(4)], [g(5, 7), g(7)]),
    "mlp": (
        lambda x, w, b: F.linear(torch.relu(F.linear(x, w, b)), w, b),
        [g(3, 4), g(4, 4), g(4)],
        [g(5, 6), g(6, 6), g(6)],
    ),
    "linear of rank 3": (F.linear, [g(2, 3, 4), g(5, 4), g(5)], [g(3, 4, 6), g(7, 6), g(7)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [g(2, 3, 4), g(4), g(4)], [g(3, 5, 6), g(6), g(6)]),
    "softmax": (lambda x: x.softmax(-1), [g(3, 4)], [g(5, 6)]),
    "mean": (lambda x: x.mean((0, 1)), [g(2, 3, 4)], [g(3, 5, 6)]),
    "var": (lambda x: x.var(1), [g(2, 3)], [g(3, 5)]),
    "heads": (
        lambda x: x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2).reshape(x.shape[0] * 2, x.shape[1], -1),
        [g(3, 5, 4)],
        [g(2, 7, 6)],
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [g(2, 4, 6, 8), g(2, 4, 6, 8), g(2, 4, 6, 8)],
        [g(3, 2, 5, 8), g(3, 2, 5, 8), g(3, 2, 5, 8)],
    ),
    "cat": (lambda x, y: torch.cat([x, y], 1), [g(3, 4), g(3, 2)], [g(5, 7), g(5, 3)]),
    "slices": (lambda x: x[:, 1:] * x[:, :-1], [g(3, 4)], [g(5, 7)]),
    "select": (lambda x: x[:, 0] + x[:, -1], [g(3, 4)], [g(5, 7)]),
    "bmm": (torch.bmm, [g(2, 3, 4), g(2, 4, 5)], [g(3, 5, 6), g(3, 6, 7)]),
    "matmul": (torch.matmul, [g(2, 3, 4), g(4, 5)], [g(3, 5, 6), g(6, 7)]),
    "flatten": (lambda x: x.flatten(1), [g(2, 3, 4)], [g(3, 5, 6)]),
    "arange": (lambda x: x + torch.arange(x.shape[-1]), [g(3, 4)], [g(5, 7)]),
    "causal": (lambda x: x.masked_fill(torch.ones_like(x).triu(1).bool(), 0.0), [g(4, 4)], [g(6, 6)]),
    "scale": (lambda x: x / x.shape[1] + x.shape[0] ** -0.5, [g(3, 4)], [g(5, 7)]),
    "expand": (lambda x: x[None].expand(2, -1, -1), [g(3, 4)], [g(5, 7)]),
    "zeros": (lambda x: torch.zeros(x.shape[0], x.shape[1] * 2) + x.repeat(1, 2), [g(3, 4)], [g(5, 7)]),
    "conv2d": (
        lambda x, w: F.conv2d(x, w, None, 2, 1),
        [g(2, 3, 8, 9), g(4, 3, 3, 3)],
        [g(3, 5, 12, 7), g(2, 5, 3, 3)],
    ),
    "mutation": (lambda x: x.clone().mul_(2).add_(x), [g(3, 4)], [g(5, 7)]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_serves_other_sizes(name):
    function, args, others = PAIRS[name]
    if name == "matmul" and torch.__version__ < "2.13":
        pytest.skip("its composite kernel asks for plain sizes there, which specialises")
    serves(function, args, others, backward=True)


NOT_SYMBOLIC = {"bce weight"}
"""torch's Python function asks the environment for a method of torch's own (`evaluate_sym_node`)."""

CASES = [
    (group, name) for group, cases in GROUPS.items() for name in cases if group != "random" and name not in NOT_SYMBOLIC
]


@pytest.mark.parametrize(("group", "name"), CASES, ids=lambda part: part)
def test_every_op_takes_symbols(group, name):
    skip_if_eager_raises(name)
    function, args = GROUPS[group][name]
    backward = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
    serves(function, args, args, backward=backward, allow_guards=True)


def test_an_integer_input_is_a_symbol():
    recorder = new_recorder()
    n = recorder.add_scalar(3, "n", LocalSource("n"))
    unused = recorder.add_scalar(5, "k", LocalSource("k"))
    x = recorder.add_tensor(torch.ones(4), "x", LocalSource("x"))
    trace = recorder.finish([recorder.call(lambda x, n: x * n + torch.arange(n).sum(), (x, n), {})])
    assert [record.name for record in trace.used_inputs] == ["n", "x"] and unused is not n
    for number in (3, 6):
        got = interpret(trace.graph, [number, torch.ones(4)]).outputs[0]
        assert torch.equal(got, torch.ones(4) * number + number * (number - 1) / 2)


def test_the_integer_in_a_tensor_is_an_unbacked_symbol():
    recorder = new_recorder()
    x = recorder.add_tensor(torch.tensor([3, 4]), "x", LocalSource("x"))

    def function(x):
        n = x.sum().item()
        torch._check(n >= 0)
        return torch.ones(n, 2) * n

    trace = recorder.finish([recorder.call(function, (x,), {})])
    assert torch.equal(interpret(trace.graph, [torch.tensor([1, 2])]).outputs[0], torch.ones(3, 2) * 3)
