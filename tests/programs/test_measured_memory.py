"""The predicted peak of memory is the one that is measured: training programs of several kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.graph.ir.interpret import Interpreter
from kiln.graph.ir.parse import parse_graph
from kiln.symbolic import evaluate

BATCH = kiln.Dim("batch", min=2, max=512)


class Loss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return (y[0] if isinstance(y, tuple) else y).square().mean()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))] * 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


def stack(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)


TEXTS, ROWS, IMAGES = (8, 16, 32), (256, 32), (8, 3, 64, 64)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (stack(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)), ROWS),
    "dropout": (stack(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32), nn.Dropout(0.1)), ROWS),
    "encoder": (encoder, TEXTS),
    "checkpoints": (Checkpointed, ROWS),
    "convolutions": (
        stack(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)),
        IMAGES,
    ),
    "small convolutions": (stack(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3)), (4, 3, 16, 16)),
    "results of a backward": (
        stack(nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1)),
        IMAGES,
    ),
    "batch norm": (stack(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, stride=2)), IMAGES),
    "transposed": (stack(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)), IMAGES),
    "gated": (lambda: nn.GRU(32, 64, batch_first=True), TEXTS),
    "recurrent": (lambda: nn.LSTM(32, 64, batch_first=True), TEXTS),
    "recurrent layers": (lambda: nn.LSTM(32, 48, 2), TEXTS),
    "both directions": (lambda: nn.LSTM(32, 64, bidirectional=True, batch_first=True), TEXTS),
}


def measured_peak(call: Callable[[], object], folder: Path) -> int:
    """The most bytes that `call` holds at once, of those that it allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_training_program_is_the_measured_one(name: str, tmp_path: Path) -> None:
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model, x = Loss(make()), torch.randn(sizes)
    program = kiln.export(model, (x,), training=True, dynamic_shapes={"x": {0: BATCH}} if sizes is ROWS else None)
    program(x)
    states = [*model.parameters(), *model.buffers(), x]
    measured = measured_peak(lambda: program(x), tmp_path) + sum(value.nbytes for value in states)
    predicted = evaluate(program.peak_memory(), {"batch": sizes[0]})
    assert abs(predicted - measured) <= 0.05 * measured, f"{predicted} predicted, {measured} measured"


def test_values_die_behind_their_last_use() -> None:
    graph = parse_graph("""
        graph(%0: f32[4] "x"):
            %1: f32[4] = neg(%0)
            %2: f32[4] = exp(%1)
            %3: f32[4] = add(%2, %0)
            return %2, %3
    """)
    x = torch.randn(4)
    for keeps_all, left in ((False, [2, 3]), (True, [0, 1, 2, 3])):
        walk = Interpreter({}, {}, keeps_all)
        run = walk.run(graph, [x])
        order = [*graph.inputs, *graph.nodes]
        assert sorted(order.index(node) for node in walk.values) == left
        assert torch.equal(run.outputs[1], (-x).exp() + x)  # type: ignore[arg-type]
