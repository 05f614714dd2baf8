"""Whole plans of recorded graphs on CPU memory, their kernels in Triton's interpreter: the values of the graph.

The plan is that of the GPU with its devices replaced. Triton decides when it is imported whether it interprets, so each
graph has a process of its own; attention, which the CPU lacks under the GPU's name, is eager's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.plan.plan import Plan
from kiln.plan.reference import PythonExecutor
from kiln.runtime.kernels import Libraries
from kiln.symbolic import evaluate
from tests.gpu_graphs.test_null_device import attention, attention_backward
from tests.gpu_graphs.test_recorded import INTERPRETED, RECORDED, plan_of
from tests.runtime.test_triton_plans import Interpreter, on_cpu

FACTOR = 16.0
"""Times the error of eager's rounding points, against the same graph in float32. Triton's interpreter cuts bf16 off
where a GPU rounds, which is twice the error of one value and, in one direction, more of sums and chains."""
FLOOR = 0.02
"""Relative to the largest element; smaller errors mean nothing in bf16."""


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *more: object, scale: float | None = None
) -> tuple[object, ...]:
    causal = bool(more[2]) if len(more) > 2 else False
    out = scaled_dot_product_attention(query, key, value, bias, is_causal=causal, scale=scale)
    return (out, *attention(query, key, value)[1:])


def values_for(plan: Plan, *, positive: bool) -> list[Tensor]:
    """Small numbers, in backwards positive ones (some are saved variances); indices are 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for given in plan.inputs:
        assert given.spec is not None
        sizes, strides = (
            [evaluate(value, {}) for value in values] for values in (given.spec.sizes, given.spec.strides)
        )
        tensor = torch.empty_strided(sizes, strides, dtype=given.spec.dtype)
        if given.spec.dtype.is_floating_point:
            drawn = torch.randn(sizes, generator=generator) / 2
            made.append(tensor.copy_(drawn.abs() / 2 + 0.5 if positive else drawn))
        else:
            made.append(tensor.copy_(torch.randint(0, 2, sizes, generator=generator)))
    return made


def compare(name: str, make: Callable[[str, Path], Plan] = plan_of) -> None:
    """In the process that interprets."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # some machines have no bf16 in it
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_scaled_dot_product_cudnn_attention", eager_attention)
    library.impl("_scaled_dot_product_cudnn_attention_backward", attention_backward)
    text = next(path for path in RECORDED if path.stem == name).read_text()
    text = text.replace(" @cuda:0", "").replace("@cuda:0", "").replace("cuda:0", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        plan = on_cpu(make(name, Path(folder)))
    given = values_for(plan, positive=name.endswith("backward"))
    rounded = outputs(text, given)
    exact = outputs(
        text.replace("bf16", "f32"), [value.float() if value.is_floating_point() else value for value in given]
    )
    results = PythonExecutor(plan, Libraries({}, ()), (), Interpreter().launch)(*given)
    found = [*results, *(given[place] for place in plan.mutated)]
    assert len(found) == len(exact)
    for place, values in enumerate(zip(found, rounded, exact, strict=True)):
        check(f"output {place}", *values)
    print("equal", len(found))


def outputs(text: str, given: list[Tensor]) -> list[object]:
    """Results of the graph, then what it writes into its inputs, in their order."""
    run = interpret(parse_graph(text), [item.clone(memory_format=torch.preserve_format) for item in given])
    return [*run.outputs, *(value for _, value in sorted(run.written, key=lambda pair: pair[0]))]


def check(what: str, found: object, rounded: object, exact: object) -> None:
    if not isinstance(exact, Tensor) or not isinstance(found, Tensor) or not isinstance(rounded, Tensor):
        assert found == exact, what
        return
    assert found.dtype == rounded.dtype and found.shape == exact.shape, what
    truth = exact.double()
    scale, eager, ours = (
        item.abs().max().item() if item.numel() else 0.0
        for item in (truth, rounded.double() - truth, found.double() - truth)
    )
    assert ours <= FACTOR * eager + FLOOR * scale, f"{what}: off by {ours}, eager {eager}, the largest is {scale}"


def run_alone(name: str, make: str = "tests.gpu_graphs.test_recorded.plan_of") -> None:
    """In a separate process; `make`: the path of the function that makes the plan."""
    root = Path(__file__).parents[2]
    module, _, function = make.rpartition(".")
    imports = f"from {module} import {function} as make; from tests.gpu_graphs.test_values import compare"
    script = f"{imports}; compare({name!r}, make)"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("equal"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", INTERPRETED)
def test_values(name: str) -> None:
    run_alone(name)
