"""Random numbers of Python and NumPy: drawn in front of the region, in eager's order and with eager's numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import kiln

numpy = pytest.importorskip("numpy")
X = torch.arange(12.0).reshape(3, 4) - 4


def numbers(x: Tensor) -> tuple[Any, ...]:
    return x * random.uniform(0.5, 1.5) + random.random(), numpy.random.rand(), x + numpy.random.uniform(0, 1)


def masked(shape: tuple[int, int], share: float, least: int = 0) -> Any:
    count = max(int(shape[1] * share + numpy.random.rand(1).item()), least)
    mask = numpy.zeros(shape, dtype=bool)
    rows = [numpy.random.choice(numpy.arange(shape[1]), count, replace=False) for _ in range(shape[0])]
    numpy.put_along_axis(mask, numpy.array(rows), 1, -1)
    return mask


def with_mask(x: Tensor) -> Tensor:
    mask = torch.tensor(masked((x.shape[0], x.shape[1]), 0.3), device=x.device, dtype=torch.bool)
    x = x.clone()
    x[mask] = 7.0
    return x


def branch(x: Tensor) -> Tensor:
    return x + 1 if random.random() < 0.5 else x * numpy.random.rand()


def seeded(x: Tensor) -> Tensor:
    random.seed(3)
    numpy.random.seed(4)
    return x * random.random() + numpy.random.randn()


def integers(x: Tensor) -> tuple[Tensor, ...]:
    return x + random.randint(0, 5), x - numpy.random.randint(0, 5)


def arrays(x: Tensor) -> Tensor:
    noise = numpy.random.randn(3, 4)
    return x + torch.from_numpy(numpy.sin(noise)).float()


def shuffled(x: Tensor) -> tuple[Any, ...]:
    """Minibatches, as PPO takes them; `middle` shares memory with what is shuffled."""
    first, indices, found = numpy.random.rand(2), numpy.arange(3), []
    middle = indices[1:]
    for _ in range(2):
        numpy.random.shuffle(indices)
        for start in range(0, 3, 2):
            found.append((x[indices[start : start + 2]] * 2).sum())
    return torch.stack(found), indices, middle * 2, first, numpy.random.randint(100)


def shuffled_by_a_generator(x: Tensor) -> tuple[Any, ...]:
    generator, numbers = numpy.random.default_rng(7), numpy.array([0.5, 1.5, 2.5])
    generator.shuffle(numbers)
    return x * torch.from_numpy(numbers)[:, None], generator.random()


PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "numbers": (numbers, 1), "a mask": (with_mask, 1), "a branch": (branch, 2), "seeds": (seeded, 1),
    "integers": (integers, 1), "arrays": (arrays, 1), "shuffled": (shuffled, 1),
    "shuffled by a generator": (shuffled_by_a_generator, 1),
}  # fmt: skip


def seed(number: int) -> None:
    random.seed(number)
    numpy.random.seed(number)


def assert_same_draws(compiled: Callable[..., Any], program: Callable[..., Any], *calls: Tensor) -> None:
    """Results and what is drawn next are as in eager."""
    for number, x in enumerate(calls):
        seed(number)
        expected = program(x), random.random(), numpy.random.rand()
        seed(number)
        torch.testing.assert_close((compiled(x), random.random(), numpy.random.rand()), expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    program, compiles = PROGRAMS[name]
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert_same_draws(compiled, program, *[X] * 8)
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons and report.compiles == compiles


def test_what_is_not_shuffled_in_the_graph_is_as_in_eager() -> None:
    outer = numpy.arange(3)

    def program(x: Tensor) -> tuple[Any, ...]:
        numpy.random.shuffle(outer)
        rows, pairs = [2, 0, 1], numpy.arange(6).reshape(3, 2)
        numpy.random.shuffle(rows)
        numpy.random.shuffle(pairs)
        return x[outer.copy()] + x[rows], pairs

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for number in range(4):
        found = []
        for function in (program, compiled):
            seed(number)
            outer[:] = range(3)
            found.append((*function(X), outer.tolist(), random.random(), numpy.random.rand()))
        torch.testing.assert_close(found[1], found[0])


def one_of_three(x: Tensor) -> Tensor:
    return [x + 1, x * 2, x.relu()][random.randint(0, 2)]


def some_turns(x: Tensor) -> Tensor:
    for number in range(random.randrange(3)):
        x = x + number
    return x * numpy.random.randint(1, 3)


def in_some_order(x: Tensor) -> Tensor:
    rows = [x[0], x[1], x[2]]
    random.Random.shuffle(random._inst, rows)  # type: ignore[attr-defined]
    return torch.stack(rows)


@pytest.mark.parametrize("program", [one_of_three, some_turns, in_some_order])
def test_integers_that_the_program_needs(program: Callable[[Tensor], Any]) -> None:
    """The first values have a variant each; with more of them, the draw breaks the graph."""
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert_same_draws(compiled, program, X)
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons and report.compiles == 1
    assert_same_draws(compiled, program, *[X] * 12)
    assert not report.eager_reasons


def test_kernels_take_what_is_drawn() -> None:
    compiled = kiln.compile(branch, options={"cache": False})
    assert_same_draws(compiled, branch, *[X] * 4)


def noise(x: Tensor, g: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=g) * torch.rand(4, generator=g, dtype=torch.float64)


def shuffled(x: Tensor, g: torch.Generator) -> tuple[Tensor, ...]:
    order = torch.randperm(len(x), generator=g)
    return x[order], order, torch.normal(1.0, 2.0, (3,), generator=g), torch.randint(5, (2,), generator=g)


def filled(x: Tensor, g: torch.Generator) -> Tensor:
    y = torch.empty(3, 4).uniform_(-1, 1, generator=g)
    torch.nn.init.xavier_normal_(y[1:], generator=g)
    return x.clone().bernoulli_(0.5, generator=g) + y[0] + y.exponential_(generator=g).sum(0)


def seeded_anew(x: Tensor, g: torch.Generator) -> Tensor:
    first = torch.rand(4, generator=g)
    return x * first - torch.rand(4, generator=g.manual_seed(7)) * torch.rand(4)


def returned(x: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    made = torch.rand(3, 4, generator=g)
    return made, made.mul_(x[:1]).t()


def by_values(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.rand(4, generator=g) + torch.bernoulli(x.sigmoid(), generator=g) * torch.multinomial(
        x.exp(), 4, generator=g
    )


def on_a_side(x: Tensor, g: torch.Generator) -> Tensor:
    if x.sum() > 0:
        x = x * torch.rand(4, generator=g)
    return x + torch.rand(4, generator=g)


def in_a_transform(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.func.vmap(lambda row: row * torch.rand(4, generator=g), randomness="different")(x)


def in_a_checkpoint(x: Tensor, g: torch.Generator) -> Tensor:
    """The backward draws again."""
    x = x.clone().requires_grad_()
    y = checkpoint(lambda v: (v * torch.rand(4, generator=g)).sin(), x.cos(), use_reentrant=False)
    return torch.autograd.grad(y.sum(), x)[0]


OF_GENERATORS: dict[str, tuple[Callable[[Tensor, torch.Generator], Any], bool]] = {
    "noise": (noise, True), "shuffled": (shuffled, True), "filled": (filled, True), "seeded": (seeded_anew, True),
    "returned": (returned, True), "by values": (by_values, False), "on a side": (on_a_side, False),
    "in a transform": (in_a_transform, False), "in a checkpoint": (in_a_checkpoint, False),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_GENERATORS)
def test_generators_of_torch(name: str) -> None:
    """Results and the state of the generator are eager's; torch's own one, given, keeps its order among all draws."""
    program, is_whole = OF_GENERATORS[name]
    compiled = kiln.compile(program, backend="eager", options={"cache": False, "random": "eager"})
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for x in (X, -X, X, X[:2]):
        torch.manual_seed(1)
        expected = program(x, theirs)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(x, mine), expected, rtol=0, atol=0)
        assert torch.equal(mine.get_state(), theirs.get_state())
        if x is X:
            report = kiln.report_of(compiled)
            assert not is_whole or (not report.breaks and report.compiles == 1)
    torch.manual_seed(2)
    expected = program(X, torch.default_generator), torch.rand(2)
    torch.manual_seed(2)
    torch.testing.assert_close((compiled(X, torch.default_generator), torch.rand(2)), expected, rtol=0, atol=0)


def of_varying_form(x: Tensor) -> Tensor:
    array = numpy.random.rand(1 + (numpy.random.rand() < 0.5))
    return x.sum() + torch.from_numpy(array).float()


def length(low: int) -> int:
    return numpy.zeros(low + int(numpy.random.rand() * 3)).size


def in_pieces(x: Tensor) -> Tensor:
    return torch.ones(length(1)) * x.sum()


def raising(limit: float) -> float:
    drawn = random.random()
    if drawn > limit:
        raise ValueError(drawn)
    return drawn


def raising_at_times(x: Tensor) -> Any:
    try:
        return x * raising(0.5)
    except ValueError as error:
        return x, error.args[0] > 0.5


def of_a_tensor(x: Tensor) -> Tensor:
    return x + random.uniform(0, x[0, 1].item() ** 2)


def around_a_break(x: Tensor) -> Tensor:
    before = random.random()
    x = x + before if x.sum() > 0 else x - numpy.random.rand()
    return x * random.random() + before


@pytest.mark.parametrize("program", [of_varying_form, in_pieces, raising_at_times, of_a_tensor, around_a_break])
def test_like_eager_where_draws_decide_more(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert_same_draws(compiled, program, *[X, -X] * 4)


class Augmented(torch.nn.Module):
    """Draws in each of several equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(4)])
        self.drawn = 0.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            self.drawn = random.uniform(0, 1)
            x = layer(x) * self.drawn
        return x


def test_layers_that_draw() -> None:
    model = Augmented()
    compiled = kiln.compile(model, backend="eager", options={"cache": False})
    for number in range(3):
        seed(number)
        expected = model.forward(X), model.drawn
        seed(number)
        torch.testing.assert_close((compiled(X), model.drawn), expected)
    assert kiln.report_of(compiled).compiles == 1


def with_some_layers(x: Tensor, weights: Tensor) -> Tensor:
    """Stochastic depth."""
    for weight in weights:
        if random.uniform(0, 1) < 0.5:
            x = x + (x @ weight).tanh()
    return x


def forced(x: Tensor, weights: Tensor) -> Tensor:
    """Each step takes the true row, or the last result; one of them is a view with other strides."""
    made, rows = x[:, 0], []
    for column in range(4):
        made = (made @ weights[0][:3, :3]).tanh()
        rows.append(made)
        made = x[:, column] if random.random() < 0.5 else made.detach() * 2
    return torch.stack(rows)


def counted(x: Tensor, weights: Tensor) -> Tensor:
    """Sides that leave numbers are computed in front of the region."""
    turns = 0
    for _ in weights:
        if random.random() < 0.5:
            turns += 1
    return x * turns


@pytest.mark.parametrize(("program", "compiles"), [(with_some_layers, 4), (forced, 2), (counted, 1)])
def test_draws_that_choose_in_a_loop(program: Callable[[Tensor, Tensor], Tensor], compiles: int) -> None:
    """The first choice has two variants, further ones are made in the graph."""
    weights = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    compiled = kiln.compile(program, backend="eager", options={"cache": False})

    def step(function: Callable[[Tensor, Tensor], Tensor]) -> object:
        made = function(x, weights)
        return made, torch.autograd.grad(made.square().sum(), (x, weights), allow_unused=True), random.random()

    for number in range(12):
        seed(number)
        expected = step(program)
        seed(number)
        torch.testing.assert_close(step(compiled), expected)
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons and report.compiles <= compiles
