"""One launch of a GPU kernel, for who runs plans step by step: a plan of that launch in the native executor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.runtime.executor import Explain, load_executor
from kiln.runtime.libraries import Libraries
from kiln.runtime.plan import BufferSpec, Kernel, Launch, Plan, PlanInput
from kiln.runtime.program import encode_program


def launch_kernel(
    libraries: Libraries,
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    ints: Sequence[int],
    floats: Sequence[float],
    grid: Sequence[int],
) -> None:
    """On the current stream of the device of `tensors`."""
    layouts = [BufferSpec(one.dtype, tuple(one.shape), one.stride(), 0, one.device) for one in tensors]
    slots = tuple(range(len(tensors)))
    plan = Plan(
        name=kernel.symbol,
        inputs=tuple(PlanInput(f"tensor {n}", spec) for n, spec in enumerate(layouts)),
        symbols=(),
        steps=(Launch(kernel.symbol, slots, tuple(ints), tuple(floats), 1, grid=tuple(grid)),),
        outputs=(),
        kernels=(kernel,),
        num_slots=len(tensors),
        mutated=tuple(n for n, param in enumerate(kernel.params) if param.access != "read"),
    )
    names = [one.name for one in plan.inputs]
    load_executor(encode_program(plan), libraries, (), Explain(plan.name, names, libraries))(*tensors)
