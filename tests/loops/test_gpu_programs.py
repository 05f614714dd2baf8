"""Programs whose loops for a GPU were once wrong, in the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kiln.graph.passes import run_passes
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.interpret import run_kernel_program
from kiln.loops.lowering import lower
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.support.events import EventSink
from tests.codegen_triton.check import GPU
from tests.trace.harness import trace
from tests.trace.test_symbolic import SYMBOL

Tensor = torch.Tensor


def parts_of_other_ranks(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    sums = x.sum(0)
    return sums, torch.cat([x[-1], sums])


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("program", [parts_of_other_ranks])
def test_equals_eager(program: Callable[..., object], symbolic: bool) -> None:
    args = [torch.arange(20.0).reshape(4, 5) / 8, torch.tensor([2, 0])]
    expected = program(*[arg.clone() for arg in args])
    dims = {place: (SYMBOL,) * arg.dim() for place, arg in enumerate(args)} if symbolic else None
    traced = trace(program, args, dims=dims)
    env = traced.recorder.env
    graph = run_passes(traced.trace.graph, EventSink(), env=env)
    loops = run_program_passes(lower(graph, GPU, EventSink(), env), GPU, EventSink())
    used = [args[traced.trace.inputs.index(record)] for record in traced.trace.used_inputs]
    outputs = run_kernel_program(schedule(loops, GPU, EventSink()), used)
    for actual, wanted in zip(outputs, expected if isinstance(expected, tuple) else [expected], strict=True):
        torch.testing.assert_close(actual, wanted)
