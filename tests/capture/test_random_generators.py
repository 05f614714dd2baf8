"""Generators of random numbers that are objects, from outside and made in the frame: one graph, eager's numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kiln

from .test_numpy_arrays import same


class Augment(torch.nn.Module):
    """Draws from generators that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.python, self.state, self.bits = random.Random(1), np.random.RandomState(2), np.random.default_rng(3)

    def forward(self, x: torch.Tensor) -> Any:
        order = list(range(4))
        self.python.shuffle(order)
        x = x[order] * self.python.uniform(0.5, 2) + self.state.rand() * self.bits.random()
        noise = torch.from_numpy(self.bits.standard_normal(3).astype(np.float32))
        return x + noise, self.state.randint(0, 9, 3), self.bits.choice([1, 2, 3]), self.python.random()


class Lazy(torch.nn.Module):
    """Makes its generator in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.python: random.Random | None = None

    def forward(self, x: torch.Tensor) -> Any:
        if self.python is None:
            self.python = random.Random("seed")
            self.python.random()
        return x * self.python.random(), self.python.gauss(0, 1)


@pytest.mark.parametrize("kind", [Augment, Lazy])
def test_modules_with_generators(kind: Callable[[], torch.nn.Module]) -> None:
    eager, module = kind(), kind()
    compiled = kiln.compile(module, backend="eager", fullgraph=True, options={"cache": False})
    for _ in range(4):
        x = torch.randn(4, 3)
        assert same(eager(x), compiled(x))


class Coins(random.Random):
    def coin(self) -> bool:
        return self.random() < 0.5


def made_inside(x: torch.Tensor) -> Any:
    r, items = Coins(3), ["a", "b", "c"]
    r.shuffle(items)
    state = r.getstate()
    first = r.random()
    r.setstate(state)
    rng, old = np.random.default_rng(0), np.random.RandomState(1)
    order = rng.permutation(4)
    numbers = r.coin(), r.randrange(10), r.gauss(0, 1), r.sample(range(9), 2), r.choices("xyz", k=3)
    return x[order] * old.rand(), items, first == r.random(), numbers, rng.permutation(4), old.choice(5, 2)


def made_generators_of_torch(x: torch.Tensor) -> Any:
    g, h = torch.Generator(), torch.Generator(device="cpu").manual_seed(5)
    g.manual_seed(3)
    noise = torch.randn(4, 3, generator=g) + torch.rand(3, generator=g)
    return x + noise, torch.randperm(4, generator=h), torch.empty(3).uniform_(generator=g), str(g.device)


@pytest.mark.parametrize("program", [made_inside, made_generators_of_torch])
def test_made_with_a_known_seed(program: Callable[[torch.Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True, options={"cache": False})
    for _ in range(3):
        x = torch.randn(4, 3)
        before = random.getstate()
        assert same(program(x), compiled(x))
        assert random.getstate() == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [random.Random, np.random.default_rng])
def test_made_without_a_seed(make: Callable[[], Any]) -> None:
    """What the operating system gives is drawn anew in each call."""

    def f(x: torch.Tensor) -> Any:
        return x, make().random()

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    drawn = {float(compiled(torch.ones(2))[1]) for _ in range(4)}
    assert len(drawn) == 4


def test_one_generator_on_two_paths() -> None:
    rng = random.Random(5)

    def f(x: torch.Tensor, a: random.Random, b: random.Random) -> Any:
        return x * a.random(), b.random(), a.uniform(0, 1)

    compiled = kiln.compile(f, backend="eager", fullgraph=True, options={"cache": False})
    for _ in range(3):
        state = rng.getstate()
        expected = f(torch.ones(2), rng, rng)
        rng.setstate(state)
        assert same(expected, compiled(torch.ones(2), rng, rng))


def test_sizes_that_change() -> None:
    """The call breaks the graph, and the generator is made behind the break."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        generator = torch.Generator().manual_seed(3)
        return torch.rand(x.shape[0], generator=generator) + y[:, 0]

    compiled = kiln.compile(program)
    for rows in (4, 5, 6):
        x = torch.arange(3.0 * rows).view(rows, 3)
        assert torch.equal(compiled(x), program(x))
    assert not kiln.report_of(compiled).eager_reasons
