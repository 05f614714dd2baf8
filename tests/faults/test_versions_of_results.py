"""`_version` of results that the program changed in place before it returned them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor], Sequence[Tensor]]


def with_views(x: Tensor) -> list[Tensor]:
    y = x * 2
    y += 1
    return [y, y[1:], y.detach(), y.view(-1).clone()]


def filled(x: Tensor) -> list[Tensor]:
    y = torch.zeros_like(x)
    for row in range(3):
        y[row] = x[row] * 2
    return [y, y.t(), torch.full((2,), 1.0).clamp_(0)]


def out(x: Tensor) -> list[Tensor]:
    y = torch.empty(3, 3)
    torch.sin(x.detach(), out=y)
    return [y, torch.nn.init.kaiming_uniform_(torch.empty(3, 3))]


def turned(x: Tensor) -> list[Tensor]:
    return [(x * 1).t_(), (x * 1).unsqueeze_(0).squeeze_()]


def behind_the_scenes(x: Tensor) -> list[Tensor]:
    y, z = x * 1, x * 2
    y.data.mul_(2)
    with torch.no_grad():
        z.mul_(2)
    return [y, z]


def lists(x: Tensor) -> list[Tensor]:
    made = [x * 1, x * 2]
    torch._foreach_add_(made, 1.0)
    return made


def a_part(x: Tensor) -> list[Tensor]:
    row = x.clone()[0]
    row.mul_(2)
    return [row]


def data(x: Tensor) -> list[Tensor]:
    y, z = x * 2, x.detach() * 3
    d = y.data
    e = z.data
    e.mul_(2)
    e += 1
    return [d, d[1:], y, z, e, x.data, z.data[0]]


PROGRAMS = [with_views, filled, out, turned, behind_the_scenes, lists, a_part, data]


def facts(results: Sequence[Tensor]) -> list[object]:
    return [(result._version, result.requires_grad) for result in results]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_versions(program: Program, dynamic: bool | None, requires_grad: bool) -> None:
    x = torch.ones(3, 3, requires_grad=requires_grad)
    compiled = kiln.compile(program, dynamic=dynamic)
    for _ in range(2):
        assert facts(compiled(x)) == facts(program(x))


def test_of_a_whole_step() -> None:
    def versions(compiled: bool) -> list[int]:
        w = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            y = (x * 2).add_(1)
            (y * w).sum().backward()
            optimizer.step()
            return y

        run = kiln.compile(step) if compiled else step
        results = [run(torch.ones(3)) for _ in range(3)]
        return [w._version, *[result._version for result in results]]

    assert versions(True) == versions(False)


@kiln.disable
def seen() -> None:
    pass


def changed_through_data(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.data


def changed_through_data_of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.data


def changed_through_a_view_of_data(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    seen()
    return y, y.data[1:]


@pytest.mark.parametrize("backend", ["kiln", "eager"])
@pytest.mark.parametrize(
    "program", [changed_through_data, changed_through_data_of_an_input, changed_through_a_view_of_data]
)
def test_a_change_through_data_is_not_seen(program: Callable[[Tensor], tuple[Tensor, Tensor]], backend: str) -> None:
    def changed(run: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[object]:
        x = torch.ones(3, requires_grad=True)
        y, d = run(x)
        loss = (y * y).sum()  # saves `y`
        d.mul_(5)
        loss.backward()
        return [x.grad, y._version, d._version, d._base is y, y.tolist(), d.tolist()]

    compiled = kiln.compile(program, backend=backend)
    for _ in range(2):
        assert str(changed(compiled)) == str(changed(program))
