"""`memory_budget`: fewer bytes are saved, the gradients stay the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, softmax

import kiln
from kiln.graph.autograd import partition
from kiln.graph.autograd.min_cut import UNKNOWN_SIZE, hint_of
from kiln.graph.autograd.partition import Partition
from kiln.programs.analysis import peak_memory
from kiln.support.options import BadOption, options_from, options_from_text
from kiln.symbolic import ShapeEnv
from tests.graph.autograd.test_models import grad, joint_of, whole

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        scores = softmax(x @ w @ x.mT, -1)
        x = x + gelu(scores @ x @ w)
    return x.square().mean()


def partitions(function: object, inputs: tuple[torch.Tensor, ...]) -> list[Partition]:
    return [partition(joint_of(whole(function), inputs), budget=budget) for budget in BUDGETS]  # type: ignore[arg-type]


def saved_bytes(parts: Partition) -> int:
    """Of what is not an input or a result of the user."""
    values = parts.forward.outputs[parts.num_user_outputs :]
    return sum(value.value.tensor.numel() * value.value.tensor.dtype.itemsize for value in values)  # type: ignore[misc]


def test_what_is_saved_fits_the_budget() -> None:
    found = list(map(saved_bytes, partitions(attention, (grad(4, 16, 8), grad(8, 8)))))
    assert all(bytes_ <= budget * found[0] for bytes_, budget in list(zip(found, BUDGETS, strict=True))[:3])
    assert found[-1] <= found[3] < found[2] < found[1] < found[0]


def test_nothing_is_saved_beside_inputs_at_zero() -> None:

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return sum(gelu(x @ weight).square().mean() for weight in weights)  # type: ignore[return-value]

    parts = partitions(function, (grad(64, 8), *[grad(8, 8) for _ in range(3)]))[-1]
    assert {entry.of for entry in parts.saved if not isinstance(entry, str)} == {"input"}
    products = [node for node in parts.backward.nodes if "mm" in str(node.attrs.get("target"))]
    assert len(products) > 2 * sum("mm" in str(node.attrs.get("target")) for node in parts.forward.nodes)


def test_a_smaller_budget_needs_no_more_memory() -> None:
    """Of twelve layers, each needs the one in front of it: with nothing saved, all would be held at once."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x + gelu(softmax(x @ weight, -1) @ weight.mT)
        return x.square().mean()

    inputs = (grad(256, 16), *[grad(16, 32) for _ in range(12)])
    joint = joint_of(whole(function), inputs)
    found = [peak_memory(partition(joint, budget=budget).backward, {}) for budget in (1, 0.75, 0.5, 0.25, 0.1, 0)]
    assert all(later < 1.05 * earlier for earlier, later in pairwise(found))
    assert found[-1] < 0.4 * found[0]


def test_a_layer_of_its_own_saves_little_at_zero() -> None:
    """Its backward needs no less memory for that, but what it saves would wait for those of the other layers."""

    def layer(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = weights
        x = x + gelu(layer_norm(x, (16,)) @ first) @ second
        return x + gelu(layer_norm(x, (16,)) @ third) @ fourth

    weights = (grad(16, 64), grad(64, 16), grad(16, 64), grad(64, 16))
    found = list(map(saved_bytes, partitions(layer, (grad(256, 16), *weights))))
    assert found[-1] < found[0] / 16


def test_a_mask_is_exchanged_for_a_seed() -> None:

    def function(x: torch.Tensor) -> torch.Tensor:
        return gelu(x) * (torch.rand_like(x) < 0.5) * 2

    parts = partitions(function, (grad(64, 64),))[-1]
    assert any(node.op.name == "random" for node in parts.backward.nodes)
    assert saved_bytes(parts) == 8


@pytest.mark.parametrize("whole_step", [False, True])
def test_gradients_are_those_of_eager(whole_step: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(5, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        if whole_step:
            loss.backward()
        return loss

    def gradients(step: object) -> list[torch.Tensor | None]:
        model.zero_grad()
        loss = step(x)  # type: ignore[operator]
        if not whole_step:
            loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    wanted = gradients(step)
    for budget in (0.5, 0):
        options = {"memory_budget": budget, "speed_check": False}
        torch.testing.assert_close(gradients(kiln.compile(step, options=options)), wanted)


def test_the_option() -> None:
    assert options_from_text("memory_budget=0.25").memory_budget == 0.25
    assert options_from({"memory_budget": 0}).memory_budget == 0
    for wrong in (1.5, -0.1, "0.5", True):
        with pytest.raises(BadOption, match="from 0 to 1"):
            options_from({"memory_budget": wrong})


def test_likely_sizes() -> None:
    env = ShapeEnv()
    rows, found = env.create_symbol(12), env.create_unbacked()
    values = [hint_of(env, 5), hint_of(env, rows * 2), hint_of(env, rows * found), hint_of(None, rows)]
    assert values == [5, 24, UNKNOWN_SIZE, UNKNOWN_SIZE]
