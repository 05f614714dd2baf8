"""`numerics="strict"`: what is more than one rounding stays eager's own kernel, so the bits are eager's."""

import pytest
import torch
import torch.nn.functional as F

from kiln.graph.ir.interpret import interpret
from kiln.runtime.guards.source import LocalSource
from tests.trace.harness import new_recorder

CASES = {
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (64,)),
    "gelu": lambda x: F.gelu(x),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "loss": lambda x: F.cross_entropy(x, torch.arange(50)),
    "silu": lambda x: F.silu(x),
    "chain": lambda x: (x * 2 + 1).softmax(0).var(1),
}


@pytest.mark.parametrize("name", CASES)
def test_strict_is_bit_equal(name):
    x = torch.randn(50, 64)
    recorder = new_recorder("strict")
    fake = recorder.add_tensor(x, "x", LocalSource("x"))
    trace = recorder.finish([recorder.call(CASES[name], (fake,), {})])
    got = interpret(trace.graph, [x], constants=trace.constants).outputs[0]
    assert torch.equal(got, CASES[name](x))
