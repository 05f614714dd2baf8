"""Gradients of a large region leave it in parts, while the rest of its backward has not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import kiln

WIDTH = 320
"""400 kB of gradients for each layer: a part."""
LOG: list[str] = []
LIBRARY = torch.library.Library("kiln_gradient_parts", "DEF")
LIBRARY.define("noted(Tensor x, int layer) -> Tensor")


def noted(x: torch.Tensor, layer: int) -> torch.Tensor:
    LOG.append(f"backward {layer}")
    return x.clone()


LIBRARY.impl("noted", noted, "CompositeExplicitAutograd")
torch.library.register_fake("kiln_gradient_parts::noted", lambda x, layer: torch.empty_like(x), lib=LIBRARY)


class Noted(torch.autograd.Function):
    """The identity, whose backward is noted when it runs."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, layer: int) -> torch.Tensor:
        ctx.layer = layer  # type: ignore[attr-defined]
        return x * 1

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return torch.ops.kiln_gradient_parts.noted(grad, ctx.layer), None  # type: ignore[attr-defined]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = Noted.apply(layer(x).tanh(), number)
        return x


@pytest.fixture(autouse=True)
def empty_log() -> Iterator[None]:
    LOG.clear()
    yield


def models() -> tuple[Layers, nn.Module]:
    torch.manual_seed(0)
    model, other = Layers(), Layers()
    other.load_state_dict(model.state_dict())
    return model, kiln.compile(other, fullgraph=True)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.unrecorded  # a recorded plan is called by Python, without pauses
def test_hooks_of_parameters_run_between_the_parts_of_a_backward() -> None:
    _, compiled = models()
    for number, layer in enumerate(compiled.layers):
        layer.weight.register_post_accumulate_grad_hook(lambda weight, number=number: LOG.append(f"ready {number}"))
    compiled(torch.randn(8, WIDTH)).sum().backward()
    assert LOG.index("ready 3") < LOG.index("backward 1"), LOG
    assert LOG.index("ready 2") < LOG.index("backward 0"), LOG


def test_gradients_equal_those_of_eager() -> None:
    """Also with accumulation, a kept graph, and a second backward with another result."""
    model, compiled = models()
    x = torch.randn(8, WIDTH)
    for retain in (True, False, False):
        for each in (model, compiled):
            y = each(x)
            y.square().sum().backward(retain_graph=retain)
            if retain:
                y.sum().backward()
        torch.testing.assert_close(gradients(compiled), gradients(model))


def test_some_gradients() -> None:
    model, compiled = models()
    x = torch.randn(8, WIDTH, requires_grad=True)
    for chosen in (lambda m: [m.layers[0].weight], lambda m: [m.layers[3].bias, x], lambda m: [m.layers[2].weight]):
        expected, found = [torch.autograd.grad(each(x).sum(), chosen(each)) for each in (model, compiled)]
        torch.testing.assert_close(found, expected)
    for each in (model, compiled):
        each.layers[1].weight.requires_grad_(False)
        each(x).sum().backward()
    torch.testing.assert_close(gradients(compiled), gradients(model))


def test_a_gradient_is_not_copied() -> None:
    """The parameter gets the memory that the plan has written to, so a part's results have no other owner."""
    _, compiled = models()
    given: dict[int, int] = {}
    for number, layer in enumerate(compiled.layers):
        layer.weight.register_hook(lambda grad, number=number: given.update({number: grad.data_ptr()}))
    compiled(torch.randn(8, WIDTH)).sum().backward()
    assert {n: layer.weight.grad.data_ptr() for n, layer in enumerate(compiled.layers)} == given


def test_a_hook_that_raises() -> None:
    model, compiled = models()
    handle = compiled.layers[2].weight.register_hook(lambda grad: 1 / 0)
    x = torch.randn(8, WIDTH)
    with pytest.raises(ZeroDivisionError):
        compiled(x).sum().backward()
    handle.remove()
    compiled.zero_grad()
    for each in (model, compiled):
        each(x).sum().backward()
    torch.testing.assert_close(gradients(compiled), gradients(model))


def test_second_derivatives() -> None:
    """Of layers without `Noted`, whose backward nobody knows to be linear."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)])
    compiled = kiln.compile(model)
    x = torch.randn(4, WIDTH, requires_grad=True)
    found = []
    for each in (model, compiled):
        (first,) = torch.autograd.grad(each(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [layer[0].weight for layer in each]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
