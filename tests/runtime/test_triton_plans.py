"""Plans with Triton kernels, their values: the Python executor with Triton's interpreter, on CPU memory.

Triton decides when it is imported whether it interprets, so the plans run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kiln.build.triton_compile import jit_function
from kiln.plan.errors import IndexOutOfRange, status_error
from kiln.plan.plan import Kernel, Plan
from kiln.plan.reference import PythonExecutor
from kiln.plan.serialize import decode_plan, encode_plan
from kiln.runtime.kernels import Libraries
from tests.codegen_triton.interpreter import TorchFunctions
from tests.runtime.triton_samples import gather, scaled_product, seed_pair


def on_cpu(plan: Plan) -> Plan:
    """The plan with every device replaced."""
    moved: Plan = decode_plan(encode_plan(plan).replace(b'"cuda:0"', b'"cpu"'))
    return moved


@dataclass
class Interpreter:
    """Runs kernels on CPU tensors; a status is raised at once."""

    def launch(
        self,
        kernel: Kernel,
        tensors: Sequence[torch.Tensor],
        ints: Sequence[int],
        floats: Sequence[float],
        grid: Sequence[int],
    ) -> None:
        meta: dict[str, Any] = dict(kernel.meta)
        status = torch.zeros(1, dtype=torch.int64)
        function = jit_function(kernel.source, kernel.symbol)
        names = function.fn.__globals__
        if "libdevice" in names:  # the interpreter has none
            names["libdevice"] = TorchFunctions()
        more = [status] if meta["status"] else []
        values = kernel.passed_by_value()
        given = [tensor.item() if place in values else tensor for place, tensor in enumerate(tensors)]
        function[tuple(grid)](*given, *ints, *floats, *more, **dict(meta["constants"]))
        if status.item():
            raise status_error(int(status), kernel.symbol)


def interpreted_values() -> None:
    """In the process that interprets."""
    make = partial(PythonExecutor, libraries=Libraries({}, ()), launch=Interpreter().launch)
    for rows in (40, 1, 0):
        x, w = torch.randn(rows, 64), torch.randn(64, 32)
        torch.testing.assert_close(make(on_cpu(scaled_product()))(x, w)[0], (x * 0.5) @ w * 0.5)
    table = torch.randn(5)
    assert torch.equal(make(on_cpu(gather()))(table, torch.tensor([4, 0, 2]))[0], table[[4, 0, 2]])
    with pytest.raises(IndexOutOfRange):
        make(on_cpu(gather()))(table, torch.tensor([4, 5, 2]))
    torch.manual_seed(3)
    first = make(on_cpu(seed_pair()))()[0]
    torch.manual_seed(3)
    assert torch.equal(first, make(on_cpu(seed_pair()))()[0]) and first[0] != 0
    print("equal")


@pytest.mark.slow  # imports Triton
def test_values_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    root = Path(__file__).parents[2]
    script = "from tests.runtime.test_triton_plans import interpreted_values; interpreted_values()"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr
