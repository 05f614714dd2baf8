"""`python -m kiln bench --suite launch`: what a step of a plan costs the CPU on a GPU, beside the driver and torch.

    entry 1.21 us   launch 3.58 us   launch that can fail 3.60 us   cuLaunchKernel alone 3.24 us
    allocate, launch and free 4.10 us   torch.mul(out=) 3.90 us   torch.empty 1.30 us

Times per call, kernels without work, the device idle at the start: the least over the samples.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from kiln.build.cpp_compile import compile_kernels
from kiln.plan.plan import Kernel, KernelParam, Plan, PlanInput, Step
from kiln.plan.steps import AllocateStep, FreeStep, LaunchStep
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries
from kiln.support.events import EventSink
from kiln.tensor.spec import TensorSpec
from kiln_bench.driver_launch import driver_launch_cost
from kiln_bench.results import write_data

LAUNCHES = 200
"""As many steps as a plan has that is timed."""
ELEMENTS = 16


def empty_kernel(reports: bool) -> Kernel:
    """A kernel that does nothing; `reports`: it is given a slot for an index out of range."""
    symbol = "reporting" if reports else "silent"
    status = ", status" if reports else ""
    source = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def {symbol}(x, out, n, factor{status}, BLOCK: tl.constexpr):\n    pass\n"
    )
    major, minor = torch.cuda.get_device_capability()
    signature = ("*fp32", "*fp32", "i32", "fp32") + (("*i64",) if reports else ())
    meta = {
        "capability": 10 * major + minor,
        "constants": (("BLOCK", 1024),),
        "divisible": (),
        "num_stages": 1,
        "num_warps": 4,
        "signature": signature,
        "status": reports,
    }
    params = (KernelParam(torch.float32, "read"), KernelParam(torch.float32, "write"))
    return Kernel(symbol, "triton", source, params, 1, 1, meta=tuple(sorted(meta.items())))


def launch_plan(kernel: Kernel) -> Plan:
    """`LAUNCHES` launches of `kernel` on the plan's two inputs."""
    vector = TensorSpec(torch.float32, (ELEMENTS,), (1,), 0, torch.device("cuda", 0))
    step = LaunchStep(kernel.symbol, (0, 1), (7,), (0.5,), 1, grid=(1,))
    inputs = (PlanInput("x", vector), PlanInput("y", vector))
    return Plan("launches", inputs, (), (step,) * LAUNCHES, (), (kernel,), 2, mutated=(1,))


def chain_plan(plan: Plan) -> Plan:
    """Each launch of `plan` into fresh memory, as compiled programs have them."""
    matrix = TensorSpec(torch.float32, (256, 256), (256, 1), 0, torch.device("cuda", 0))
    steps: list[Step] = []
    for number, step in enumerate(plan.steps):
        assert isinstance(step, LaunchStep)
        before, made = number + 1 if number else 0, number + 2
        steps += [AllocateStep(made, matrix), replace(step, tensors=(before, made))]
        steps += [FreeStep((before,))] if number else []
    return replace(plan, steps=tuple(steps), num_slots=LAUNCHES + 2, mutated=())


def least(work: Callable[[], object], count: int, samples: int) -> float:
    """Microseconds of CPU per unit."""
    found = []
    for _ in range(samples):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    torch.cuda.synchronize()
    return min(found) / count * 1e6


def measure(folder: Path, samples: int) -> dict[str, float]:
    x, y = (torch.zeros(ELEMENTS, device="cuda:0") for _ in range(2))
    silent, reporting = launch_plan(empty_kernel(False)), launch_plan(empty_kernel(True))
    libraries = compile_kernels((*silent.kernels, *reporting.kernels), DiskStore(folder), EventSink())

    def cost(plan: Plan, count: int = LAUNCHES) -> float:
        run = make_executor(plan, libraries)
        return least(lambda: run(x, y), count, samples)

    def repeat(work: Callable[[], object]) -> float:
        return least(lambda: [work() for _ in range(LAUNCHES)], LAUNCHES, samples)

    return {
        "entry": cost(replace(silent, steps=(), mutated=()), 1),
        "launch": cost(silent),
        "launch that can fail": cost(reporting),
        "cuLaunchKernel alone": driver_cost(libraries, silent.kernels[0].symbol, folder, samples),
        "allocate, launch and free": cost(chain_plan(silent)),
        "torch.mul(out=)": repeat(lambda: torch.mul(x, 0.5, out=y)),
        "torch.empty": repeat(lambda: torch.empty(ELEMENTS, device="cuda:0")),
    }


def driver_cost(libraries: Libraries, symbol: str, folder: Path, samples: int) -> float:
    found = []
    for _ in range(samples):
        torch.cuda.synchronize()
        found.append(driver_launch_cost(libraries.cubins[symbol], LAUNCHES, folder))
    return min(found)


def run(samples: int, json: Path | None) -> int:
    """Print a line per cost."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        found = measure(Path(folder), samples)
    for title, cost in found.items():
        print(f"{title:28} {cost:6.2f} us")
    if json is not None:
        write_data(json, {"microseconds": found})
    return 0
