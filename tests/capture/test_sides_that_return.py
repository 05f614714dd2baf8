"""Sides of a branch on a tensor that return, leave a loop or raise are one graph; what is seen is eager's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import kiln
from kiln.api import report_of

Program = Callable[[Tensor, Tensor], Any]
LAYERS = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])


def guard_clauses(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    if y.sum() > 4:
        return y
    if y.mean() < -1:
        if y.max() < 0:
            return y.abs()
        y = y + 1
    if y.min() > -0.5:
        return x
    return (y @ w).relu()


def tensor_or_none(x: Tensor, w: Tensor) -> Any:
    if x.sum() < 0:
        return None
    return x @ w


def other_sizes(x: Tensor, w: Tensor) -> Any:
    if x.sum() < 0:
        return x[:1] * 2, None
    return x @ w, w.sum()


def other_rank(x: Tensor, w: Tensor) -> Any:
    if x.sum() < 0:
        return x.sum()
    return x @ w


def one_of_two_arguments(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        return x
    return w


def at_most_norm_one(x: Tensor, w: Tensor) -> Any:
    norm = x.norm()
    if norm > 1:
        return x / norm
    return x


def changed_name(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        x = x * 2
    return x


def truths(x: Tensor, w: Tensor) -> Any:
    if (x > 2).any():
        return False
    return not (x @ w > 3).any()


def truth_of_a_callee(x: Tensor, w: Tensor) -> Any:
    def is_small(x: Tensor) -> bool:
        if x.max() > 1:
            return False
        return not x.min() < -1

    return x @ w if is_small(x) else x * 2


def containers(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        return {"loss": x.sum(), "y": [x, x @ w]}
    return {"y": (x * 2,)}


def leaves_a_loop(x: Tensor, w: Tensor) -> Any:
    for turn in range(4):
        x = (x @ w).tanh() + x
        if x.abs().mean() > 2:
            return x, turn
    return x, -1


def breaks_a_loop(x: Tensor, w: Tensor) -> Any:
    for _, scale in zip(range(5), (0.5, 0.4, 0.3), strict=False):
        y = (x @ w).tanh() * scale
        if (y - x).abs().max() < 1:
            break
        x = x + y
    return x


def leaves_layers(x: Tensor, w: Tensor) -> Any:
    for layer in LAYERS:
        x = layer(x)
        if x.max() < 0.5:
            return x
    return x * 2


def raises_in_a_side(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 3:
        if x.mean() > 1:
            raise ValueError(f"too large: {x.shape}")
        x = x * 2
    if x.mean() < -0.5:
        return x
    assert w.sum() < 4, "also behind a return"
    return x @ w


def out_of_a_context(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        if x.sum() > 0:
            return x @ w
        y = x * 2
    return y - 1 + x


def none_is_tested(x: Tensor, w: Tensor) -> Any:
    y = None
    if x.sum() > 0:
        y = x @ w
    if y is None:
        return x
    return y + 1


def mean_of_chosen(x: Tensor, w: Tensor) -> Any:
    mask = x > 1
    if mask.sum() == 0:
        return x.sum() * 0
    return (x[mask] ** 2).mean()


def collects(x: Tensor, w: Tensor) -> Any:
    losses, found = [w.mean()], {"all": x.mean()}
    if x.sum() > 0:
        losses.append(x.abs().mean())
        found["positive"] = x.max()
    return sum(losses) * x, sum(found.values())


PROGRAMS = [
    *(guard_clauses, tensor_or_none, other_sizes, other_rank, one_of_two_arguments, at_most_norm_one, changed_name),
    *(truths, truth_of_a_callee, containers, leaves_a_loop, breaks_a_loop, leaves_layers, raises_in_a_side),
    *(out_of_a_context, none_is_tested, mean_of_chosen, collects),
]


def outcome(call: Program, seed: int, gradients: bool, device: str) -> tuple[str, list[Any]]:
    """The structure of the results, which of them are arguments or need gradients; values and gradients that exist."""
    torch.manual_seed(seed)
    x = (torch.randn(4, 3) + (seed - 2) * 0.6).to(device).requires_grad_(gradients)
    w = torch.randn(3, 3).to(device).requires_grad_(gradients)
    LAYERS.to(device).zero_grad()
    try:
        leaves, spec = tree_flatten(call(x, w))
    except (ValueError, AssertionError) as error:
        return str(error), []
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    loss = sum((found.square().sum() for found in tensors if found.requires_grad), torch.zeros((), device=device))
    if loss.requires_grad:
        loss.backward()
    same = [[a is b for b in (x, w, *tensors)] for a in tensors]
    grads = [parameter.grad for parameter in (x, w, *LAYERS.parameters())]
    values = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return f"{spec} {same} {[found.requires_grad for found in tensors]}", [values, grads]


def check(program: Program, compiled: Program, gradients: bool, device: str = "cpu") -> None:
    for seed in range(6):
        ours, theirs = [outcome(call, seed, gradients, device) for call in (compiled, program)]
        (said, found), (expected_text, expected) = ours, theirs
        assert said == expected_text
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_one_graph(program: Program, backend: str) -> None:
    for gradients in (True, False):
        compiled = kiln.compile(program, backend=backend)
        check(program, compiled, gradients)
        assert (report_of(compiled).compiles, report_of(compiled).breaks) == (1, [])


class Early(nn.Module):
    """Its `forward` is called by `nn.Module.__call__`, which returns what it gets."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Tensor, w: Tensor) -> Any:
        return self.program(x, w)


@pytest.mark.parametrize("program", [guard_clauses, other_sizes, changed_name], ids=lambda program: program.__name__)
def test_the_result_of_a_module_is_chosen_behind_the_region(program: Program) -> None:
    compiled = kiln.compile(Early(program), backend="eager")
    for gradients in (True, False):
        check(program, compiled, gradients)
    assert not report_of(compiled).breaks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_on_a_gpu(program: Program, cuda_graphs: bool) -> None:
    """With CUDA graphs the branch stays in Python: the regions of both sides are recorded."""
    for gradients in (True, False):
        compiled = kiln.compile(program, options={"cuda_graphs": cuda_graphs})
        check(program, compiled, gradients, "cuda")
        assert bool(report_of(compiled).breaks) is cuda_graphs


def many_turns(x: Tensor, w: Tensor) -> Any:
    kept = []
    for _ in range(20):
        x = x @ w
        kept.append(x)
        if x.abs().max() > 9:
            break
    return x + len(kept)


def data_decide_how_many_turns(x: Tensor, w: Tensor) -> Any:
    kept = [x]
    while x.abs().sum() < 20:
        x = x * 2
        kept.append(x)
    return x + kept[0]


@pytest.mark.parametrize("program", [many_turns, data_decide_how_many_turns])
def test_other_loops_break_and_are_compiled_a_few_times(program: Program) -> None:
    compiled = kiln.compile(program, backend="eager")
    check(program, compiled, False)
    assert report_of(compiled).breaks and report_of(compiled).compiles <= 6 + (sys.version_info >= (3, 12))


def test_a_break_in_the_rest_costs_one_more_attempt() -> None:
    """Not one for each of the branches that it is in."""

    @torch.compiler.disable
    def opaque(x: Tensor) -> Tensor:
        return x + 1

    def program(x: Tensor, w: Tensor) -> Any:
        if x.sum() > 30:
            return x
        if x.mean() > 20:
            return x + 1
        if x.max() > 30:
            return x + 2
        return opaque(x) @ w

    compiled = kiln.compile(program, backend="eager")
    check(program, compiled, False)
    assert report_of(compiled).compiles <= 5


def changes_what_it_has_a_view_of(x: Tensor) -> Tensor:
    y = x * 1
    if x.sum() > 0:
        z = y[:2]
        y.add_(5)
        return z * 1
    return y[:2] * 3


def changes_what_a_callee_has_a_view_of(x: Tensor) -> Tensor:
    def changed(view: Tensor) -> Tensor:
        y.add_(5)
        return view * 1

    y = x * 1
    return changed(y[1:]) if x.sum() > 0 else y


@pytest.mark.parametrize("program", [changes_what_it_has_a_view_of, changes_what_a_callee_has_a_view_of])
def test_a_view_that_a_side_made_before_sees_its_changes(program: Callable[[Tensor], Tensor]) -> None:
    compiled = kiln.compile(program)
    for value in (1.0, -1.0, 2.0):
        x = torch.full((4, 4), value)
        assert torch.equal(compiled(x), program(x))
