"""The order in which leaves get their gradients, where hooks see it: that of the region's inputs, not eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

Register = Callable[[Tensor, Callable[[Tensor], None]], Any]
KINDS: dict[str, Register] = {
    "gradients": lambda leaf, hook: leaf.register_hook(hook),
    "accumulated": lambda leaf, hook: leaf.register_post_accumulate_grad_hook(hook),
    "nodes": lambda leaf, hook: leaf.view_as(leaf).grad_fn.next_functions[0][0].register_hook(lambda *_: hook(leaf)),
}


def order_in(compile: Callable[[nn.Module], Any], kind: str) -> list[str]:
    """The names of the parameters, in the order in which their hooks are called."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    seen: list[str] = []
    kept = []
    for name, parameter in model.named_parameters():
        kept.append(parameter.view_as(parameter))  # keeps the node that accumulates the gradient
        KINDS[kind](parameter, lambda _, name=name: seen.append(name))
    compile(model)(torch.randn(2, 4)).sum().backward()
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_hooks(kind: str) -> None:
    assert order_in(kiln.compile, kind) == order_in(lambda model: model, kind)


def test_gradients_that_a_hook_sees() -> None:
    """The hook of one leaf asks whether the others have a gradient yet."""

    def seen_by(compile: Callable[[Any], Any]) -> list[bool]:
        leaves = [torch.ones(3, requires_grad=True) for _ in range(4)]
        function = compile(lambda a, b, c, d: (a * b + c * d.exp()).sum())
        seen: list[bool] = []
        leaves[3].register_hook(lambda _: seen.extend([leaf.grad is None for leaf in leaves]))
        function(*leaves).backward()
        return seen

    assert seen_by(kiln.compile) == seen_by(lambda function: function)


@pytest.mark.unrecorded  # a recorded plan is called by Python, without pauses
def test_order_of_hooks_over_parts() -> None:
    """Gradients large enough to leave the region in parts."""

    def order_in(compile: Callable[[nn.Module], Any]) -> list[str]:
        model = nn.Sequential(nn.Linear(8, 320), nn.Linear(320, 320), nn.ReLU(), nn.LayerNorm(320), nn.Linear(320, 320))
        seen: list[str] = []
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
        compile(model)(torch.randn(2, 8)).sum().backward()
        return seen

    assert order_in(kiln.compile) == order_in(lambda model: model)
