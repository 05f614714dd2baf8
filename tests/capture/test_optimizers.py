"""Tests that a step of each optimizer of torch is captured as one region, compiled at most twice, and equals eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import kiln
from kiln.report.report import Report

Make = Callable[[list[nn.Parameter]], optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, int]] = {
    "sgd": (lambda p: optim.SGD(p, lr=0.01), 1),
    "sgd momentum": (lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01), 2),
    "sgd foreach": (lambda p: optim.SGD(p, lr=0.01, momentum=0.9, foreach=True), 2),
    "adam": (lambda p: optim.Adam(p, amsgrad=True), 2),
    "adam maximize": (lambda p: optim.Adam(p, maximize=True, weight_decay=0.01), 2),
    "adam foreach": (lambda p: optim.Adam(p, foreach=True, amsgrad=True), 2),
    "adamw": (lambda p: optim.AdamW(p), 2),
    "adamw tensor lr": (lambda p: optim.AdamW(p, lr=torch.tensor(1e-3)), 2),
    "nadam": (lambda p: optim.NAdam(p), 2),
    "nadam foreach": (lambda p: optim.NAdam(p, foreach=True), 2),
    "radam": (lambda p: optim.RAdam(p), 3),  # another branch from the sixth step on
    "radam foreach": (lambda p: optim.RAdam(p, foreach=True), 3),
    "adamax": (lambda p: optim.Adamax(p), 2),
    "adamax foreach": (lambda p: optim.Adamax(p, foreach=True), 2),
    "adafactor": (lambda p: optim.Adafactor(p, weight_decay=0.1), 2),
    "adafactor foreach": (lambda p: optim.Adafactor(p, foreach=True, maximize=True), 2),
    "muon": (lambda p: optim.Muon([each for each in p if each.dim() == 2]), 2),
    "adagrad": (lambda p: optim.Adagrad(p, lr_decay=0.01), 1),
    "adagrad foreach": (lambda p: optim.Adagrad(p, foreach=True), 1),
    "adadelta foreach": (lambda p: optim.Adadelta(p, foreach=True), 2),
    "rmsprop": (lambda p: optim.RMSprop(p, momentum=0.9, centered=True), 2),
    "rprop foreach": (lambda p: optim.Rprop(p, foreach=True), 2),
    "asgd": (lambda p: optim.ASGD(p), 2),
    "asgd foreach": (lambda p: optim.ASGD(p, foreach=True), 2),
}
"""How it is made, and how often its step is compiled."""
STEPS = 8


def train(make: Make, compiled: Callable[[Any], Any], schedule: bool) -> list[torch.Tensor]:
    """The parameters after some steps; the learning rate changes at the third."""
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    optimizer = make(list(model.parameters()))
    step = compiled(optimizer.step)
    for turn in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        step()
        if schedule and turn == 2:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] / 2
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_one_region(name: str) -> None:
    if name == "adafactor foreach" and torch.__version__.startswith("2.11."):
        pytest.skip("this version fails in its own code where it is told that it is compiled")
    make, compiles = OPTIMIZERS[name]
    steps: list[Any] = []

    def compiled(step: Any) -> Any:
        steps.append(kiln.compile(step, backend="eager", options={"cache": False}))
        return steps[0]

    got, expected = train(make, compiled, False), train(make, lambda step: step, False)
    for mine, eager in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    report = steps[0].report()
    assert not report.breaks and not report.eager, report
    assert report.compiles <= compiles, report


def test_a_learning_rate_that_changes_becomes_an_input() -> None:
    steps: list[Any] = []

    def compiled(step: Any) -> Any:
        steps.append(kiln.compile(step, backend="eager", options={"cache": False}))
        return steps[0]

    make = OPTIMIZERS["adamw"][0]
    got, expected = train(make, compiled, True), train(make, lambda step: step, True)
    for mine, eager in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    report = steps[0].report()
    assert not report.breaks and not report.eager and report.compiles <= 3, report


def test_a_step_with_own_kernels() -> None:
    step: list[Any] = []
    make = OPTIMIZERS["adam foreach"][0]
    got = train(make, lambda eager: step.append(kiln.compile(eager)) or step[0], False)
    for mine, eager in zip(got, train(make, lambda eager: eager, False), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    assert not step[0].report().eager


def test_marks_that_torch_compile_leaves_on_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It marks their methods to run in Python, for its own limits, once it has run in the process."""
    inner = torch.optim.SGD._init_group

    @functools.wraps(inner)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    marked._torchdynamo_disable = True  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.optim.SGD, "_init_group", marked)
    model = torch.nn.Linear(3, 3)
    step = kiln.compile(torch.optim.SGD(model.parameters(), 0.1).step, backend="eager")
    model(torch.ones(2, 3)).sum().backward()
    step()
    assert kiln.report_of(step).breaks == []


@pytest.mark.parametrize("name", ["adam", "adam foreach", "adamw", "radam", "adamax", "adagrad", "asgd"])
def test_a_double_is_updated_in_double(name: str) -> None:
    """Eager corrects the bias with Python's numbers: the count of steps in a float32 tensor does not round it."""
    make, _ = OPTIMIZERS[name]

    def train(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
        parameters = [nn.Parameter(torch.linspace(-1.0, 2.0, 5, dtype=torch.float64))]
        step = compiled(make(parameters).step)
        for turn in range(3):
            parameters[0].grad = torch.linspace(1.0, turn, 5, dtype=torch.float64)
            step()
        return [parameter.detach() for parameter in parameters]

    got = train(lambda step: kiln.compile(step, backend="eager", options={"cache": False}))
    torch.testing.assert_close(got, train(lambda step: step), rtol=1e-14, atol=1e-15)


def test_gradients_are_cleared_in_the_region() -> None:
    """torch marks `zero_grad` for the limits of torch.compile; whether that has run makes no difference."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = optim.SGD([parameter], lr=0.1)

    def program(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        return x + 1

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for _ in range(2):
        parameter.grad = torch.ones(3)
        compiled(torch.ones(3))
        assert parameter.grad is None
    assert not compiled.report().breaks and compiled.report().compiles == 1


@pytest.mark.filterwarnings("ignore::kiln.pipeline.session.KilnWarning")
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_steps_that_call_the_program_back(search: str | None) -> None:
    """Frames behind breaks take floats that they speculate on; the lists of the history grow, up to the limit."""

    def train(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), torch.randn(4, 6)
        optimizer = optim.LBFGS(model.parameters(), lr=0.1, line_search_fn=search)
        step = compiled(optimizer.step)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        for _ in range(6):
            step(closure)
        return [parameter.detach() for parameter in model.parameters()]

    compiled: list[Any] = []
    options = {"cache": False}
    got = train(lambda step: compiled.append(kiln.compile(step, backend="eager", options=options)) or compiled[0])
    torch.testing.assert_close(got, train(lambda step: step), rtol=1e-4, atol=1e-5)
    assert compiled[0].report().compiles <= 50


def report_of_training(train: Callable[[Callable[[Any], Any]], list[torch.Tensor]]) -> Report:
    """Of the step that `train` compiles by what it is given; the results are eager's."""
    made: list[Any] = []

    def compiled(step: Any) -> Any:
        made.append(kiln.compile(step, backend="eager", options={"cache": False}))
        return made[0]

    for mine, eager in zip(train(compiled), train(lambda step: step), strict=True):
        torch.testing.assert_close(mine, eager)
    return kiln.report_of(made[0])


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "multi-step": lambda o: optim.lr_scheduler.MultiStepLR(o, [3, 7]),
    "one after the other": lambda o: optim.lr_scheduler.SequentialLR(
        o, [optim.lr_scheduler.ConstantLR(o), optim.lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_whole_step_with_a_scheduler(name: str) -> None:
    """Its count of steps is an input of the region, compared with the milestones."""

    def train(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.detach()

        run = compiled(step)
        losses = [run(torch.randn(4, 6)) for _ in range(16)]
        return [torch.stack(losses), *[parameter.detach() for parameter in model.parameters()]]

    report = report_of_training(train)
    assert not report.breaks and not report.eager and report.compiles <= 6, report


def test_a_scaled_loss() -> None:
    """Infinite gradients are skipped: the value decides, so the graph breaks once in front of the optimizer."""

    def train(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        run = compiled(step)
        for turn in range(6):
            run(torch.randn(4, 6) * (float("inf") if turn == 3 else 1))
        scale = torch.tensor(scaler.get_scale())
        return [scale, *[parameter.detach() for parameter in model.parameters()]]

    report = report_of_training(train)
    assert {found.code for found in report.breaks} == {"KILN1008"} and not report.eager
