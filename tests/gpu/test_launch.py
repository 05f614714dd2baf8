"""Triton kernels on a real device, through hand-written plans."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from kiln.build.cpp_compile import compile_kernels
from kiln.native import _executor
from kiln.plan.encode import encode_program
from kiln.plan.errors import IndexOutOfRange
from kiln.plan.plan import Kernel, Plan, PlanInput
from kiln.plan.reference import PythonExecutor
from kiln.plan.steps import LaunchStep
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.executor import Explain, load_executor, make_executor
from kiln.runtime.kernels import Libraries
from kiln.runtime.loader import load_bundle, save_bundle
from kiln.support.events import EventSink
from kiln.tensor.spec import TensorSpec
from tests.runtime.samples import spec
from tests.runtime.triton_samples import (
    COPY_PAIR,
    GATHER,
    SCALE,
    gather,
    on_cuda,
    scaled_product,
    seed_pair,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = "cuda:0"
LAUNCHES = 200
KERNELS = (SCALE, GATHER, COPY_PAIR)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return compile_kernels(KERNELS, DiskStore(tmp_path_factory.mktemp("store")), EventSink())


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def wanted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * 0.5) @ w * 0.5


def launch_kernel(
    libraries: Libraries,
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    ints: Sequence[int],
    floats: Sequence[float],
    grid: Sequence[int],
) -> None:
    """One launch of a GPU kernel as a plan of its own, on the current stream of the device of `tensors`."""
    layouts = [TensorSpec(tensor.dtype, tuple(tensor.shape), tensor.stride(), 0, tensor.device) for tensor in tensors]
    slots = tuple(range(len(tensors)))
    plan = Plan(
        name=kernel.symbol,
        inputs=tuple(PlanInput(f"tensor {n}", spec) for n, spec in enumerate(layouts)),
        symbols=(),
        steps=(LaunchStep(kernel.symbol, slots, tuple(ints), tuple(floats), 1, grid=tuple(grid)),),
        outputs=(),
        kernels=(kernel,),
        num_slots=len(tensors),
        mutated=tuple(n for n, param in enumerate(kernel.params) if param.access != "read"),
    )
    names = [given.name for given in plan.inputs]
    load_executor(encode_program(plan), libraries, (), Explain(plan.name, names, libraries))(*tensors)


def test_the_driver_opens() -> None:
    assert _executor.cuda_problem() == ""
    assert _executor.current_stream(0) == torch.cuda.current_stream().cuda_stream
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        assert _executor.current_stream(0) == other.cuda_stream != 0


def test_a_plan_runs(libraries: Libraries) -> None:
    run = make_executor(scaled_product(), libraries)
    w = torch.randn(64, 32, device=CUDA)
    for rows in (40, 1, 0, 4096):
        x = torch.randn(rows, 64, device=CUDA)
        torch.testing.assert_close(run(x, w)[0], wanted(x, w))


def test_the_python_executor_agrees(libraries: Libraries) -> None:
    x, w = torch.randn(40, 64, device=CUDA), torch.randn(64, 32, device=CUDA)
    native, python = (
        make_executor(scaled_product(), libraries),
        PythonExecutor(scaled_product(), libraries, (), partial(launch_kernel, libraries)),
    )
    assert torch.equal(native(x, w)[0], python(x, w)[0])


def test_a_scalar_on_the_cpu(libraries: Libraries) -> None:
    """A kernel gets a copy of an argument in CPU memory."""
    plan = replace(gather(), inputs=(gather().inputs[0], PlanInput("index", spec(3, dtype=torch.int64))))
    table, index = torch.randn(5, device=CUDA), torch.tensor([4, 0, 2])
    assert torch.equal(make_executor(plan, libraries)(table, index)[0], table[index.cuda()])


def test_results_are_torch_tensors(libraries: Libraries) -> None:
    run = make_executor(scaled_product(), libraries)
    x, w = torch.randn(8, 64, device=CUDA), torch.randn(64, 32, device=CUDA)
    (out,) = run(x, w)
    assert out.device == torch.device(CUDA) and out.is_contiguous() and not out.requires_grad
    assert out.untyped_storage().nbytes() == 8 * 32 * 4
    out.resize_(100, 100).zero_()
    y = out.clone().requires_grad_()
    (y * y).sum().backward()
    assert y.grad is not None


def test_an_unaligned_input(libraries: Libraries) -> None:
    run = make_executor(scaled_product(), libraries)
    w = torch.randn(64, 32, device=CUDA)
    x = torch.randn(1 + 40 * 64, device=CUDA)[1:].view(40, 64)
    torch.testing.assert_close(run(x, w)[0], wanted(x, w))


def test_streams(libraries: Libraries) -> None:
    """Work is queued on the stream that torch has selected."""
    run = make_executor(scaled_product(), libraries)
    x, w = torch.randn(4096, 64, device=CUDA), torch.randn(64, 32, device=CUDA)
    expected = wanted(x, w)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run(x, w)  # allocations of cuBLAS for a stream synchronise the device
        side.synchronize()
        torch.cuda._sleep(500_000_000)
        (out,) = run(x, w)
        assert not side.query(), "the launch waited for the stream"
    assert torch.cuda.current_stream().query(), "the plan ran on the wrong stream"
    side.synchronize()
    torch.testing.assert_close(out, expected)


def test_threads(libraries: Libraries) -> None:
    """Threads that have never used CUDA, each with a stream of its own."""
    run = make_executor(scaled_product(), libraries)
    w = torch.randn(64, 32, device=CUDA)
    xs = [torch.randn(512 + n, 64, device=CUDA) for n in range(8)]
    torch.cuda.synchronize()
    found: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        if number % 2:
            found[number] = run(xs[number], w)[0]
            return
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found[number] = run(xs[number], w)[0]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for n, x in enumerate(xs):
        torch.testing.assert_close(found[n], wanted(x, w))


def test_another_device(libraries: Libraries) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    second = torch.device("cuda", 1)
    run = make_executor(scaled_product(second), libraries)
    x, w = torch.randn(40, 64, device=second), torch.randn(64, 32, device=second)
    (out,) = run(x, w)
    assert out.device == second and torch.cuda.current_device() == 0
    torch.testing.assert_close(out, wanted(x, w))


def test_status(libraries: Libraries) -> None:
    run = make_executor(gather(), libraries)
    table, index = torch.randn(5, device=CUDA), torch.tensor([4, 0, 2], device=CUDA)
    assert torch.equal(run(table, index)[0], table[index])
    run(table, torch.tensor([1, 5, 0], device=CUDA))
    torch.cuda.synchronize()
    with pytest.raises(IndexOutOfRange, match="KILN4001"):
        run(table, index)
    assert torch.equal(run(table, index)[0], table[index])


def test_seeds(libraries: Libraries) -> None:
    run = make_executor(seed_pair(), libraries)
    torch.cuda.manual_seed(1234)
    assert [run()[0].tolist() for _ in range(3)] == [[1234, 0], [1234, 12], [1234, 24]]
    torch.cuda.manual_seed(-1)
    assert run()[0].tolist()[1] == 0
    assert torch.cuda.default_generators[0].get_offset() == 12


def test_memory_returns_to_torch(libraries: Libraries) -> None:
    run = make_executor(scaled_product(), libraries)
    x, w = torch.randn(1 << 16, 64, device=CUDA), torch.randn(64, 32, device=CUDA)
    run(x, w)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        run(x, w)
    assert torch.cuda.memory_allocated() == before


def test_out_of_memory_is_the_users(libraries: Libraries) -> None:
    run = make_executor(scaled_product(), libraries)
    w = torch.randn(64, 32, device=CUDA)
    base = torch.randn(64, device=CUDA)
    before = torch.cuda.memory_allocated()
    rows = torch.cuda.get_device_properties(0).total_memory // (64 * 4) * 2
    huge = base.expand(rows, 64)
    plan = scaled_product()
    strided = PlanInput("x", on_cuda(spec(plan.inputs[0].spec.sizes[0], 64, strides=(0, 1))))  # type: ignore[union-attr]
    run = make_executor(replace(plan, inputs=(strided, plan.inputs[1])), libraries)
    with pytest.raises(torch.OutOfMemoryError):
        run(huge, w)
    assert torch.cuda.memory_allocated() == before


def test_in_a_cuda_graph(libraries: Libraries) -> None:
    run = make_executor(scaled_product(), libraries)
    x, w = torch.randn(256, 64, device=CUDA), torch.randn(64, 32, device=CUDA)
    run(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = run(x, w)
    x.copy_(torch.randn(256, 64, device=CUDA))
    graph.replay()
    torch.testing.assert_close(out, wanted(x, w))


BUNDLE_SCRIPT = """
import sys, torch
from kiln.runtime.loader import load_bundle
run = load_bundle(open(sys.argv[1], "rb").read()).executor()
x, w = torch.randn(40, 64, device="cuda"), torch.randn(64, 32, device="cuda")
torch.testing.assert_close(run(x, w)[0], (x * 0.5) @ w * 0.5)
assert "triton" not in sys.modules, "Triton was imported"
print("ran")
"""


def test_a_bundle_runs_in_a_fresh_process_without_triton(libraries: Libraries, tmp_path: Path) -> None:
    file = tmp_path / "model.kiln"
    file.write_bytes(save_bundle(scaled_product(), libraries, {}))
    assert load_bundle(file.read_bytes()).libraries.cubins
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", BUNDLE_SCRIPT, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "ran", done.stderr
