"""Loops that stand far apart, as those of one parameter do in the lists of an optimizer, are fused all the same."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
import torch
from torch import nn

import kiln
from kiln.loops.fusion.fuse import fuse
from kiln.loops.program.analyses import program_buffers
from kiln.loops.program.nodes import LoopProgram
from tests.fusion.check import TARGET, assert_same_values, scheduled
from tests.loop_ir.parse import parse_program


def momentum_steps(count: int) -> str:
    """Lists of `count` gradients, momenta and parameters: first all momenta are updated, then all parameters."""
    given, momenta, updated, writes = [], [], [], []
    for n in range(count):
        size, axis = n % 7 + 1, f"(i0: {n % 7 + 1})"
        given += [f"    {name}{n}: f32[{size}] = input {3 * n + place}" for place, name in enumerate("gmp")]
        momenta.append(f"    n{n}: f32[{size}] = pointwise {axis}: add(mul(f32(0.9), load m{n}[i0]), load g{n}[i0])")
        updated.append(f"    q{n}: f32[{size}] = pointwise {axis}: sub(load p{n}[i0], mul(f32(0.1), load n{n}[i0]))")
        writes += [f"    write m{n} = n{n}", f"    write p{n} = q{n}"]
    return "\n".join(["loops momentum", *given, *momenta, *updated, *writes])


@pytest.mark.parametrize("count", [1, 30, 201, 600])
def test_a_parameter_has_one_kernel(count: int) -> None:
    assert sum(launch.rows for launch in scheduled(momentum_steps(count)).steps) == count


def test_values() -> None:
    assert_same_values(momentum_steps(210))


def calls_to_fuse(program: LoopProgram) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        fuse(program, program_buffers(program), TARGET)
    finally:
        sys.setprofile(None)
    return calls


def test_the_time_is_linear() -> None:
    """Of groups far apart and near: function calls for 4 times as many parameters."""
    few, more, many = (calls_to_fuse(parse_program(momentum_steps(count))) for count in (100, 400, 1600))
    assert more < 4.4 * few
    assert many < 4.4 * more


OPTIMIZERS = {
    "AdamW": lambda given: torch.optim.AdamW(given, lr=1e-2, foreach=True),
    "Adam": lambda given: torch.optim.Adam(given, lr=1e-2, foreach=True, amsgrad=True, weight_decay=0.1),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=1e-2, foreach=True),
    "SGD": lambda given: torch.optim.SGD(given, lr=1e-2, foreach=True, momentum=0.9, nesterov=True),
}
SHAPES = (64, 32), (32,), (16, 16), (7,), (48, 9), (), (3, 1, 5)


@pytest.mark.parametrize("count", [3, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps(name: str, count: int) -> None:
    """As eager's: the error against float64 is at most twice eager's."""
    torch.manual_seed(0)
    starts = [torch.randn(SHAPES[n % len(SHAPES)]) for n in range(count)]
    slopes = [torch.randn_like(start) for start in starts]

    def trained(dtype: torch.dtype, *, compiled: bool) -> list[torch.Tensor]:
        parameters = [nn.Parameter(start.to(dtype)) for start in starts]
        optimizer = OPTIMIZERS[name](parameters)
        step = kiln.compile(optimizer.step) if compiled else optimizer.step
        for number in range(20):
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = (slope * (number % 3 - 0.7)).to(dtype)
            step()
        return [parameter.detach() for parameter in parameters]

    exact = trained(torch.float64, compiled=False)
    eager, ours = (trained(torch.float32, compiled=compiled) for compiled in (False, True))
    for wanted, theirs, found in zip(exact, eager, ours, strict=True):
        allowed = 2 * (theirs - wanted).abs().max() + 1e-6 * wanted.abs().max()
        assert (found - wanted).abs().max() <= allowed
