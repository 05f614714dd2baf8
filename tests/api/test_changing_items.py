"""Numbers and truth values in lists that change from call to call, as a batch from a replay buffer: two compiles."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.linspace(-2, 2, 12).view(4, 3)
Program = Callable[[list[bool], Tensor], Any]
TWO: dict[str, Program] = {
    "tensor": lambda b, x: (torch.tensor(b), torch.tensor(b, dtype=torch.float32), torch.tensor([b, b])),
    "tensor among numbers": lambda b, x: (torch.tensor([b[0], 2]), torch.tensor([b[1], 2.5])),
    "as_tensor": lambda b, x: torch.as_tensor(b, dtype=torch.float32),
    "mask": lambda b, x: torch.where(torch.tensor(b), x, 0),
    "number": lambda b, x: [x * (1 - d) for d in b],
    "int and float": lambda b, x: [x * int(d) + float(d) for d in b],
    "sum": lambda b, x: x * sum(b),
    "type": lambda b, x: x * (2 if isinstance(b[0], bool) and type(b[1]) is bool else 3),
}
VALUES: dict[str, Program] = {
    "if": lambda b, x: [x + 1 if d else x for d in b],
    "operators": lambda b, x: x * (b[0] ^ b[1]) + (b[0] | b[2]) + (b[1] and b[2]) + (not b[0]),
    "product": lambda b, x: [x * d for d in b],
    "texts": lambda b, x: (str(b[0]), f"{b[1]}", {True: 2, False: 3}[b[2]]),
    "results": lambda b, x: (b[0], [not d for d in b], sorted(b), max(b), b.count(True)),
    "index": lambda b, x: x[int(b[0])] + x[b[1]],
    "argument": lambda b, x: x.amax(0, keepdim=b[0]),
    "identity": lambda b, x: (b[0] is True, b[1] is b[2], b[0] == b[1]),
}


def run(program: Program) -> Any:
    """Compare seven calls with eager; the compiled function."""
    compiled = kiln.compile(program)
    generator = random.Random(1)
    for _ in range(7):
        batch = [generator.random() < 0.5 for _ in range(3)]
        found, expected = compiled(list(batch), X), program(list(batch), X)
        assert str(found) == str(expected)
    return compiled


@pytest.mark.parametrize("program", TWO.values(), ids=TWO)
def test_data_in_lists_is_compiled_at_most_twice(program: Program) -> None:
    report = run(program).report()
    assert report.compiles <= 2
    assert not report.breaks


@pytest.mark.parametrize("program", VALUES.values(), ids=VALUES)
def test_truths_that_python_reads(program: Program) -> None:
    run(program)


def test_a_batch_of_a_replay_buffer() -> None:
    """Rewards, actions and ends of episodes; all of a kind are inputs as soon as one of them has changed."""

    def step(batch: list[tuple[Tensor, int, float, bool]]) -> Tensor:
        states = torch.stack([item[0] for item in batch])
        actions, ends = torch.tensor([item[1] for item in batch]), torch.tensor([item[3] for item in batch])
        rewards = torch.tensor([item[2] for item in batch])
        return states.gather(1, actions[:, None]).squeeze(1) * ~ends + rewards

    compiled, generator = kiln.compile(step), random.Random(0)
    for _ in range(6):
        batch = [
            (torch.randn(4), generator.randrange(3), generator.random(), generator.random() < 0.2) for _ in range(8)
        ]
        torch.testing.assert_close(compiled(batch), step(batch))
    assert compiled.report().compiles == 2


def test_flags_are_no_inputs() -> None:
    """A truth value that is no item has a variant for each value."""
    compiled = kiln.compile(lambda x, double: x * 2 if double else x)
    for double in (True, False, True, False):
        torch.testing.assert_close(compiled(X, double), X * 2 if double else X)
    assert compiled.report().compiles == 2


def test_the_report_outlives_what_was_compiled() -> None:
    def made() -> Any:
        compiled = kiln.compile(lambda x: x + 1)
        compiled(X)
        return compiled

    assert made().report().compiles == 1
