"""Loops over the parts of one tensor as one loop: the values of `cat` and `stack`, and how few launches are left."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from kiln.graph.passes import run_passes
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.lowering import lower
from kiln.loops.program.interpret import run_program
from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.passes.join_parts import JoinParts
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.support.target import cuda_gpu
from tests.codegen_triton.check import Runner, assert_same_values
from tests.codegen_triton.conftest import interpreter, runner
from tests.trace.harness import Function, trace

__all__ = ["interpreter", "runner"]

H100 = cuda_gpu((9, 0), 132)
F, P = [torch.arange(80.0).reshape(40, 2)], [torch.arange(6.0) + place for place in range(20)]


def odd(x: torch.Tensor) -> torch.Tensor:
    """Other constants than by equal steps, other functions, parts of two sizes."""
    parts = [x[i : i + 1] * (0.3 * i * i) for i in range(5)] + [x[i : i + 2].sin() for i in (7, 3, 30, 31)]
    return torch.cat([*parts, *(x[9 - i : 10 - i] + i for i in range(6))])


CASES: dict[str, tuple[Function, list[torch.Tensor], int]] = {
    "slices": (lambda x: torch.cat([x[2 * i : 2 * i + 1] * (i + 2) for i in range(20)]), F, 1),
    "columns": (lambda x: torch.cat([x[i : i + 1, :1] for i in range(0, 40, 3)], 1), F, 1),
    "alternate": (lambda x: torch.cat([x[i].sin() if i % 2 else x[i].cos() for i in range(20)]), F, 2),
    "backwards": (lambda x: torch.stack([x[39 - i] for i in range(20)], 1), F, 1),
    "odd": (odd, F, 3),
    "tensors": (lambda *given: torch.stack([part * 2 for part in given]), P, 2),
    "two of each": (lambda *given: torch.cat([a * b for a, b in pairwise(given)]), P, 2),
}


def lowered(name: str) -> tuple[LoopProgram, list[torch.Tensor]]:
    function, inputs, _ = CASES[name]
    with torch.no_grad():
        traced = trace(function, inputs)
    return lower(run_passes(traced.trace.graph, EventSink()), H100, EventSink()), traced.inputs


def joined(name: str) -> tuple[LoopProgram, list[torch.Tensor]]:
    program, inputs = lowered(name)
    made, changes = JoinParts().run(program, H100)
    verify_program(made)
    assert changes
    return made, inputs


@pytest.mark.parametrize("name", CASES)
def test_values_and_launches(name: str) -> None:
    function, _, most = CASES[name]
    made, inputs = joined(name)
    (result,) = run_program(made, inputs)
    torch.testing.assert_close(result, function(*inputs))
    launches = [step for step in schedule(made, H100, EventSink()).steps if isinstance(step, KernelLaunch)]
    assert len(launches) <= most


@pytest.mark.parametrize("name", ["odd", "two of each", "columns"])
def test_kernels(runner: Runner, name: str) -> None:
    assert_same_values(runner, joined(name)[0])


def test_parts_of_an_update_stay_apart() -> None:
    """They overlap: which comes last decides."""

    def overlapping(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x])
        for place in range(4):
            y[place : place + 3] = x[place : place + 1] * place
        return y

    with torch.no_grad():
        traced = trace(overlapping, F)
    made, _ = JoinParts().run(lower(run_passes(traced.trace.graph, EventSink()), H100, EventSink()), H100)
    (result,) = run_program(made, traced.inputs)
    assert torch.equal(result, overlapping(*traced.inputs))
