"""Tracing loads nothing of torch's own compiler, and what reaches the recorder in inference mode is recorded too."""

import subprocess
import sys
import textwrap

import torch
import torch.nn.functional as F

from tests.trace.harness import check

PROGRAM = textwrap.dedent(
    """
    import sys
    import torch

    before = set(sys.modules)
    from kiln.graph.trace import Recorder
    from kiln.runtime.guards.source import LocalSource
    from kiln.support.events import EventSink
    from kiln.symbolic import ShapeEnv
    from kiln.symbolic.policy import DimChoice, DimKind

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(36, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 4),
    )
    for symbolic in (False, True):
        recorder = Recorder(env=ShapeEnv(), events=EventSink())
        dims = tuple(DimChoice(DimKind.SYMBOL if symbolic and i == 0 else DimKind.STATIC, "") for i in range(4))
        x = recorder.add_tensor(torch.randn(5, 3, 8, 8), "x", LocalSource("x"), dims)
        state = {
            name: recorder.add_tensor(tensor, name, LocalSource(name))
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }
        y = recorder.call(torch.func.functional_call, (model, state, (x,)), {})
        y.requires_grad
        weights = [fake for fake in state.values() if fake.requires_grad]
        y = recorder.call(torch.nn.functional.cross_entropy, (y, recorder.add_constant(torch.arange(5) % 4)), {})
        one = recorder.call(torch.ones_like, (y,), {})
        grads = recorder.run_backward([y], [one], weights)
        trace = recorder.finish([y, *grads])
        assert len(trace.graph.nodes) > 100 and trace.graph.writes
    forbidden = (
        "torch._dynamo", "torch._inductor", "torch._functorch", "torch._refs", "torch._meta_registrations",
        "torch.fx.experimental.symbolic_shapes", "torch._export", "sympy", "torch.distributed.tensor",
    )
    print(sorted(name for name in set(sys.modules) - before if name.startswith(forbidden)))
    """
)


def test_tracing_loads_no_other_compiler():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


def test_inference_mode():
    """Composite ops reach the recorder undecomposed there."""

    def function(x, w, b):
        with torch.inference_mode():
            y = F.linear(x, w, b)
            return F.layer_norm(y.reshape(-1, 3), (3,)).softmax(-1), y.matmul(w).sum()

    check(function, [torch.randn(2, 3, 4), torch.randn(3, 4), torch.randn(3)])


def test_no_grad():
    def function(x):
        with torch.no_grad():
            y = x * 2
        return y * x

    check(function, [torch.randn(3).requires_grad_()], backward=True)
