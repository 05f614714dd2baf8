"""`options={"random": "eager"}`: the numbers that eager draws for the same seed, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln

X = torch.randn(16, 33, generator=torch.Generator().manual_seed(0))

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3) + 1,
    "dropout of a transposed tensor": lambda x: F.dropout(x.t(), 0.5) * 2,
    "dropout of a slice": lambda x: F.dropout(x[:, 1:], 0.5),
    "several": lambda x: torch.rand(5, 33) + torch.randn(3)[0] * torch.rand_like(x)[0],
    "a draw that nobody reads": lambda x: (torch.rand(5), x + torch.rand(33))[1],
    "equal draws are two": lambda x: torch.rand(33) - torch.rand(33) + x,
    "in place": lambda x: x.normal_(1, 2) + x.clone().uniform_(0, 2) + x.clone().exponential_(),
    "in place, transposed": lambda x: x.t().contiguous().t().clone().bernoulli_() + x.t().clone().normal_().t(),
    "integers": lambda x: x + torch.randint(0, 10, (33,)) + torch.randperm(33) + torch.randint_like(x, 7),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(max=1)) + x.clone().bernoulli_(0.2),
    "bernoulli of tensors": lambda x: x.t().clone().bernoulli_(x.t().abs().clamp(max=1)),
    "multinomial": lambda x: x + torch.multinomial(torch.ones(40), 33),
    "normal": lambda x: torch.normal(0.0, 1.0, (33,)) + torch.normal(x, 1.0),
    "poisson": lambda x: torch.poisson(x.abs()),
    "draws of draws": lambda x: torch.bernoulli(F.dropout(x.exp(), 0.5).sigmoid()) + torch.normal(x, x.abs()).cumsum(0),
}


def runs(function: Callable[..., Any], count: int = 3) -> list[torch.Tensor]:
    """Results of `count` calls, and the generator's next number."""
    torch.manual_seed(3)
    return [*[function(X.clone()) for _ in range(count)], torch.rand(1)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = kiln.compile(program, fullgraph=True, dynamic=dynamic, options={"random": "eager", "cache": False})
    for expected, found in zip(runs(program), runs(compiled), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def gradients(function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
    torch.manual_seed(4)
    x = X.clone().requires_grad_()
    result = function(x)
    result.square().sum().backward()
    return [result, x.grad, torch.rand(1)]


def dropped_twice(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(x, 0.4) * 3, 0.2)


def noisy_and_dropped(x: torch.Tensor) -> torch.Tensor:
    noise = torch.poisson(x.detach().abs())
    return torch.cat((F.dropout(x, 0.3), noise, torch.rand(5, 33)))


@pytest.mark.parametrize("program", [dropped_twice, noisy_and_dropped])
def test_the_backward_takes_the_same_mask(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = kiln.compile(program, fullgraph=True, options={"random": "eager", "cache": False})
    for expected, found in zip(gradients(program), gradients(compiled), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_layer_in_training() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    compiled = kiln.compile(layer, options={"random": "eager", "cache": False})
    x = torch.randn(2, 5, 16)

    def losses(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [model(x).square().sum().detach() for _ in range(3)]

    torch.testing.assert_close(losses(compiled), losses(layer))


def test_a_variant_from_disk_draws_the_same(tmp_path: Any) -> None:
    options = {"random": "eager", "cache_dir": str(tmp_path)}
    first, second = (kiln.compile(PROGRAMS["several"], options=options) for _ in range(2))
    expected = runs(PROGRAMS["several"])
    for compiled in (first, second):
        torch.testing.assert_close(runs(compiled), expected, rtol=0, atol=0)


DISTRIBUTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "uniform": (torch.rand_like, 1 / 2, 12**-0.5),
    "normal": (torch.randn_like, 0.0, 1.0),
    "exponential": (lambda x: torch.empty_like(x).exponential_(), 1.0, 1.0),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.25), 0.25, 0.1875**0.5),
    "integers": (lambda x: torch.randint(0, 100, x.shape) + 0.0, 49.5, 28.87),
    "dropout": (lambda x: F.dropout(x, 0.25), 1.0, 3**-0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_draws_are_spread_as_those_of_eager(name: str, dtype: torch.dtype) -> None:
    program, mean, deviation = DISTRIBUTIONS[name]
    torch.manual_seed(0)
    drawn = kiln.compile(program, options={"cache": False})(torch.ones(100_000, dtype=dtype)).double()
    assert abs(drawn.mean().item() - mean) < 0.02 * deviation
    assert abs(drawn.std().item() / deviation - 1) < 0.02
    distinct = {"bernoulli": 2, "dropout": 2, "integers": 100}
    assert len(drawn.unique()) >= distinct.get(name, 50_000)
