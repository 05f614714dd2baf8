# ruff: noqa: E501
"""Partitions of programs of real ops, run by the interpreter and compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kiln.graph.autograd import partition
from kiln.graph.autograd.partition import backward_for
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.verify import verify
from tests.graph.autograd.programs import check, joint_of

Maker = Callable[[], tuple[torch.Tensor, ...]]


def grad(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A program of one call."""
    return lambda c, *inputs: c(function, *inputs)


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + F.gelu(F.linear(x, w, b)), (8,), g, h)


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = F.linear(x, w).view(2, 5, 3, 2, 4).unbind(2)
    scores = torch.softmax(q.transpose(1, 2) @ k.transpose(1, 2).transpose(-1, -2) / 2, -1)
    return (scores @ v.transpose(1, 2)).transpose(1, 2).reshape(2, 5, 8)


def flash(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = F.linear(x, w).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def embedding_loss(ids: torch.Tensor, table: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(F.embedding(ids, table), w), ids)


def conv_norm(
    x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
) -> Any:
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), m, v, g, b, training=True))


def in_place(x: torch.Tensor) -> Any:
    y = x * 2
    y[:, 1] = x[:, 0].exp()
    y.mul_(x)
    return y, y.t(), y[0]


def expanded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.expand(4, 8) * y).sum(0) + x.sum()


def scaled_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = x.chunk(2, 1)
    return torch.cat([b, a.sin()], 1), torch.stack([a, b]).flatten()


# fmt: off
CASES: dict[str, tuple[Callable[..., Any], Maker]] = {
    "block": (block, lambda: (grad(2, 3, 8), grad(8, 8), grad(8), grad(8), grad(8))),
    "attention": (attention, lambda: (grad(2, 5, 8), grad(24, 8))),
    "flash": (flash, lambda: (grad(2, 5, 8), grad(24, 8))),
    "embedding_loss": (embedding_loss, lambda: (torch.randint(0, 7, (12,)), grad(7, 8), grad(7, 8))),
    "conv_norm": (conv_norm, lambda: (grad(2, 3, 5, 5), grad(4, 3, 3, 3), grad(4), grad(4), torch.zeros(4), torch.ones(4))),
    "in_place": (in_place, lambda: (grad(3, 3),)),
    "expanded": (expanded, lambda: (grad(1, 8), grad(4, 8))),
    "scaled_views": (scaled_views, lambda: (grad(4, 6),)),
}
# fmt: on


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", sorted(CASES))
def test_equals_eager(name: str, recompute: bool) -> None:
    function, make = CASES[name]
    check(whole(function), make(), recompute)


@pytest.mark.parametrize("name", sorted(CASES))
def test_equals_eager_after_all_passes(name: str) -> None:
    function, make = CASES[name]
    check(whole(function), make(), passes=True)


def test_recomputation_saves_no_more_bytes_than_keeping_all() -> None:
    for name in ("block", "attention", "conv_norm"):
        function, make = CASES[name]
        sizes = []
        for recompute in (True, False):
            parts = partition(joint_of(whole(function), make()), recompute=recompute)
            fresh = {entry.index for entry in parts.saved if entry.of == "output"}
            sizes.append(sum(parts.forward.outputs[i].value.tensor.numel() for i in fresh))
        assert sizes[0] <= sizes[1], name


def test_backward_for_some_inputs() -> None:
    function, make = CASES["block"]
    inputs = make()
    parts = partition(joint_of(whole(function), inputs))
    run = interpret(parts.forward, inputs)
    saved = [inputs[entry.index] if entry.of == "input" else run.outputs[entry.index] for entry in parts.saved]
    arguments = [*saved, torch.randn(2, 3, 8)]
    every = interpret(parts.backward, arguments).outputs
    for wanted in ([0], [2, 4], [0, 1, 2, 3, 4], []):
        graph = backward_for(parts.backward, parts.grads, [index in wanted for index in range(5)])
        verify(graph, "backward_for")
        some = interpret(graph, arguments).outputs
        assert len(some) == len(wanted)
        for index, gradient in zip(wanted, some, strict=True):
            place = parts.grads[index]
            assert place is not None
            assert torch.equal(gradient, every[place])
        assert len(graph.nodes) < len(parts.backward.nodes) or len(wanted) == 5


def test_shared_gradients_find_a_new_owner() -> None:
    parts = partition(joint_of(whole(lambda x, y, z: x + y * 2 + z), (grad(3), grad(3), grad(3))))
    graph = backward_for(parts.backward, parts.grads, [False, True, True])
    assert [output.alias and output.alias.of for output in graph.outputs] == [None, "input"]
