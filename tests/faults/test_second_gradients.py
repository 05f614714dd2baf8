"""Second gradients of regions that draw random numbers: those of the forward are used again, not drawn anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import kiln

Layer = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The result, and the random numbers in it (0 where they do not matter)."""


def dropout(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.dropout(x.tanh(), 0.5)
    return y, y.detach().ne(0) * 2.0


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.dropout(x.tanh(), 0.25)
    mask = y.detach().ne(0) / 0.75
    z = F.dropout(y, 0.5)
    return z, mask * z.detach().ne(0) * 2.0


def native(x: Tensor) -> tuple[Tensor, Tensor]:
    y, mask = torch.native_dropout(x.tanh(), 0.5, True)
    return y, mask * 2.0


def unused(x: Tensor) -> tuple[Tensor, Tensor]:
    torch.rand(3)
    noise = torch.rand_like(x)
    return x.tanh() * noise, noise


def filled(x: Tensor) -> tuple[Tensor, Tensor]:
    noise = torch.empty_like(x).uniform_(1, 2)
    noise = noise + torch.empty_like(x).bernoulli_(0.5)
    return x.tanh() * noise, noise.clone()


def chances(x: Tensor) -> tuple[Tensor, Tensor]:
    kept = torch.bernoulli(torch.full_like(x, 0.5))
    return x.tanh() * kept, kept.clone()


def integers(x: Tensor) -> tuple[Tensor, Tensor]:
    factors = torch.randint(1, 5, x.shape)
    return x.tanh() * factors, factors.float()


def gaussian(x: Tensor) -> tuple[Tensor, Tensor]:
    noise = torch.randn(x.shape)
    return x.tanh() * noise, noise.clone()


def checkpointed(x: Tensor) -> tuple[Tensor, Tensor]:
    y: Tensor = checkpoint(lambda x: F.dropout(x.tanh(), 0.5), x, use_reentrant=False)
    return y, y.detach().ne(0) * 2.0


LAYERS: dict[str, Layer] = {
    "dropout": dropout, "two": two, "native": native, "unused": unused, "filled": filled, "chances": chances,
    "integers": integers, "gaussian": gaussian, "checkpointed": checkpointed,
}  # fmt: skip


def penalty(loss: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), x)
    return second


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradient_penalty(name: str, dynamic: bool | None) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y, factors = LAYERS[name](x)
        return (y**3).sum(), factors

    compiled = kiln.compile(program, dynamic=dynamic)
    torch.manual_seed(0)
    for _ in range(2):
        x = torch.randn(4, 5, requires_grad=True)
        loss, factors = compiled(x)
        state = torch.get_rng_state()
        found = penalty(loss, x)
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(found, penalty(((x.tanh() * factors) ** 3).sum(), x))


def test_noise_that_the_backward_does_not_need() -> None:
    def program(x: Tensor) -> Tensor:
        return ((x + torch.randn_like(x)) ** 3).sum()

    x = torch.zeros(5, requires_grad=True)
    loss = kiln.compile(program)(x)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    noise = (slope.detach() / 3).sqrt()
    (second,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(second.abs(), 6 * noise)


@pytest.mark.parametrize("options", [{"memory_budget": 0.0}, {"memory_budget": 0.0, "random": "eager"}])
def test_numbers_that_are_saved_as_seeds(options: dict[str, object]) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.nn.functional.dropout(x.tanh(), 0.5)
        noise = torch.rand_like(x[: len(x) - 1])
        return ((kept[:-1] * noise) ** 3).sum(), (kept.detach() != 0) * 2.0

    compiled = kiln.compile(program, dynamic=True, options=options)
    for rows in (4, 7):
        x = torch.randn(rows, 5, requires_grad=True)
        loss, factors = compiled(x)
        if "random" in options:
            with pytest.raises(RuntimeError, match="KILN4008"):
                penalty(loss, x)
            continue
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        noise = first.detach()[:-1] / (
            3 * (x.tanh()[:-1] * factors[:-1]) ** 2 * factors[:-1] * (1 - x.tanh()[:-1] ** 2)
        )
        noise = noise.nan_to_num() ** (1 / 3)
        expected = penalty((((x.tanh() * factors)[:-1] * noise.detach()) ** 3).sum(), x)
        torch.testing.assert_close(penalty(loss, x), expected, rtol=1e-3, atol=1e-4)


def test_numbers_that_an_operator_draws_itself() -> None:
    def program(x: Tensor) -> Tensor:
        return (x[torch.multinomial(torch.ones(5), 3)] ** 3).sum()

    x = torch.randn(5, requires_grad=True)
    loss = kiln.compile(program)(x)
    with pytest.raises(RuntimeError, match="KILN4008"):
        penalty(loss, x)


def test_sizes_stay_sizes() -> None:
    """`x.new` makes a tensor of a `torch.Size` and data of a tuple."""

    def program(x: Tensor) -> Tensor:
        return (x * x.new(x.size()).fill_(2.0)) ** 2

    x = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(kiln.compile(program, options={"cache": False})(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.full_like(x, 8.0))


def selected(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    large = x[x > 0].exp()
    return large.sum() / large.shape[0] + torch.ones(large.shape[0]).sum() * x.mean()


def read(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    number = int(counts.sum())
    return (x[:number] ** 3).sum() * torch.full((number + 1,), 2.0).sum()


@pytest.mark.parametrize("function", [selected, read])
def test_a_replay_reads_sizes_that_data_decide_off_its_results(function: Callable[..., torch.Tensor]) -> None:
    fast = kiln.compile(function, options={"cache": False})
    for seed in range(3):
        torch.manual_seed(seed)
        x, counts = torch.randn(8, requires_grad=True), torch.randint(1, 4, (2,))
        seconds = []
        for each in (function, fast):
            (first,) = torch.autograd.grad(each(x, counts), x, create_graph=True)
            seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
        torch.testing.assert_close(*seconds)
