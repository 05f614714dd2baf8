"""Branches on tensors whose sides can be nested graphs are one graph; results, gradients and memory are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import kiln
from kiln.api import report_of
from kiln.capture.bytecode.decode import decode
from kiln.capture.bytecode.postdominators import meeting_points

Program = Callable[[Tensor, Tensor], Any]


def two_sides(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        y = torch.tanh(x @ w) * 2
    else:
        y = torch.relu(x) @ w.t() + w.sum()
    return y * 3


def one_side(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    if y.sum() > 0:
        y = y @ w
    return y.sin()


def two_branches(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    if y.sum() > 0:
        y = y @ w
    if y.mean() > 0.1:
        y = y + w[0]
    return y.sin()


def computed_before(x: Tensor, w: Tensor) -> Any:
    v = w * 2
    y = x + 1
    if y.sum() > 9:
        y = y @ v
    return y.cos()


def several_results(x: Tensor, w: Tensor) -> Any:
    z = x
    if x.sum() > 0:
        y = x @ w
        z = y + 1
    else:
        y = x - 1
    return y * 2, (z * 3).sin()


def within(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    if x.sum() > 0:
        y = y + 1
        if y.sum() > 0:
            y = y * 2
    return y + 1


def draws(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    if torch.rand([]) < 0.5:
        y = torch.dropout(y @ w, 0.5, True)
    else:
        y = torch.dropout(y, 0.1, True)
    return y + torch.rand([])


def views(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    y = y[:, :2] if x.sum() > 0 else y[:, 1:] * 2
    return y + 1


def turns(x: Tensor, w: Tensor) -> Any:
    for bound in range(3):
        if x.sum() < bound:
            continue
        x = x @ w
    return x * 2


def three_sides(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    if x.sum() > 2:
        y = y @ w
    elif x.sum() > 0:
        y = y.sin()
    else:
        y = y.cos()
    return y * 2


def without_gradients(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    if x.sum() > 0:
        with torch.no_grad():
            y = y @ w
    return y @ w


def tuples(x: Tensor, w: Tensor) -> Any:
    a, b = (x * 2, x) if x.sum() > 0 else (x, x @ w)
    return a + b * 2


def flags(x: Tensor, w: Tensor) -> Any:
    dropped = False
    if torch.rand([]) < 0.5:
        dropped = True
    if dropped:
        found = (None, None)
    else:
        found = (x @ w, None)
        x = found[0]
    return x + 1


CONVERTED = [
    *(two_sides, one_side, two_branches, computed_before, several_results, within, draws, views, turns, three_sides),
    *(without_gradients, tuples, flags),
]


def changed_later(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    z = y
    if x.sum() > 0:
        y = y * 2
    y.add_(1)
    return z @ w


def copied_input(x: Tensor, w: Tensor) -> Any:
    x = x.detach()
    if x.sum() > 0:
        x = x.clone()
    x.add_(1)
    return x @ w


def returned_input(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        x = x * 2
    return x


def varying_gradients(x: Tensor, w: Tensor) -> Any:
    x = x.detach() * 2
    if x.sum() > 0:
        x = x @ w
    return x.sin()


def changes_an_argument(x: Tensor, w: Tensor) -> Any:
    part = x.detach()
    if x.sum() > 0:
        part[0].add_(1)
    return part @ w


def two_copies_of_one(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    z = y.view(12)
    if x.sum() > 0:
        z = y.view(-1)
    if x.mean() > 1:
        y = y * 1
    return y, z


def variable_of_a_cell(x: Tensor, w: Tensor) -> Any:
    y, held = x + 1, x * 2
    read = lambda: held  # noqa: E731
    if x.sum() > 0:
        held = y
    return y, read() @ w, held


class Holder:
    last: Tensor | None = None


def attribute(x: Tensor, w: Tensor) -> Any:
    holder, y = Holder(), x + 1
    holder.last = x * 2
    if x.sum() > 0:
        holder.last = y
    return y, holder.last


def changes_what_a_gradient_needs(x: Tensor, w: Tensor) -> Any:
    y = x.tanh()
    if x.sum() > 0:
        y = y @ w
        y = y.tanh()
        y.mul_(0.5)
    return w * 2 if y.shape[0] == 4 else y


def early(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        return x @ w
    return x * 2


def keys(x: Tensor, w: Tensor) -> Any:
    found = {}
    if x.sum() > 0:
        found["product"] = x @ w
    return x + 1, found


def numbers(x: Tensor, w: Tensor) -> Any:
    n = 0
    if x.sum() > 0:
        n = 1
    return x @ w + (2, 3)[n]


def gradient_within(x: Tensor, w: Tensor) -> Any:
    """Whether `w` has a gradient depends on both tests."""
    y = x * 1
    if x.sum() > 0:
        y = y + 1
        if y.mean() > 1:
            y = y @ w
    return y + 1


def repeats(x: Tensor, w: Tensor) -> Any:
    kept = [x]
    while x.abs().sum() < 20:
        x = x * 2
        kept.append(x)
    return x + kept[0]


BROKEN = [
    copied_input,
    changes_an_argument,
    changes_what_a_gradient_needs,
    two_copies_of_one,
    keys,
    repeats,
]


def early_tuple(x: Tensor, w: Tensor) -> Any:
    y = x * 1
    if x.sum() > 2:
        return x + 3, y @ w
    if x.sum() > 0:
        return x + 3, y @ w.t()
    z = y + w.sum()
    return x - 3, z.sin()


def early_in_callee(x: Tensor, w: Tensor) -> Any:
    return early(x * 2, w) + early(x + 1, w.t())


def nested_conditional(x: Tensor, w: Tensor) -> Any:
    return (x @ w).sin() if x.sum() > 0 else x * 2 if x.mean() > -1 else x - w[0]


REPEATED = [changed_later, variable_of_a_cell, attribute, numbers]
RETURNING = [early, early_tuple, early_in_callee, nested_conditional, returned_input, gradient_within]


def outcome(call: Program, seed: int, gradients: bool) -> list[Any]:
    torch.manual_seed(seed)
    x = (torch.randn(4, 3) + (seed - 2) * 0.5).requires_grad_(gradients)
    w = torch.randn(3, 3).requires_grad_(gradients)
    results = tree_leaves(call(x, w))
    last = results[-1]
    if last.requires_grad and gradients:
        last.square().sum().backward()
    same = [[a is b for b in (x, w, *results)] for a in results]
    needs = [result.requires_grad for result in results]
    return [*[result.detach() for result in results], x.detach(), x.grad, w.grad, same, needs]


def check(program: Program, compiled: Program, gradients: bool) -> None:
    for seed in range(5):
        torch.testing.assert_close(outcome(compiled, seed, gradients), outcome(program, seed, gradients))


@pytest.mark.parametrize("program", CONVERTED, ids=lambda program: program.__name__)
def test_a_branch_is_one_graph(program: Program) -> None:
    for gradients in (True, False):
        compiled = kiln.compile(program, backend="eager", fullgraph=True)
        check(program, compiled, gradients)
        assert report_of(compiled).compiles == 1


@pytest.mark.parametrize("program", BROKEN, ids=lambda program: program.__name__)
def test_a_branch_that_is_no_nested_graph_breaks(program: Program) -> None:
    compiled = kiln.compile(program, backend="eager")
    check(program, compiled, True)
    breaks = report_of(compiled).breaks
    assert "KILN1007" in {found.code for found in breaks} and not any("at ," in found.reason for found in breaks)


@pytest.mark.parametrize("program", RETURNING, ids=lambda program: program.__name__)
def test_sides_that_return_are_one_graph(program: Program) -> None:
    for gradients in (True, False):
        check(program, kiln.compile(program, backend="eager", fullgraph=True), gradients)


@pytest.mark.parametrize("program", REPEATED, ids=lambda program: program.__name__)
def test_the_rest_is_in_both_sides_where_it_needs_to_know_which(program: Program) -> None:
    for gradients in (True, False):
        check(program, kiln.compile(program, backend="eager", fullgraph=True), gradients)


def many_numbers(x: Tensor, w: Tensor) -> Any:
    """Each test doubles the rest."""
    a = b = c = d = 0
    if x.sum() > 0:
        a = 1
    if x.max() > 1:
        b = 1
    if x.min() > -1:
        c = 1
    if x.mean() > 0.1:
        d = 1
    return x * (1, 2)[a] + (3, 4)[b] - (5, 6)[c] * (7, 8)[d]


def test_the_rest_is_in_few_sides() -> None:
    compiled = kiln.compile(many_numbers, backend="eager")
    check(many_numbers, compiled, False)
    assert report_of(compiled).breaks and report_of(compiled).compiles <= 6


def test_no_branch_is_in_the_graph_if_asked_for() -> None:
    compiled = kiln.compile(two_sides, backend="eager", options={"control_flow": "python"})
    check(two_sides, compiled, False)
    assert {found.code for found in report_of(compiled).breaks} == {"KILN1007"}


@pytest.mark.parametrize(
    ("program", "says"),
    [(keys, "it changes the keys of a dict"), (repeats, ""), (two_copies_of_one, "would be seen")],
)
def test_a_break_says_why_not_both_sides_are_in_the_graph(program: Program, says: str) -> None:
    compiled = kiln.compile(program, backend="eager")
    compiled(torch.ones(4, 3), torch.ones(3, 3))
    assert says in report_of(compiled).breaks[0].reason


@pytest.mark.parametrize("program", [two_sides, two_branches, draws], ids=lambda program: program.__name__)
def test_plans_of_branches(program: Program) -> None:
    """With gradients that do not exist where the side that was taken does not use a tensor."""
    compiled = kiln.compile(program, fullgraph=True, options={"random": "eager"})
    check(program, compiled, True)


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_a_draw_that_nothing_reads_is_made(backend: str) -> None:
    def chosen(x: Tensor) -> Tensor:
        if torch.rand([]) < 0.5:
            x = x
        return x

    compiled = kiln.compile(chosen, backend=backend, options={"random": "eager"})
    found = []
    for call in (compiled, chosen):
        torch.manual_seed(0)
        found.append([call(torch.ones(2)), torch.rand([])])
    torch.testing.assert_close(*found)


class Skipping(nn.Module):
    """Layers that are skipped by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)])
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            skipped = self.training and torch.rand([]) < 0.5
            if not skipped:
                x = x + layer(x)
        return self.norm(x)


def assert_trains_alike(
    kind: type[nn.Module], rows: int, backend: str = "kiln", rtol: float | None = None, atol: float | None = None
) -> None:
    """Gradients and buffers are eager's, for four draws of random numbers."""
    torch.manual_seed(0)
    model, eager = kind(), kind()
    eager.load_state_dict(model.state_dict())
    compiled: Any = kiln.compile(model, fullgraph=True, backend=backend, options={"random": "eager"})
    for seed in range(4):
        x = torch.randn(rows, 4)
        for call in (compiled, eager):
            torch.manual_seed(seed)
            call.zero_grad()
            call(x).square().sum().backward()
        torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))
        for ours, expected in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad, rtol=rtol, atol=atol)


def test_skipped_layers_have_no_gradients() -> None:
    """So an optimizer leaves them alone."""
    assert_trains_alike(Skipping, rows=2)


class Counting(nn.Module):
    """A skipped part changes its buffers where it runs, and only there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.part = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if torch.rand([]) < 0.5:
            x = self.part(x)
        return x * 2


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_a_side_changes_buffers(backend: str) -> None:
    assert_trains_alike(Counting, rows=3, backend=backend, rtol=1e-3, atol=1e-4)


def test_a_backward_inside_that_depends_on_the_side_runs_in_python() -> None:
    layer = nn.Linear(3, 3, bias=False)

    def step(x: Tensor) -> Tensor:
        y = x * 1
        if x.sum() > 0:
            y = layer(y)
        loss = (y * layer.bias_like).sum()
        loss.backward()
        return loss.detach()

    layer.bias_like = nn.Parameter(torch.ones(3))
    compiled = kiln.compile(step, backend="eager")
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        found = []
        for call in (compiled, step):
            layer.zero_grad()
            found.append([call(x), layer.weight.grad, layer.bias_like.grad])
        torch.testing.assert_close(*found)
    assert "KILN1006" in {broken.code for broken in report_of(compiled).breaks}


def test_sides_meet_behind_a_branch_or_at_the_head_of_a_loop() -> None:
    decoded = decode(turns.__code__)
    instructions = decoded.instructions
    (jump,) = [at for at, found in enumerate(instructions) if found.name.startswith("POP_JUMP_IF")][:1]
    assert [instructions[at].name for at in meeting_points(decoded, jump, 3)] == ["FOR_ITER"]
    decoded = decode(three_sides.__code__)
    (jump,) = [at for at, found in enumerate(decoded.instructions) if found.name.startswith("POP_JUMP_IF")][:1]
    assert decoded.line(meeting_points(decoded, jump, 3)[0]) == three_sides.__code__.co_firstlineno + 8


def endless(numbers: list[int]) -> int:
    for number in numbers:
        numbers.append(number)
    return len(numbers)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_side_that_does_not_end_need_not_be_taken(dynamic: bool | None) -> None:
    def by_data(x: Tensor, numbers: list[int], n: int) -> Tensor:
        if x.sum() > 0:
            return x * 2
        for number in numbers:
            numbers.append(number)
        return x

    def in_a_callee(x: Tensor, numbers: list[int], n: int) -> Tensor:
        return x * 2 if x.sum() > 0 else x + endless(numbers)

    def by_number(x: Tensor, numbers: list[int], n: int) -> Tensor:
        return x * (2 if n > 1 else endless([n]))

    for program in (by_data, in_a_callee, by_number):
        compiled = kiln.compile(program, dynamic=dynamic)
        for n in (3, 4, 5):
            assert torch.equal(compiled(torch.ones(n), [1], n), torch.full((n,), 2.0))
