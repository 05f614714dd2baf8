"""Programs with `numerics="strict"`: ATen's operators are kept where their parts would round otherwise."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import kiln
from kiln.onnx.errors import NoOnnxForm
from kiln.programs.call.errors import BadExportArgument


class Rounding(nn.Module):
    """Norms with and without statistics, activations and reductions, then an order that rounding decides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 16), nn.LayerNorm(16)
        self.batch, self.plain = nn.BatchNorm1d(16), nn.BatchNorm1d(16, track_running_stats=False)
        self.group, self.slope = nn.GroupNorm(4, 16), nn.PReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.slope(self.plain(self.batch(nn.functional.gelu(self.layer(self.first(x))))))
        y = self.group(y)
        weights = torch.softmax(y @ y.t(), -1)
        top = torch.topk((weights @ y).sum(-1), 2)
        return *top, nn.functional.silu(weights).mean(0), nn.functional.log_softmax(y, 0), y.std(1), y.norm(dim=-1)


def bits(result: object) -> list[bytes]:
    return [leaf.contiguous().numpy().tobytes() for leaf in pytree.tree_leaves(result)]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("training", [False, True])
def test_a_strict_program_has_the_bits_of_eager_wherever_it_runs(training: bool, tmp_path: Path) -> None:
    model = Rounding().train(training)
    free = {"x": {0: kiln.Dim("rows", min=2)}}

    def program() -> kiln.Program:
        return kiln.export(copy.deepcopy(model), (torch.randn(5, 8),), dynamic_shapes=free, numerics="strict")

    program().save(tmp_path / "s.kp")
    program().package(tmp_path / "s.kiln", key=b"k", options={"numerics": "strict"})
    runs = [
        program(),
        kiln.load_program(tmp_path / "s.kp"),
        kiln.load(tmp_path / "s.kiln", key=b"k"),
        program().to_torch_export().module(),
    ]
    for rows in (5, 2, 64):
        x = torch.randn(rows, 8)
        expected = bits(model(x))
        assert [bits(run(x)) == expected for run in runs] == [True] * 4


def test_a_strict_program_is_calls_of_operators() -> None:
    def text(numerics: str) -> str:
        made = kiln.export(Rounding().eval(), (torch.randn(5, 8),), numerics=numerics)  # type: ignore[arg-type]
        return made.text("core")

    kept = (
        *("native_layer_norm.default", "gelu.default", "_native_batch_norm_legit_no_training.default"),
        *("_native_batch_norm_legit.no_stats", "native_group_norm.default", "_softmax.default", "silu.default"),
        *("_log_softmax.default", "std.correction", "linalg_vector_norm.default", "_prelu_kernel.default"),
    )
    strict, fast = text("strict"), text("fast")
    assert [name for name in kept if f"aten.{name}" not in strict] == []
    assert [name for name in kept if f"aten.{name}" in fast] == []
    assert strict.count("call_function") < fast.count("call_function") // 3


def test_what_needs_primitives_says_how_to_get_them(tmp_path: Path) -> None:
    program = kiln.export(Rounding().eval(), (torch.randn(5, 8),), numerics="strict")
    with pytest.raises(NoOnnxForm, match='of a program with numerics="strict": export it with "fast"'):
        program.save_onnx(tmp_path / "s.onnx")
    with pytest.raises(BadExportArgument, match="numerics"):
        kiln.export(Rounding(), (torch.randn(5, 8),), numerics="exact")  # type: ignore[arg-type]


def test_strict_gradients() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.body(x), labels)

    model, example = Loss(), (torch.randn(6, 8), torch.arange(6) % 3)
    loss, gradients = kiln.export(model, example, training=True, numerics="strict")(*example)
    with torch.enable_grad():
        expected = model(*example)
        expected.backward()
    assert bits(loss) == bits(expected.detach())
    assert [bits(gradients[name]) == bits(each.grad) for name, each in model.named_parameters()] == [True] * 6
