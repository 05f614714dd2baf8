"""Branches on Python numbers that change from call to call: two compiles at most, and eager's values and objects."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import kiln

X = torch.linspace(-2, 2, 4)
CALLS = 40
Program = Callable[[Tensor, Any], Tensor]


def restart(x: Tensor, o: Any) -> Tensor:
    o.step += 1
    if o.step >= o.period:
        o.step, o.period = 0, o.period * 2
        o.history.append(o.period)
    return x * o.step


def warm_up(x: Tensor, o: Any) -> Tensor:
    def scale(step: int) -> float:
        if step < 10:
            return (step + 1) / 10
        if 20 <= step < 30:
            return 0.5
        return 1 / (step - 9)

    o.step += 1
    o.rate = scale(o.step) * 0.1
    return x * o.rate


def milestones(x: Tensor, o: Any) -> Tensor:
    o.step += 1
    if o.step in o.drops and not o.frozen:
        o.rate *= 0.5 ** o.drops[o.step]
    return x * o.rate


def early_stop(x: Tensor, o: Any) -> Tensor:
    o.step += 1
    loss = math.cos(o.step * 0.7) + 1 / o.step
    if loss < o.best:
        o.best, o.bad = loss, 0
    else:
        o.bad += 1
    if o.bad > 3:
        o.groups[0]["lr"] = max(o.groups[0]["lr"] * 0.1, 1e-3)
        o.bad = 0
    return x * o.groups[0]["lr"] + o.bad


def no_value_on_the_other_side(x: Tensor, o: Any) -> Tensor:
    """The sides that are not taken divide by zero, take a root of a negative number, and ask what is not there."""
    o.step += 1
    left = 10 - o.step
    o.rate = 1.0 / left if left != 0 else 2.0
    ahead = o.step > 12 and 1.0 / (o.step - 12) < 0.3
    root = math.sqrt(o.step - 20) if o.step >= 20 else 0.0
    return x * o.rate + root + (1 if ahead else 0)


def one_side_yields(x: Tensor, o: Any) -> Tensor:
    def items(step: int) -> Iterator[int]:
        if step % 3 == 0:
            yield 100
        yield step

    o.step += 1
    return x * sum(items(o.step))


def two_returns(x: Tensor, o: Any) -> Tensor:
    """CPython 3.12 copies the return into both sides; the first call of `scale` reaches one of them."""

    def scale(step: int) -> int:
        return step * 2 if step < 9 else step * 3

    o.step += 1
    return x * scale(1) * scale(o.step)


PROGRAMS: dict[str, Program] = {
    "restart": restart,
    "warm-up": warm_up,
    "milestones": milestones,
    "early stop": early_stop,
    "no value on the other side": no_value_on_the_other_side,
    "one side yields": one_side_yields,
    "two returns": two_returns,
}
MOST: dict[str, int] = {"restart": 3, "early stop": 2, "no value on the other side": 4}
"""Compiles where a new item of a list, the first loss or an assumption of a side takes one."""


def fresh() -> Any:
    return types.SimpleNamespace(
        step=0, period=3, rate=0.1, bad=0, best=9.0, frozen=False,
        drops={12: 1, 25: 2}, history=[], groups=[{"lr": 0.1}],
    )  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_branch_on_a_number_that_changes(name: str) -> None:
    program, mine, theirs = PROGRAMS[name], fresh(), fresh()
    compiled: Any = kiln.compile(program, options={"cache": False, "speed_check": False})
    for _ in range(CALLS):
        torch.testing.assert_close(compiled(X, mine), program(X, theirs))
        assert vars(mine) == vars(theirs)
        assert [type(value) for value in vars(mine).values()] == [type(value) for value in vars(theirs).values()]
    report = compiled.report()
    assert not report.eager and report.compiles <= MOST.get(name, 2), str(report)


def test_sides_that_call_torch_are_variants() -> None:
    def program(x: Tensor, o: Any) -> Tensor:
        o.step += 1
        if o.step % 4 == 0:
            x = x.sin()
        return x + 1

    compiled: Any = kiln.compile(program, options={"cache": False, "speed_check": False})
    mine, theirs = fresh(), fresh()
    for _ in range(CALLS):
        torch.testing.assert_close(compiled(X, mine), program(X, theirs))
    assert compiled.report().compiles == 2


L = optim.lr_scheduler
SCHEDULERS: dict[str, tuple[Callable[[optim.Optimizer], Any], int]] = {
    "step": (lambda o: L.StepLR(o, 6, 0.5), 2),
    "multi-step": (lambda o: L.MultiStepLR(o, [5, 11, 12, 25], 0.5), 2),
    "constant": (lambda o: L.ConstantLR(o, 0.5, 7), 2),
    "linear": (lambda o: L.LinearLR(o, 0.5, 1.0, 7), 2),
    "polynomial": (lambda o: L.PolynomialLR(o, 20, 2.0), 3),
    "cosine": (lambda o: L.CosineAnnealingLR(o, 9), 2),
    "warm restarts": (lambda o: L.CosineAnnealingWarmRestarts(o, 4, 2), 2),
    "cyclic": (lambda o: L.CyclicLR(o, 0.001, 0.1, 5, mode="triangular2"), 2),
    "lambda": (lambda o: L.LambdaLR(o, lambda epoch: epoch / 9 if epoch < 9 else 3 / math.sqrt(epoch)), 2),
    "chained": (lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 9), L.ExponentialLR(o, 0.9)], o), 2),
    "warm-up, then cosine": (
        lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.1, 1, 9), L.CosineAnnealingLR(o, 31)], [9]),
        3,
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_whole_step_with_a_scheduler(name: str) -> None:
    make, most = SCHEDULERS[name]

    def train(compiled: Callable[[Any], Any]) -> tuple[list[object], Any]:
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = make(optimizer)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.detach()

        run = compiled(step)
        losses = [run(torch.randn(4, 6)) for _ in range(CALLS)]
        return [
            *losses,
            *model.parameters(),
            optimizer.param_groups[0]["lr"],
            scheduler.state_dict().get("last_epoch"),
        ], run

    expected, _ = train(lambda step: step)
    found, run = train(lambda step: kiln.compile(step, options={"cache": False, "speed_check": False}))
    torch.testing.assert_close(found, expected)
    report = run.report()
    assert not report.breaks and not report.eager and report.compiles <= most, str(report)


@pytest.mark.parametrize("container", [lambda n: (n, 0), lambda n: [0, n], lambda n: [n]], ids=["tuple", "list", "one"])
def test_numbers_from_outside_among_which_one_is_looked_for(container: Callable[[int], Any]) -> None:
    def program(x: Tensor, last: int, t: int) -> Tensor:
        return x + 3 if t not in container(last) else x * 2

    compiled: Any = kiln.compile(program)
    for last, t in ((5, 3), (5, 4), (7, 7), (8, 9), (0, 0), (1, 0), (0, 3)):
        torch.testing.assert_close(compiled(X, last, t), program(X, last, t))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if len(x) else x,
        lambda x: x + 1 if not x.shape[0] else x,
        lambda x: x * (len(x) or 3) + bool(len(x)),
        lambda x: x * 2 if all([len(x), x.shape[1]]) else x,
        lambda x: x.sum(0) if len(x) and not x.shape[1] - 2 else x,
    ],
)
def test_the_truth_of_a_size_is_not_its_value(program: Callable[[Tensor], Tensor]) -> None:
    compiled: Any = kiln.compile(program)
    for size in (3, 4, 5, 6, 7, 8, 9, 0, 1, 2):
        x = torch.ones(size, 2)
        assert torch.equal(compiled(x), program(x))
    assert compiled.report().compiles <= 3


def test_the_truth_of_a_number_is_not_its_value() -> None:
    def program(x: Tensor, n: int) -> Tensor:
        return x.sin().cos() if n else x.tan()

    compiled: Any = kiln.compile(program)
    for n in (3, 4, 5, 6, -7, 8, 9, 0, 1, -2):
        torch.testing.assert_close(compiled(X, n), program(X, n))
    assert compiled.report().compiles <= 4
