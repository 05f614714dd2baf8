"""The contracts of docs/numerics.md. `python -m tests.ops.bits` compares strict numerics on all of torch's samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.graph.ir.parse import parse_graph
from kiln.pipeline import first_run, targets
from kiln.pipeline.differences import differences, equal_bits
from kiln.pipeline.reproduce import graph_plan
from kiln.support.target import cuda_gpu
from tests.ops import bits
from tests.sweeps.samples import name_of, operators

OPTIONS = {"cache": False}
STRICT = {"numerics": "strict", **OPTIONS}
ROUNDED = {"numerics": "rounded", **OPTIONS}

SAMPLED = (
    "add", "sub", "mul", "div.no_rounding_mode", "addcmul", "clamp", "where", "maximum", "sqrt", "rsqrt", "exp",
    "tanh", "sigmoid", "pow", "lerp", "sum", "mean", "var", "std", "norm", "cumsum", "softmax", "log_softmax",
    "nn.functional.gelu", "nn.functional.silu", "nn.functional.layer_norm", "nn.functional.batch_norm",
    "nn.functional.group_norm", "nn.functional.cross_entropy", "nn.functional.conv2d", "nn.functional.dropout",
    "nn.functional.scaled_dot_product_attention", "index_add", "scatter_add", "cat", "gather", "linalg.vector_norm",
    "nn.functional.smooth_l1_loss", "logsumexp", "prod",
)  # fmt: skip


@pytest.fixture(scope="module")
def database() -> dict[str, Any]:
    return {name_of(op): op for op in operators()}


@pytest.mark.parametrize("name", SAMPLED)
def test_strict_has_the_bits_of_eager(name: str, database: dict[str, Any]) -> None:
    assert not bits.check(database[name], (torch.float32, torch.bfloat16), 2)


def test_the_comparison_of_bits_notices_a_difference(database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bits.STRICT, "numerics", "fast")
    monkeypatch.setattr(first_run, "differences", lambda *args, **kwargs: differences(*args, exact=True))
    assert bits.check(database["nn.functional.gelu"], (torch.float32,), 2)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * 0.3 + 0.1


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convolutions": lambda: (ConvNet(), torch.randn(4, 3, 9, 9)),
    "transformer": lambda: (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.randn(2, 7, 32)),
    "transformer in bf16": lambda: (
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu").bfloat16(),
        torch.randn(2, 7, 32).bfloat16(),
    ),
    "gated": lambda: (nn.Sequential(nn.Linear(16, 32), nn.GLU(), nn.RMSNorm(16), nn.Mish()), torch.randn(5, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_strict_training_has_the_bits_of_eager(name: str) -> None:
    """Losses, gradients, buffers and parameters after three steps with random numbers."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    compiled = kiln.compile(model, options=STRICT, fullgraph=True)
    assert all(map(equal_bits, trained(compiled, start, x), trained(model, start, x)))


def trained(model: nn.Module, start: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    model.load_state_dict(start)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(model(x).square().mean())
        losses[-1].backward()
        optimizer.step()
    return [*losses, *[value.clone() for value in model.state_dict().values()], torch.rand(1)]


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x + y) * (x - y) / y + x) * (-x).abs()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dynamic", [None, True])
def test_rounded_has_the_cast_points_of_eager(dtype: torch.dtype, dynamic: bool | None) -> None:
    x, y = torch.randn(2, 64, 33).to(dtype)
    compiled = kiln.compile(chain, options=ROUNDED, fullgraph=True, dynamic=dynamic)
    assert equal_bits(compiled(x, y), chain(x, y))
    assert kiln.report_of(compiled).kernels == 1
    assert not equal_bits(kiln.compile(chain, options=OPTIONS)(x, y), chain(x, y))


@pytest.mark.parametrize("numerics", ["fast", "rounded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_is_at_most_twice_that_of_eager(dtype: torch.dtype, numerics: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x) * x.sigmoid(), (64,), w).softmax(-1) + x.cos().cumsum(0)

    x, w = torch.randn(33, 64).to(dtype), torch.rand(64).to(dtype)
    exact = program(x.double(), w.double())
    compiled = kiln.compile(program, options={"numerics": numerics, **OPTIONS}, fullgraph=True)
    ours, eager = ((result.double() - exact).abs() for result in (compiled(x, w), program(x, w)))
    unit = torch.finfo(dtype).eps * exact.abs().max()
    assert ours.max() <= 2 * eager.max() + unit
    assert ours.square().mean().sqrt() <= 2 * eager.square().mean().sqrt() + unit


GRAPH = """
    graph(%0: bf16[128, 256 @cuda:0] "x", %1: bf16[128, 256 @cuda:0] "y"):
        %2: bf16[128, 256 @cuda:0] = add(%0, %1)
        %3: bf16[128, 256 @cuda:0] = mul(%2, %2)
        %4: f32[128, 256 @cuda:0] = convert(%3, dtype=f32)
        %5: f32[128, 256 @cuda:0] = div(%4, %4)
        %6: f32[128, 256 @cuda:0] = erf(%5)
        %7: bf16[128, 256 @cuda:0] = convert(%6, dtype=bf16)
        return %7
"""


def triton_source(numerics: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of a graph on a GPU, and their options for Triton."""
    monkeypatch.setattr(targets, "gpu_of", lambda index: cuda_gpu((9, 0), 132))
    plan = graph_plan(parse_graph(GRAPH), {"numerics": numerics})
    return "\n".join(f"{kernel.source}\n{kernel}" for kernel in plan.kernels)


def test_triton_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, rounded, strict = (triton_source(numerics, monkeypatch) for numerics in ("fast", "rounded", "strict"))
    assert fast.count(".to(tl.bfloat16)") < rounded.count(".to(tl.bfloat16)") == strict.count(".to(tl.bfloat16)")
    assert "erf_narrow" in fast and "erf_narrow" not in rounded and "div(" in strict
    for text in (fast, rounded, strict):
        assert "('enable_fp_fusion', False)" in text
