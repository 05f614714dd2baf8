"""`torch.utils.checkpoint` in compiled code: equal results, and the memory that it saves."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import kiln


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(16, 64), nn.Linear(64, 16), nn.Dropout(dropout)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x + self.drop(self.b(torch.tanh(self.a(x)))) * scale


class Net(nn.Module):
    def __init__(self, checkpointed: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, scale=0.5) if self.checkpointed else block(x, 0.5)
        return x.sin()


def saved_bytes(model: Any, *args: Tensor) -> int:
    """Bytes that autograd keeps between forward and backward, without parameters."""
    kept: dict[int, int] = {}
    parameters = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(one: Tensor) -> Tensor:
        if one.data_ptr() not in parameters:
            kept[one.data_ptr()] = one.nbytes
        return one

    pack.preserves_values = True  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        result = model(*args)
    del result
    return sum(kept.values())


def twins(dropout: float = 0.0) -> tuple[Net, Net]:
    torch.manual_seed(1)
    plain = Net(False, dropout)
    other = Net(True, dropout)
    other.load_state_dict(plain.state_dict())
    return plain, other


def test_gradients_and_memory() -> None:
    plain, checked = twins()
    x = torch.randn(8, 16)
    compiled, compiled_plain = kiln.compile(checked), kiln.compile(plain)
    for model in (plain, compiled):
        model.zero_grad()
        model(x).sum().backward()
    for a, b in zip(plain.parameters(), checked.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    report = kiln.report_of(compiled)
    assert (report.breaks, report.regions, report.eager) == ([], 1, 0)
    inner = 3 * 8 * 64 * 4  # tanh of each block
    scalars = 64
    assert saved_bytes(compiled_plain, x) - saved_bytes(compiled, x) >= inner - scalars


def test_random_numbers_are_the_same_in_both_runs() -> None:
    plain, checked = twins(dropout=0.5)
    found = []
    for model in (plain, checked):
        x = torch.ones(8, 16, requires_grad=True)
        torch.manual_seed(0)
        result = kiln.compile(model)(x)
        found.append((result.detach(), *torch.autograd.grad(result.sum(), [x, *model.parameters()])))
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_nested_and_without_gradients() -> None:
    def inner(x: Tensor) -> Tensor:
        return torch.tanh(x @ x)

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, x, use_reentrant=False).exp()

    def program(x: Tensor) -> Tensor:
        return checkpoint(outer, x * 2, use_reentrant=False) + 1

    compiled = kiln.compile(program)
    x = torch.randn(4, 4, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), program(x))
    got, expected = compiled(x), program(x)
    torch.testing.assert_close(got, expected)
    pairs = [torch.autograd.grad(item.sum(), x)[0] for item in (got, expected)]
    torch.testing.assert_close(*pairs)
    assert kiln.report_of(compiled).breaks == []


def test_a_checkpoint_for_debugging_breaks() -> None:
    def program(x: Tensor) -> Tensor:
        return checkpoint(torch.sin, x * 2, use_reentrant=False, debug=True) + 1

    compiled = kiln.compile(program)
    x = torch.randn(4, requires_grad=True)
    torch.testing.assert_close(compiled(x), program(x))
    (stop,) = kiln.report_of(compiled).breaks
    assert stop.code == "KILN1002" and "test_checkpoint.py" in stop.where


def policies() -> dict[str, Any]:
    return {
        "list": functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]),
        "function": functools.partial(create_selective_checkpoint_contexts, saves_products),
        "closure": lambda: create_selective_checkpoint_contexts(saves_products),
        "nothing": noop_context_fn,
    }


def saves_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saves = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("name", sorted(policies()))
def test_policies_decide_what_is_computed_again(name: str) -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(8, 16)
    context_fn = policies()[name]

    def run(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False, context_fn=context_fn).sin()

    def gradients(run: Any) -> list[Tensor | None]:
        block.zero_grad()
        run(x).square().sum().backward()
        return [parameter.grad for parameter in block.parameters()]

    compiled = kiln.compile(run, fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(run))
    wide, narrow = 8 * 64 * 4, 8 * 16 * 4
    saved = sum_of_saved(compiled, x, block)
    assert (saved >= wide) is (name != "nothing"), saved
    assert saved < 2 * wide + 3 * narrow


def sum_of_saved(model: Any, x: Tensor, block: nn.Module) -> int:
    model.parameters = block.parameters
    return saved_bytes(model, x)


def test_a_policy_is_no_part_of_a_reentrant_checkpoint() -> None:
    block, x = Block(), torch.randn(8, 16, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=True, context_fn=policies()["list"])

    for function in (run, kiln.compile(run)):
        with pytest.raises(ValueError, match="use_reentrant=False"):
            function(x)
