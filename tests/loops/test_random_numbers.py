"""Random nodes: counter-based, equal wherever they are read, different in each run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kiln.graph.ir.node import Node
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.interpret import run_kernel_program
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.interpret import run_program
from kiln.support.events import EventSink
from kiln.tensor.spec import CPU
from tests.loops.checks import TARGET, lowered
from tests.loops.programs import Env


def draw(g: Env, distribution: str, params: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> Node:
    attrs = {"distribution": distribution, "params": params, "sizes": (64, 80), "dtype": dtype, "device": CPU}
    return g.builder.node("random", g.builder.node("random_seed", device=CPU), **attrs)


def run(g: Env, *outputs: Node, **seed: int) -> list[torch.Tensor]:
    graph, inputs = g.done(*outputs)
    program = lowered(graph)
    torch.manual_seed(seed.get("seed", 0))
    wanted = run_program(program, inputs)
    torch.manual_seed(seed.get("seed", 0))
    for result, other in zip(run_kernel_program(schedule(program, TARGET, EventSink()), inputs), wanted, strict=True):
        torch.testing.assert_close(result, other)
    return wanted


@pytest.mark.parametrize(
    ("distribution", "params", "dtype", "mean", "std"),
    [
        ("uniform", (-1.0, 3.0), torch.float32, 1.0, 4 / 12**0.5),
        ("uniform", (0.0, 1.0), torch.float64, 0.5, 1 / 12**0.5),
        ("normal", (2.0, 0.5), torch.float32, 2.0, 0.5),
        ("bernoulli", (0.25,), torch.float32, 0.25, (0.25 * 0.75) ** 0.5),
        ("randint", (-3, 5), torch.int64, 0.5, (63 / 12) ** 0.5),
        ("exponential", (2.0,), torch.float32, 0.5, 0.5),
    ],
)
def test_distribution(distribution: str, params: tuple[Any, ...], dtype: torch.dtype, mean: float, std: float) -> None:
    g = Env()
    (numbers,) = run(g, draw(g, distribution, params, dtype))
    assert numbers.dtype == dtype
    assert abs(numbers.double().mean() - mean) < 5 * std / 5120**0.5
    assert abs(numbers.double().std() - std) < 0.06 * std


def test_a_number_is_the_same_wherever_it_is_read() -> None:
    g = Env()
    x = g.tensor(64, 80)
    mask = draw(g, "bernoulli", (0.5,))
    kept, total = run(g, g.mul(x, mask), g.sum(g.mul(x, mask), axes=(1,)))
    torch.testing.assert_close(kept.sum(1), total, rtol=1e-5, atol=1e-4)


def test_two_nodes_draw_different_numbers() -> None:
    g = Env()
    one, other = run(g, draw(g, "uniform", (0.0, 1.0)), draw(g, "uniform", (0.0, 1.0)))
    assert (one == other).float().mean() < 0.01


def test_a_seed_repeats_the_numbers() -> None:
    results = []
    for seed in (1, 1, 2):
        g = Env()
        results += run(g, draw(g, "normal", (0.0, 1.0)), seed=seed)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_probabilities_from_a_tensor() -> None:
    g = Env()
    p = g.real(torch.tensor([0.0, 1.0, 0.5, 0.0]).repeat(20).expand(64, 80).contiguous())
    attrs = {"distribution": "bernoulli", "params": (), "sizes": (64, 80), "dtype": torch.float32, "device": CPU}
    (numbers,) = run(g, g.builder.node("random", g.builder.node("random_seed", device=CPU), p, **attrs))
    assert numbers[:, 0::4].sum() == 0 and numbers[:, 1::4].min() == 1


def test_equal_layers_share_a_kernel() -> None:
    """The kernel gets the memory of its seed: two draws differ in no number of its text."""
    g = Env()
    x, w = g.tensor(64, 80), g.tensor(80, 80)
    for _ in range(3):
        x = g.mm(g.mul(x, draw(g, "bernoulli", (0.5,))), w)
    program = schedule(lowered(g.done(x)[0]), TARGET, EventSink())
    launches = [step for step in program.steps if isinstance(step, KernelLaunch)]
    assert len(launches) == 4  # the first spreads the seeds, the second does not write in place
    assert launches[2].kernel is launches[3].kernel
