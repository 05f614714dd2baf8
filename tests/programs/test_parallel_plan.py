"""The cost model that chooses degrees of parallelism, and stages of pipelines, in one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import kiln
from kiln.api.distributed import result_bytes
from kiln.programs.parallel_plan import Degrees, Machine, StepFacts, estimate, ranked, ways
from kiln.programs.stages import NoStages

GPU = Machine("a GPU", flops=4e14, link=2e11, latency=2e-5, memory=80 * 2**30)
SMALL = StepFacts(flops=2e14, parameters=2.4e9, activations=2e10, stages=8, blocks=16)
LARGE = StepFacts(flops=8e15, parameters=1.4e11, activations=8e10, stages=8, blocks=64, reduced=4e9, rows=128)


def test_a_small_model_is_replicated() -> None:
    assert ranked(SMALL, (8,), GPU, 8)[0].degrees == Degrees(data=8)


def test_a_model_that_does_not_fit_is_divided() -> None:
    best = ranked(LARGE, (16,), GPU, 8)[0]
    assert best.memory < 0.9 * GPU.memory and best.degrees.data < 16
    assert estimate(LARGE, Degrees(data=16), GPU, 8).memory > GPU.memory


def test_each_dimension_of_a_mesh_has_one_role() -> None:
    found = set(ways((2, 4)))
    assert Degrees(data=2, tensor=4) in found and Degrees(shard=8) in found and Degrees(data=4, shard=2) in found
    assert all(d.data * d.shard * d.tensor * d.pipeline == 8 for d in found)


def test_ways_that_are_impossible_come_last_with_their_reason() -> None:
    whole = StepFacts(flops=1e12, parameters=1e9, activations=1e9)
    reasons = {each.degrees: each.why_not for each in ranked(whole, (4,), GPU, 8)}
    assert reasons[Degrees(tensor=4)] == "no tensor plan"
    assert reasons[Degrees(pipeline=4)] == "it cannot be cut into stages"
    assert not ranked(whole, (4,), GPU, 8)[0].why_not


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(self.up(self.norm(x)).relu())
        return made


def blocks(count: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(count)])


def test_a_plan_is_printed_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    tensor_plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    made = kiln.distributed.plan(blocks(4), (2, 2), (torch.randn(8, 16),), tensor_plan=tensor_plan, machine=GPU)
    text = capsys.readouterr().out
    assert text.startswith("kiln.distributed.plan on a GPU: ") and str(made.degrees) in text
    assert all(not each.why_not for each in made.estimates if each.degrees == Degrees(tensor=4))


def test_stages_are_balanced_and_compute_what_the_model_does() -> None:
    model, x = blocks(6), torch.randn(4, 16)
    stages = kiln.distributed.stages(model, (x,), 3)
    assert [len(list(stage.parameters())) for stage in stages] == [12, 12, 12]
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]
    y = x
    for stage in stages:
        assert [tensor.shape for tensor in stage.inputs] == [y.shape]
        y = stage(y)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(y, model(x))
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), list(model.parameters())), expected)


def test_a_parameter_that_is_used_everywhere_keeps_the_model_whole() -> None:
    layer = nn.Linear(16, 16)
    with pytest.raises(NoStages, match="KILN5018"):
        kiln.distributed.stages(nn.Sequential(layer, layer), (torch.randn(4, 16),), 2)


class Reshaped(nn.Module):
    """Eight layers, and behind them operators that compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).t().unflatten(0, (4, 4)).flatten(1).unsqueeze(0)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_stage_has_work(count: int) -> None:
    model, x = Reshaped(), torch.randn(4, 16)
    stages = kiln.distributed.stages(model, (x,), count)
    assert [len(list(stage.parameters())) for stage in stages] == [16 // count] * count
    torch.testing.assert_close(nn.Sequential(*stages)(x), model(x))
    with pytest.raises(NoStages, match="places at which only activations cross"):
        kiln.distributed.stages(model, (x,), 80)


def test_tensor_and_pipeline_degrees_divide_the_parameters() -> None:
    one, sixteen = (estimate(replace(LARGE, activations=0.0), degrees, GPU, 8) for degrees in (Degrees(), MANY))
    assert sixteen.memory == one.memory / 16 and estimate(LARGE, MANY, GPU, 8).compute == one.compute / 16


MANY = Degrees(tensor=4, pipeline=4)


def test_results_of_products_with_named_parameters_are_counted() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x).relu())

    program = kiln.export(Layers(), (torch.ones(3, 4),))
    assert result_bytes(program, [".up.weight"]) == 3 * 8 * 4
    assert result_bytes(program, [".down.weight"]) == 3 * 4 * 4
    assert result_bytes(program, [".up.weight", ".down.weight"]) == 3 * 12 * 4 and not result_bytes(program, [".x"])
