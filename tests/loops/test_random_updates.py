"""Random programs that write into views of two tensors and read them in between, run as kernels in the interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from kiln.graph.passes import run_passes
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.interpret import run_kernel_program
from kiln.loops.lowering import lower
from kiln.loops.lowering.updates import find_updates
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.support.target import Target
from tests.codegen_triton.check import GPU
from tests.loops.checks import TARGET
from tests.trace.harness import trace

Tensor = torch.Tensor

VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x[1],
    lambda x: x[:, 2],
    lambda x: x[1:3],
    lambda x: x[:, ::2],
    lambda x: x.t()[1:],
    lambda x: x.view(-1)[4:9],
    lambda x: x.diagonal(),
    lambda x: x[1:][:, :3],
    lambda x: x,
)


def update(choose: random.Random, x: Tensor, source: Tensor, rows: Tensor, places: Tensor) -> None:
    """One write into `x` or a view of it, of something computed from `source`."""
    view = choose.choice(VIEWS)(x)
    match choose.randrange(7):
        case 0:
            view.add_(source.sum())
        case 1:
            view.mul_(choose.randint(2, 3))
        case 2:
            x[choose.randrange(4)] = source.reshape(-1)[:4] * 2
        case 3:
            x.index_put_((rows,), source.reshape(-1)[:4] + 1, accumulate=choose.random() < 0.5)
        case 4:
            x[:, :2].scatter_(1, places, source.reshape(-1)[4:8].view(2, 2) + 1)
        case 5:
            view.copy_(choose.choice(VIEWS)(source.contiguous()).sum(-1, keepdim=True).reshape(-1)[:1].squeeze())
        case 6:
            x[1:, :3] = source[:3, 1:] + choose.choice((0, 1))


REDUCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.amax(0, keepdim=True).expand(4, 4),
    lambda x: x.sum(0).expand(4, 4),
    lambda x: x.sum(1, keepdim=True) + x,
    lambda x: x.cumsum(0),
    lambda x: x.mean(0) * x,
)


def program(seed: int, reduces: bool = False) -> Callable[[Tensor, Tensor, Tensor, Tensor], list[Tensor]]:
    def run(x: Tensor, y: Tensor, rows: Tensor, places: Tensor) -> list[Tensor]:
        choose = random.Random(seed)
        values = [x * 1, torch.zeros(4, 4)]
        for _ in range(choose.randint(2, 7)):
            written = choose.choice((x, x, y, values[1]))
            update(choose, written, choose.choice((x, y, *values)), rows, places)
            if choose.random() < 0.4:
                values.append(choose.choice((x, y, values[-1])) * 2)
            if choose.random() < 0.3:
                values.append(choose.choice((x, y)).t() + values[-1])
            if reduces and choose.random() < 0.4:
                values.append(choose.choice(REDUCTIONS)(choose.choice((x, y, values[1]))))
        return values

    return run


def given() -> list[Tensor]:
    x, y = torch.arange(16.0).reshape(4, 4), torch.arange(16.0).flip(0).reshape(4, 4) / 8
    return [x, y, torch.tensor([2, 0]), torch.tensor([[0, 1], [1, 0]])]


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_equals_eager(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, program(seed), TARGET)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_passes_for_gpus_keep_the_order_of_reads_and_writes(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, program(seed, reduces=True), GPU)


def check(seed: int, run: Callable[..., list[Tensor]], target: Target) -> None:
    expected = given()
    results = [*run(*expected), *expected]
    traced = trace(run, given())
    graph = run_passes(traced.trace.graph, EventSink(), env=traced.recorder.env)
    loops = lower(graph, target, EventSink(), traced.recorder.env)
    verify_program(loops)
    loops = run_program_passes(loops, target, EventSink())
    inputs = given()
    used = [inputs[traced.trace.inputs.index(record)] for record in traced.trace.used_inputs]
    outputs = run_kernel_program(schedule(loops, target, EventSink()), used)
    for actual, wanted in zip([*outputs, *inputs], results, strict=True):
        torch.testing.assert_close(actual, wanted, msg=lambda text: f"seed {seed}: {text}")


def test_most_of_them_are_in_place() -> None:
    found = 0
    for seed in range(40):
        graph = trace(program(seed), given()).trace.graph
        found += bool(find_updates(graph, graph.nodes, frozenset(), None).memory)
    assert found > 25
