"""Sides of a branch may have sizes that depend on data, and may change tensors from before the branch in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import kiln
from kiln.api import report_of

Program = Callable[[Tensor, Tensor], Any]


def sizes_of_a_side(x: Tensor, gate: Tensor) -> Any:
    if gate.sum() > 0:
        rows = torch.where(x.sum(-1) > 0)[0]
        y = x.index_add(0, rows, torch.relu(x[rows] * 3).exp())
    else:
        y = x * 2
    return y + 1


def changes_a_tensor(x: Tensor, gate: Tensor) -> Any:
    out = x * 2
    for column in range(3):
        chosen = x[:, column] > 0
        if chosen.any():
            out[chosen] += x[chosen] * column
    return out


def changes_a_tensor_that_was_saved(x: Tensor, gate: Tensor) -> Any:
    a = x * 2
    y = a.exp()
    if gate.sum() > 0:
        a.add_(1)
    return a * y


def changes_in_nested_branches(x: Tensor, gate: Tensor) -> Any:
    out = x * 2
    if gate.sum() > 0:
        out.add_(1)
        if gate[0] > 0:
            out.mul_(2)
        else:
            out.sub_(1)
        out.add_(3)
    elif gate[1] > 0:
        out.mul_(5)
    return out


def changes_what_the_side_has_made(x: Tensor, gate: Tensor) -> Any:
    if gate.sum() > 0:
        made = x * 2
        made.view(-1).add_(1)
        if gate[0] > 0:
            made.mul_(2)
    else:
        made = x.clone()
        made.add_(1)
    return made


def changes_two(x: Tensor, gate: Tensor) -> Any:
    a, b = x * 2, x + 1
    if gate.sum() > 0:
        a.add_(b)
        b.mul_(a)
    else:
        b.add_(a)
    return a, b


def changes_an_attribute(x: Tensor, gate: Tensor) -> Any:
    held = [x * 2, x + 1]
    first = held[0]
    if gate.sum() > 0:
        held[0].add_(1)
        held[1].mul_(2)
        first.mul_(2)
    return first + held[0], held[1]


def none_is_chosen(x: Tensor, gate: Tensor) -> Any:
    out = x * 2
    for limit in (0.0, 0.5, 9.0):
        row, column = torch.where(x > limit)
        if row.numel() == 0:
            continue
        out.index_add_(0, row, x[row] * x[row, column, None])
    return out


@pytest.mark.parametrize(
    "program",
    [
        sizes_of_a_side, changes_a_tensor, changes_a_tensor_that_was_saved, changes_in_nested_branches,
        changes_what_the_side_has_made, changes_two, changes_an_attribute, none_is_chosen,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
@pytest.mark.parametrize("backend", ["kiln", "eager"])
def test_one_graph(program: Program, backend: str) -> None:
    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    require_equal(program, compiled)


def views_before(x: Tensor, gate: Tensor) -> Any:
    out = x * 2
    row = out[0]
    if gate.sum() > 0:
        out.add_(x)
    return out, row + 1


def another_name(x: Tensor, gate: Tensor) -> Any:
    out, other = x * 2, x * 3
    if gate.sum() > 0:
        out.add_(1)
        other = out
    other.mul_(2)
    return out, other


def indices_of_a_mask(x: Tensor, gate: Tensor) -> Any:
    found = x * 2
    for index in (gate > 0).nonzero():
        found = found + x[index] * int(index)
    for index in torch.where(x[0] > 0)[0]:
        found = found.sin() + index
    return found


def leaves_out_the_first(x: Tensor, gate: Tensor) -> Any:
    found = x * 2
    for index in (gate > 0).nonzero()[1:]:
        found = found + x[index]
    for index in (gate > 0).nonzero().flip(0):
        found = found * 2 + x[index]
    return found


def experts_of(x: Tensor, chosen: Tensor) -> Tensor:
    out = x * 2
    for number in nn.functional.one_hot(chosen, 4).sum((0, 1)).gt(0).nonzero():
        row, column = torch.where(chosen == number)
        if row.numel() == 0:
            continue
        out.index_add_(0, row, x[row] * x[row, column, None])
    return out


def test_integers_that_decide_a_size_in_a_side_are_not_speculated_on() -> None:
    compiled = kiln.compile(experts_of, fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x, chosen = torch.randn(3, 3), torch.randint(0, 4, (3, 3))
        torch.testing.assert_close(compiled(x, chosen), experts_of(x, chosen))
    assert report_of(compiled).regions == 1


def stops_early(x: Tensor, gate: Tensor) -> Any:
    found = x * 2
    for index in (gate > 0).nonzero():
        if index == 1:
            break
        found = found + x[index]
    return found


def collects(x: Tensor, gate: Tensor) -> Any:
    return [x * 2, *[x[index] for index in (gate > 0).nonzero()]]


def test_a_loop_over_the_indices_of_a_mask_is_one_graph() -> None:
    require_equal(indices_of_a_mask, kiln.compile(indices_of_a_mask, fullgraph=True))


@pytest.mark.parametrize("program", [stops_early, collects, leaves_out_the_first], ids=lambda program: program.__name__)
def test_a_loop_over_indices_that_leaves_other_values_breaks(program: Program) -> None:
    compiled = kiln.compile(program)
    require_equal(program, compiled)
    assert report_of(compiled).breaks


@pytest.mark.parametrize("program", [views_before, another_name], ids=lambda program: program.__name__)
def test_changes_that_other_names_see_break(program: Program) -> None:
    compiled = kiln.compile(program)
    require_equal(program, compiled)
    assert any(found.code == "KILN1007" for found in report_of(compiled).breaks)


def require_equal(program: Program, compiled: Program) -> None:
    """Over inputs for which each condition is true, and false."""
    for seed in range(6):
        for trained in (False, True):
            found = [outcome(function, seed, trained) for function in (program, compiled)]
            for ours, eager in zip(found[1], found[0], strict=True):
                torch.testing.assert_close(ours, eager)


def outcome(program: Program, seed: int, trained: bool) -> list[Any]:
    torch.manual_seed(seed)
    x, gate = torch.randn(3, 3), torch.randn(3)
    if seed == 5:
        x, gate = -x.abs(), -gate.abs()
    x.requires_grad_(trained)
    results = tree_leaves(program(x, gate))
    if trained:
        results += torch.autograd.grad([result.square().sum() for result in results], x)
    return results


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if token.shape[0] == 0:
                continue
            out[token] += weights[token, slot, None] * expert(x[token])
        return out


class ChosenExperts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, 4).permute(2, 1, 0)
        for index in mask.sum((-1, -2)).gt(0).nonzero():
            expert = index[0]
            if expert == len(self.experts):
                continue
            slot, token = torch.where(mask[expert])
            out.index_add_(0, token, self.experts[expert](x[token]) * weights[token, slot, None])
        return out


class DistinctExperts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            token, slot = (chosen == number).nonzero(as_tuple=True)
            out[token] += weights[token, slot, None] * self.experts[number](x[token])
        return out


class NamedExperts(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ModuleDict({f"expert_{number}": expert for number, expert in enumerate(self.experts)})

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.functional.one_hot(self.gate(x).argmax(-1)[None], 4)
        out = torch.zeros_like(x)
        for index in mask.sum((0, 1)).gt(0).nonzero():
            token = torch.where(mask[..., index].squeeze(-1)[0])[0]
            out.index_add_(0, token, self.named[f"expert_{index[0]}"](x[None, token].reshape(-1, 8)))
        return out


class ListedExperts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        chosen = nn.functional.one_hot(self.gate(x).argmax(-1), 4)
        out = torch.zeros_like(x)
        for number in chosen.sum(0).nonzero().flatten().tolist():
            token = chosen[:, number].bool()
            out[token] = self.experts[number](x[token])
        return out


class CountedExperts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        order = chosen.view(-1).argsort(stable=True)
        counts = torch.bincount(chosen.view(-1), minlength=4).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, (x[order // 2]).split(counts), strict=True)]
        made = torch.cat(parts)
        return (torch.empty_like(made).index_copy(0, order, made).view(-1, 2, 8) * weights[..., None]).sum(1)


class ExpertsOfRuns(Experts):
    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).argmax(-1)
        order = chosen.argsort(stable=True)
        out, start = torch.zeros_like(x), 0
        for number, end in enumerate(torch.bincount(chosen, minlength=4).cumsum(0).tolist()):
            if end > start:
                out[order[start:end]] = self.experts[number](x[order[start:end]])
            start = end
        return out


EXPERTS = [Experts, ChosenExperts, DistinctExperts, NamedExperts, ListedExperts, ExpertsOfRuns]


@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_that_no_token_has_chosen_have_no_gradients(kind: type[Experts]) -> None:
    torch.manual_seed(0)
    module = kind()
    compiled = kiln.compile(module, fullgraph=True)
    absent = 0
    for rows in (1, 1, 2, 3, 8):
        x = torch.randn(rows, 8)
        found = []
        for function in (module, compiled):
            module.zero_grad()
            out = function(x)
            out.square().sum().backward()
            found.append([out.detach(), *[weight.grad for weight in module.parameters()]])
        for eager, ours in zip(*found, strict=True):
            assert (eager is None) is (ours is None)
            absent += eager is None
            if eager is not None:
                torch.testing.assert_close(ours, eager)
    assert absent


def test_counted_experts_are_one_graph() -> None:
    """Each expert has a part, which may be empty; its gradients are zeros then."""
    torch.manual_seed(0)
    module = CountedExperts()
    compiled = kiln.compile(module, fullgraph=True)
    for rows in (1, 3, 8, 8):
        x, found = torch.randn(rows, 8), []
        for function in (module, compiled):
            found.append([out := function(x), *torch.autograd.grad(out.square().sum(), list(module.parameters()))])
        torch.testing.assert_close(found[1], found[0])
    assert report_of(compiled).compiles == 2


def test_more_bins_than_the_program_names() -> None:
    """The counts are taken to be as many as `minlength`; where they are not, eager runs."""

    def program(x: Tensor) -> list[int]:
        return torch.bincount(torch.argsort(x)[:2], minlength=2).tolist()

    compiled = kiln.compile(program, fullgraph=True)
    for given in ([0.0, 1, 2], [2.0, 1, 0], [1.0, 2, 0]):
        assert compiled(torch.tensor(given)) == program(torch.tensor(given))
    assert report_of(compiled).compiles == 1


def test_a_list_that_nothing_reads_is_made_behind_the_region() -> None:
    def program(x: Tensor) -> tuple[Any, ...]:
        rows = (x > 0).nonzero()[:, 0]
        kept = rows.tolist()
        return x * len(kept), kept, f"{(x < 0).nonzero().tolist()}"

    compiled = kiln.compile(program, fullgraph=True)
    for given in ([0.0, 1, 2], [-2.0, 1, 0], [-1.0, -2, -1]):
        ours, eager = compiled(torch.tensor(given)), program(torch.tensor(given))
        torch.testing.assert_close(ours[0], eager[0])
        assert ours[1:] == eager[1:]
    assert report_of(compiled).compiles == 1


@pytest.mark.parametrize("change", ["tensor", "list"])
def test_a_list_that_is_read_or_whose_tensor_changes_breaks(change: str) -> None:
    def program(x: Tensor) -> tuple[Any, ...]:
        rows = (x > 0).nonzero()[:, 0]
        kept = rows.tolist()
        if change == "tensor":
            rows += 1
        else:
            kept.append(5)
        return x * 2, kept

    compiled = kiln.compile(program)
    for given in ([0.0, 1, 2], [-2.0, 1, 0]):
        assert compiled(torch.tensor(given))[1] == program(torch.tensor(given))[1]
    assert report_of(compiled).breaks


def test_a_loss_that_refuses_values() -> None:
    def loss(x: Tensor, variance: Tensor) -> Tensor:
        return torch.nn.functional.gaussian_nll_loss(x, torch.zeros(3), variance)

    compiled: Any = kiln.compile(loss, fullgraph=True, options={"cache": False})
    x, variance = torch.randn(3, requires_grad=True), torch.rand(3)
    torch.testing.assert_close(compiled(x, variance), loss(x, variance))
    with pytest.raises(ValueError, match="negative"):
        compiled(x, -variance)
    gradients = [torch.autograd.grad(function(x, variance), x)[0] for function in (compiled, loss)]
    torch.testing.assert_close(*gradients)
