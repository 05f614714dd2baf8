"""Inputs that the program writes to: those that begin to require gradients, and those that share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.capture.idioms.outcome import same

Program = Callable[..., Any]
LAYER = nn.Linear(4, 4)
OPTIONS = {"cache": False}


def row(out: Tensor, x: Tensor) -> Tensor:
    out[0] = LAYER(x)[0]
    return out.exp()


def part_of_it(out: Tensor, x: Tensor) -> Tensor:
    out[1:].mul_(LAYER(x)[0])
    return out * 2


def twice(out: Tensor, x: Tensor) -> Tensor:
    out.add_(LAYER(x)[0])
    out.mul_(x[0])
    return out.sum()


def without_gradients(out: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        out.copy_(LAYER(x)[:2])
    return out * 2


def stepped(program: Program, compile: Callable[..., Any]) -> tuple[Any, list[object]]:
    compiled, out, seen = compile(program), torch.ones(2, 4), list[object]()
    for number in range(3):
        LAYER.zero_grad()
        result = compiled(out, torch.linspace(-1, 1, 12).view(3, 4) + number)
        seen += [result.detach().clone(), out.detach().clone(), out.requires_grad, out.is_leaf]
        if result.requires_grad:
            (result.sum() + out.square().sum()).backward()
            seen.append([parameter.grad.clone() for parameter in LAYER.parameters() if parameter.grad is not None])
        out = out.detach()
    return compiled, seen


@pytest.mark.parametrize("program", [row, part_of_it, twice, without_gradients])
def test_an_input_begins_to_require_gradients(program: Program) -> None:
    compiled, got = stepped(program, lambda function: kiln.compile(function, options=OPTIONS))
    assert same(got, stepped(program, lambda function: function)[1])
    assert not kiln.report_of(compiled).breaks


def kept_losses(compile: Callable[..., Any]) -> tuple[Any, list[object]]:
    losses = torch.zeros(3)

    def step(number: int, x: Tensor) -> Tensor:
        loss = LAYER(x).exp().mean()
        losses[number] = loss * 2
        loss.backward()
        return loss

    LAYER.zero_grad()
    compiled, seen = compile(step), list[object]()
    for number in range(3):
        loss = compiled(number, torch.ones(2, 4) * number)
        seen += [loss.detach(), losses.detach().clone(), losses.requires_grad, LAYER.weight.grad]
    return compiled, seen


def test_what_a_backward_frees_is_not_the_history_of_an_input() -> None:
    compiled, got = kept_losses(lambda function: kiln.compile(function, options=OPTIONS))
    assert same(got, kept_losses(lambda function: function)[1])
    report = kiln.report_of(compiled)
    assert report.breaks and not report.eager


class Table:
    def __init__(self) -> None:
        self.all = torch.arange(12.0).view(3, 4)
        self.rows = list(self.all)


def rows_then_all(table: Table, x: Tensor) -> Any:
    for own, other in zip(table.rows, x, strict=True):
        own.mul_(0.5).add_(other)
    return table.all.sum(0), table.all[1].eq(table.rows[1])


def all_then_rows(table: Table, x: Tensor) -> Any:
    table.all.add_(x)
    return table.rows[0] * 2, table.rows[2].sum()


def another_behind_a_write(table: Table, x: Tensor) -> Any:
    table.rows[0].copy_(x[0])
    table.rows = [row * 2 for row in table.rows]
    return table.all * 3


@pytest.mark.parametrize("program", [rows_then_all, all_then_rows, another_behind_a_write])
def test_a_tensor_is_read_behind_a_write_to_a_part_of_its_memory(program: Program) -> None:
    def run(function: Program) -> list[object]:
        table = Table()
        results = [function(table, torch.ones(3, 4) * number) for number in range(2)]
        return [*results, table.all, table.rows]

    compiled = kiln.compile(program, options=OPTIONS)
    assert same(run(compiled), run(program))
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager
