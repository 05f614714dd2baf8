"""Views that eager forbids to change in place: parts of a split, and views made without gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import outcome

Program = Callable[[Tensor], object]


def x() -> Tensor:
    return torch.arange(12.0).view(3, 4).requires_grad_()


def without_gradient(t: Tensor) -> Tensor:
    with torch.no_grad():
        return t.view(-1)


def changed_part(x: Tensor) -> Tensor:
    part = (x * 1).unbind(0)[0]
    part.mul_(2)
    return part


def changed_base(x: Tensor) -> tuple[Tensor, Tensor]:
    base = x * 1
    part = base.split(2, 1)[1]
    base.mul_(2)
    return base, part


def changed_base_of_operand(x: Tensor) -> Tensor:
    base = x * 1
    part = base.split(2, 1)[1]
    base.unsqueeze_(0)
    return part * 2


def changed_base_alone(x: Tensor) -> Tensor:
    base = x * 1
    base.unbind(0)
    base.mul_(2)
    return base


RETURNED: dict[str, Program] = {
    "a part of an input": lambda x: x.chunk(2)[1],
    "a view of it": lambda x: x.split(2)[0].view(-1),
    "all parts": lambda x: (x * 1).unbind(0),
    "a part of a temporary": lambda x: (x * 1).unbind(0)[0],
    "a part and its base": lambda x: [base := x * 1, base.chunk(2)[0]],
    "without gradients": lambda x: without_gradient(x * 1),
    "an ordinary view": lambda x: (x * 1)[0],
}
INSIDE: list[Program] = [changed_part, changed_base, changed_base_of_operand, changed_base_alone]


def changed(results: object) -> list[str]:
    """What a change of each result in place gives: nothing, or the class of the error."""
    found: list[str] = []
    for result in results if isinstance(results, list | tuple) else [results]:
        try:
            result.add_(1)
            found.append("")
        except RuntimeError as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("name", RETURNED)
def test_results_are_as_protected_as_in_eager(name: str) -> None:
    program = RETURNED[name]
    compiled = kiln.compile(program, options={"cache": False})
    assert changed(compiled(x())) == changed(program(x()))


@pytest.mark.parametrize("program", INSIDE)
def test_changes_inside_a_region(program: Program, recwarn: pytest.WarningsRecorder) -> None:
    expected, made = outcome(program, (x(),)), outcome(kiln.compile(program, options={"cache": False}), (x(),))
    assert type(made) is type(expected)
    assert not any("KILN9" in str(warning.message) for warning in recwarn)


def test_protection_is_kept_on_disk(tmp_path: object) -> None:
    program = RETURNED["a part of a temporary"]
    for _ in range(2):
        compiled = kiln.compile(program, options={"cache_dir": str(tmp_path)})
        assert changed(compiled(x())) == changed(program(x()))


def test_a_view_made_without_gradients_of_what_has_some() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        with torch.no_grad():
            part = y[1:]
        return y, part

    for call in (program, kiln.compile(program)):
        y, part = call(torch.ones(3, requires_grad=True))
        y.mul_(3)
        with pytest.raises(RuntimeError, match="no_grad mode"):
            _ = part.grad_fn


def test_views_made_without_gradients_have_no_history() -> None:
    """As the only result, or beside others."""

    def facts(results: object) -> list[tuple[bool, bool, bool]]:
        made = results if isinstance(results, tuple) else (results,)
        return [(part.requires_grad, part.is_leaf, part._is_view()) for part in made]

    def two(t: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            view = t.t()
        return view, view.detach() * 2

    for program in (without_gradient, two):
        compiled = kiln.compile(program, options={"cache": False})
        assert facts(compiled(x())) == facts(program(x()))
        with torch.no_grad():
            assert facts(compiled(x())) == facts(program(x()))
