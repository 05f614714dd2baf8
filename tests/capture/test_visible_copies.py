"""What a side of a branch leaves as it was is the same object behind the branch, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import kiln

LAYERS = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])


def clipped(x: Tensor, y: Tensor) -> list[Tensor]:
    found = []
    for grad in (x, y, x * 2):
        if grad.norm() > 3:
            grad = grad / grad.norm()
        found.append(grad)
    return found


def drops_layers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    states = (x,)
    for number, layer in enumerate(LAYERS):
        if y[0, number] > 0:
            x = torch.tanh(layer(x))
        states += (x,)
    return states


def best_of_several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    best = x
    for other in (y, x + y, x * 2):
        if other.sum() > best.sum():
            best = other
    return best, x, y


def either_of_two(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first = x if x.sum() > 0 else y
    second = x if y.sum() > 0 else y
    return first, second


class Keeps(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        kept = x
        if y.sum() > 0:
            kept = x * y
        self.kept = kept
        return kept, x, self.kept


def a_view_of_it(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    if y.sum() > 0:
        x = x * y
    for _ in range(3):
        if y.mean() < x.mean():
            x = x + y
    return x, x[0]


def changed_later(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    before = x * 2
    after = before
    if y.sum() > 0:
        after = before + y
    after.add_(1)
    return before, after


def is_it(x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
    kept = x
    if y.sum() > 0:
        kept = x * y
    return (kept + 1, True) if kept is x else (kept + 2, False)


def finds_the_best(x: Tensor, y: Tensor) -> tuple[bool, ...]:
    best = x
    for other in (y, x + y):
        if other.sum() > best.sum():
            best = other
    return best is x, id(best) == id(y), best in {y: 1}, len({best, x, y}) == 2


def unchanged_by_turns(x: Tensor, y: Tensor) -> bool:
    turned = x
    while turned.abs().sum() > 3:
        turned = turned * 0.5
    return turned is x


def asks_the_object(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    x.mark = 3  # type: ignore[attr-defined]
    kept, row = x, x[0]
    if y.sum() > 0:
        kept, row = x * y, y[0] * 2
    return kept + 1, getattr(kept, "mark", None), row._is_view()


def marks_the_object(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    kept = x
    if y.sum() > 0:
        kept = x * y
    kept.mark = 5  # type: ignore[attr-defined]
    return kept, getattr(x, "mark", None)


def is_a_leaf(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    x = x.detach().requires_grad_()
    kept = x
    if y.sum() > 0:
        kept = x * y
    return kept + 1, kept.is_leaf


def requires_it(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    kept = x
    if y.sum() > 0:
        kept = x * y
    kept.requires_grad_()
    return kept, x


def detaches_it(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    before = x * 2
    after = before
    if y.sum() > 0:
        after = before * y
    after.detach_()
    return after, before


def moves_it(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    x = x.detach()
    kept = x
    if y.sum() > 0:
        kept = x * y
    kept.data = y * 3
    return kept, x, kept is x


def moves_the_one_before(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    x = x.detach()
    kept = x
    if y.sum() > 0:
        kept = x * y
    x.data = y * 3
    return kept * 1, kept is x


def requires_the_one_before(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    x = x.detach()
    kept = x
    if y.sum() > 0:
        kept = x * y
    x.requires_grad_()
    return (kept * 1,)


def detaches_the_one_before(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    before = x * 2
    after = before
    if y.sum() > 0:
        after = before * y
    before.detach_()
    return (after * 1,)


OF_OBJECTS = [
    *(detaches_it, is_it, finds_the_best, unchanged_by_turns, asks_the_object, marks_the_object, is_a_leaf),
    *(requires_it, moves_it, moves_the_one_before, requires_the_one_before, detaches_the_one_before),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program",
    OF_OBJECTS,
    ids=lambda program: program.__name__,
)
def test_what_only_the_object_knows_is_as_in_eager(program: Any, grad: bool) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for seed in range(8):
        x, y = torch.randn(2, 2 + seed % 3, 3, generator=torch.Generator().manual_seed(seed)) / (1 + seed % 2 * 9)
        (found, same), (wanted, same_in_eager) = [outcome(run, x, y, grad) for run in (compiled, program)]
        torch.testing.assert_close(found, wanted)
        assert same == same_in_eager
        assert [getattr(each, "requires_grad", None) for each in found] == [
            getattr(each, "requires_grad", None) for each in wanted
        ]


def outcome(program: Any, x: Tensor, y: Tensor, grad: bool = False) -> tuple[list[Tensor], list[list[bool]]]:
    given = x.clone().requires_grad_(grad), y.clone()
    found = tree_flatten(program(*given))[0]
    return found, [[a is b for b in (*given, *found)] for a in found]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("program", "is_whole"),
    [
        *[(program, True) for program in (clipped, drops_layers, best_of_several, either_of_two, Keeps())],
        *[(program, False) for program in (a_view_of_it, changed_later)],
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_results_are_the_objects_that_eager_gives(program: Any, is_whole: bool, grad: bool) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    with torch.set_grad_enabled(grad):
        for seed in range(8):
            x, y = torch.randn(2, 2 + seed % 3, 3, generator=torch.Generator().manual_seed(seed))
            found, same = outcome(compiled, x, y)
            wanted, same_in_eager = outcome(program, x, y)
            torch.testing.assert_close(found, wanted)
            assert [each.requires_grad for each in found] == [each.requires_grad for each in wanted]
            assert same == same_in_eager
    report = kiln.report_of(compiled)
    assert not report.eager and (not is_whole or (not report.breaks and report.compiles <= 2)), report.text()


def test_gradients_flow_to_what_is_chosen() -> None:
    compiled = kiln.compile(drops_layers, options={"cache": False})
    for seed in range(6):
        given = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(seed))
        gradients = []
        for function in (drops_layers, compiled):
            x = given[0].clone().requires_grad_()
            LAYERS.zero_grad()
            sum(state.square().sum() for state in function(x, given[1])).backward()
            gradients.append([x.grad, *[parameter.grad for parameter in LAYERS.parameters()]])
        for found, wanted in zip(gradients[1], gradients[0], strict=True):
            torch.testing.assert_close(
                torch.zeros(1) if found is None else found, torch.zeros(1) if wanted is None else wanted
            )


def test_a_hook_on_what_a_side_leaves_sees_its_whole_gradient() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        kept = x
        if y.sum() > 0:
            kept = x * y
        kept.register_hook(lambda gradient: gradient * 10)  # type: ignore[no-untyped-call]
        return kept + x

    compiled = kiln.compile(program, options={"cache": False})
    for sign in (1, -1, 1, -1):
        x, other = [torch.ones(3, requires_grad=True) for _ in range(2)]
        compiled(x, torch.full((3,), float(sign))).sum().backward()
        program(other, torch.full((3,), float(sign))).sum().backward()
        assert x.grad is not None and other.grad is not None and torch.equal(x.grad, other.grad)


def test_what_a_side_leaves_is_a_parameter() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
        weight = LAYERS[0].weight if y.sum() > 0 else x * 2
        return x @ weight, isinstance(weight, nn.Parameter)

    compiled = kiln.compile(program, options={"cache": False})
    for sign in (1, -1, 1):
        x, y = torch.ones(3, 3), torch.full((3,), float(sign))
        found, wanted = compiled(x, y), program(x, y)
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] is wanted[1]
