"""Random programs of views, copies, writes and arithmetic: recorded, simplified, run, compared with eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.text import graph_text
from kiln.graph.passes import run_passes
from kiln.graph.trace import Recorder
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv


def some_axis(rng: random.Random, x: Any) -> int:
    return rng.randrange(x.dim())


def transpose(rng: random.Random, x: Any) -> Any:
    return x.transpose(some_axis(rng, x), some_axis(rng, x))


def narrow(rng: random.Random, x: Any) -> Any:
    axis = some_axis(rng, x)
    size = x.shape[axis]
    start = rng.randrange(size)
    return x.narrow(axis, start, rng.randint(1, size - start))


def step(rng: random.Random, x: Any) -> Any:
    return x[:: rng.choice((1, 2))]


def flatten(rng: random.Random, x: Any) -> Any:
    return x.reshape(-1)


def regroup(rng: random.Random, x: Any) -> Any:
    return x.reshape(*x.shape[1:], x.shape[0])


def grow(rng: random.Random, x: Any) -> Any:
    return x.unsqueeze(rng.randint(0, x.dim())) if x.dim() < 4 else x.flatten(0, 1)


def reduce(rng: random.Random, x: Any) -> Any:
    return x.sum(some_axis(rng, x), keepdim=True)


def scale(rng: random.Random, x: Any) -> Any:
    return x * rng.choice((1, 2, 0.5, -1))


def shift(rng: random.Random, x: Any) -> Any:
    return x + rng.choice((0, 1, -0.0))


def negate(rng: random.Random, x: Any) -> Any:
    return -x


def divide(rng: random.Random, x: Any) -> Any:
    return x / rng.choice((1, 4, 3))


def widen(rng: random.Random, x: Any) -> Any:
    return x.double().float()


def copy(rng: random.Random, x: Any) -> Any:
    return rng.choice((torch.clone, torch.Tensor.contiguous))(x)


def choose(rng: random.Random, x: Any) -> Any:
    return torch.where(x > 0, x, torch.zeros_like(x))


def join(rng: random.Random, x: Any) -> Any:
    return torch.cat([x, -x], some_axis(rng, x))


def twice(rng: random.Random, x: Any) -> Any:
    return x.expand(2, *x.shape) * 1 if x.dim() < 4 else x


def write(rng: random.Random, x: Any) -> Any:
    return rng.choice((lambda: x.add_(1), lambda: x.mul_(2), lambda: x.fill_(3.0), lambda: x.neg_()))()


def write_part(rng: random.Random, x: Any) -> Any:
    axis = some_axis(rng, x)
    x.select(axis, rng.randrange(x.shape[axis])).mul_(-2)
    return x


MOVES = (
    transpose, narrow, step, flatten, regroup, grow, reduce, scale, shift, negate, divide, widen, copy, choose, join,
    twice, write, write_part,
)  # fmt: skip


def program(seed: int) -> Callable[..., Any]:
    """The same calls each time it is run; a call that eager refuses is skipped."""

    def run(*inputs: Any) -> list[Any]:
        rng = random.Random(seed)
        values = list(inputs)
        for _ in range(10):
            x = rng.choice(values[-4:])
            move = rng.choice(MOVES)
            state = random.Random(rng.random())
            if x.dim() and x.numel() < 400 and not (move in (write, write_part) and 0 in x.stride()):
                values.append(move(state, x))
        return rng.sample(values[len(inputs) :], min(3, len(values) - len(inputs)))

    return run


@pytest.mark.parametrize("group", range(8))
def test_random_programs(group: int) -> None:
    for seed in range(group * 20, group * 20 + 20):
        function = program(seed)
        reals = [torch.randn(2, 3, 4), torch.randn(4, 6)[:, ::2], torch.randn(3, 4).t()]
        recorder = Recorder(env=ShapeEnv(), events=EventSink())
        fakes = [recorder.add_tensor(x, f"x{i}", LocalSource(f"x{i}")) for i, x in enumerate(reals)]
        outputs = recorder.call(function, tuple(fakes), {})
        trace = recorder.finish(outputs)
        graph = run_passes(trace.graph, EventSink(), checks="full")

        used = [i for i, record in enumerate(trace.inputs) if record.used]
        run = interpret(graph, [reals[i] for i in used])
        values = [copied(x) for x in reals]
        expected = function(*values)
        for output, actual, result in zip(graph.outputs, run.outputs, expected, strict=True):
            assert torch.equal(actual, result), (seed, graph_text(graph))
            assert output.alias is not None or same_layout(actual, result), (seed, graph_text(graph))
        after = {used[place]: value for place, value in run.written}
        for i, value in enumerate(values):
            assert torch.equal(after.get(i, reals[i]), value), (seed, i, graph_text(graph))


def copied(x: torch.Tensor) -> torch.Tensor:
    """The same values in the same layout, in memory of their own."""
    storage = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


def same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    return all(a == b or size == 1 for a, b, size in zip(left.stride(), right.stride(), left.shape, strict=True))
