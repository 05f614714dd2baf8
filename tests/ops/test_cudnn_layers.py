"""Recurrent layers that cuDNN has on a GPU, with ATen's on a CPU in its place: trace, rules and plan are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.plan import recurrent_operators as cudnn

pytestmark = pytest.mark.unrecorded  # a CPU has these operators only while this test runs

RESERVED = 40
FUNCTIONS: tuple[Callable[..., Any], ...] = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
"""By cuDNN's number."""


def run(x: Tensor, weights: Sequence[Tensor], hx: Tensor, cx: Tensor | None, mode: int, *options: bool) -> list[Tensor]:
    biases, bidirectional = options
    state = hx if cx is None else (hx, cx)
    layers = hx.size(0) // (1 + bidirectional)
    made = FUNCTIONS[mode](x, state, list(weights), biases, layers, 0.0, True, bidirectional, False)
    return [*made] if cx is not None else [*made, hx.new_empty(0)]


def forward(
    x: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor | None,
    mode: int, biases: bool, train: bool, bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    with torch.no_grad():
        made = run(x, weights, hx, cx, mode, biases, bidirectional)
    return [*[part.contiguous() for part in made], torch.ones(RESERVED if train else 0, dtype=torch.uint8)]


def backward(
    x: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor | None, output: Tensor, d_output: Tensor | None,
    d_hy: Tensor | None, d_cy: Tensor | None, reserve: Tensor,
    mode: int, biases: bool, train: bool, bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    states = [hx] if cx is None else [hx, cx]
    leaves = [given.detach().requires_grad_() for given in (x, *states, *weights)]
    first = 1 + len(states)
    made = run(leaves[0], leaves[first:], leaves[1], None if cx is None else leaves[2], mode, biases, bidirectional)
    pairs = [(part, grad) for part, grad in zip(made, (d_output, d_hy, d_cy), strict=True) if grad is not None]
    found = torch.autograd.grad([part for part, _ in pairs], leaves, [grad for _, grad in pairs])
    gradients = [part.contiguous() for part in found]
    return gradients if cx is not None else [*gradients[:2], hx.new_empty(0), *gradients[2:]]


@pytest.fixture
def layers_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the calls that plans have made."""
    calls: list[int] = []

    def counted(*args: Any) -> list[Tensor]:
        calls.append(len(args))
        return forward(*args)

    monkeypatch.setattr("kiln.graph.trace.recurrent_layers.is_on_cudnn", lambda x: True)
    monkeypatch.setattr(cudnn, "layers", forward)
    library = torch.library.Library(cudnn.NAMESPACE, "IMPL")
    with ThreadPoolExecutor(1) as other:  # below the dispatcher this thread has no gradients
        library.impl("layers", counted, "CPU")
        library.impl("layers_backward", lambda *args: other.submit(backward, *args).result(), "CPU")
        yield calls
    library._destroy()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False},
        {"num_layers": 3, "dropout": 1e-9},
    ],
    ids=["plain", "both ways", "no bias", "dropout"],
)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers(layers_on_a_cpu: None, kind: Any, options: dict[str, Any], dynamic: bool) -> None:
    """A call for all layers, one for each where dropout is between them; other lengths are no compiles if dynamic."""
    torch.manual_seed(0)
    mine, theirs = kind(4, 5, **options), kind(4, 5, **options)
    theirs.load_state_dict(mine.state_dict())
    compiled: Any = kiln.compile(mine, fullgraph=True, dynamic=dynamic, options={"cache": False})
    for steps, batch in [(6, 3), (7, 3)]:
        results = []
        for model, module in [(compiled, mine), (theirs, theirs)]:
            torch.manual_seed(steps)
            x = torch.randn(steps, batch, 4, requires_grad=True)
            made = model(x)
            parts = [made[0], *(made[1] if isinstance(made[1], tuple) else made[1:])]
            module.zero_grad()
            torch.stack([part.square().sum() for part in parts]).sum().backward()
            results.append([*parts, x.grad, *[weight.grad for weight in module.parameters()]])
        torch.testing.assert_close(*results)
        assert [part.stride() for part in results[0]] == [part.stride() for part in results[1]]
        with torch.no_grad():
            torch.testing.assert_close(compiled(x)[0], theirs(x)[0])
    report = compiled.report()
    assert report.compiles == (2 if dynamic else 4), str(report)


@pytest.mark.parametrize("options", [{"random": "eager"}, {"numerics": "strict"}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_options_that_keep_eager_kernels(layers_on_a_cpu: list[int], kind: Any, options: dict[str, str]) -> None:
    """They are such a kernel already."""
    layer, x = kind(4, 5, num_layers=2), torch.randn(6, 3, 4)
    compiled: Any = kiln.compile(layer, fullgraph=True, options={"cache": False, **options})
    for train in (False, True):
        layers_on_a_cpu.clear()
        with torch.set_grad_enabled(train):
            torch.testing.assert_close(compiled(x)[0], layer(x)[0])
        assert layers_on_a_cpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_casts_layers_to_half(layers_on_a_cpu: None, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """Eager's kernel for autocast asks for float16, whatever dtype autocast is asked for."""
    layer, x = nn.GRU(4, 5), torch.randn(6, 3, 4, dtype=dtype)
    torch.set_autocast_enabled("cuda", True)
    try:
        output, _ = kiln.compile(layer, fullgraph=True)(x)
    finally:
        torch.set_autocast_enabled("cuda", False)
    torch.testing.assert_close(output, layer.half()(x.half())[0], rtol=1e-2, atol=1e-2)
