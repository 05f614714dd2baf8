"""The native executor against the Python one, on random plans; threads; leaks."""

from __future__ import annotations

import gc
import random
import threading

import psutil
import pytest
import torch

from kiln.native import _executor
from kiln.plan.plan import Plan, PlanInput, PlanOutput, SymbolBinding
from kiln.plan.reference import PythonExecutor
from kiln.plan.serialize import decode_plan, encode_plan
from kiln.plan.steps import AtenStep
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries
from kiln.symbolic import symbol
from tests.runtime.random_plans import random_inputs, random_plan
from tests.runtime.samples import add_norm, spec


@pytest.mark.parametrize("seed", range(60))
def test_native_equals_python(libraries: Libraries, seed: int) -> None:
    plan = random_plan(seed)
    reference, native = PythonExecutor(plan, libraries), make_executor(plan, libraries)
    for rows in (3, 1, 8, 0, 3):
        inputs = random_inputs(rows)
        for ours, theirs in zip(native(*inputs), reference(*inputs), strict=True):
            if isinstance(theirs, torch.Tensor):
                assert ours.stride() == theirs.stride()
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
            else:
                assert ours == theirs


@pytest.mark.parametrize("seed", range(10))
def test_plans_survive_storage(seed: int) -> None:
    plan = random_plan(seed)
    data = encode_plan(plan)
    assert decode_plan(data) == plan and encode_plan(decode_plan(data)) == data


def test_threads_share_an_executor(libraries: Libraries) -> None:
    plans = [random_plan(seed) for seed in range(3)]
    executors = [make_executor(plan, libraries) for plan in plans]
    references = [PythonExecutor(plan, libraries) for plan in plans]
    problems: list[int] = []

    def work(rows: int) -> None:
        inputs = random_inputs(rows)
        wanted = [reference(*inputs) for reference in references]
        for _ in range(300):
            for executor, outputs in zip(executors, wanted, strict=True):
                got = executor(*inputs)
                if not all(torch.equal(a, b) for a, b in zip(got[:-1], outputs[:-1], strict=True)):
                    problems.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 5, 5, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_split_over_threads_gives_the_same(libraries: Libraries) -> None:
    plan = random_plan(7)
    native = make_executor(plan, libraries)
    inputs = random_inputs(1000)
    single = native(*inputs)
    torch.set_num_threads(2)
    try:
        double = native(*inputs)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(single[:-1], double[:-1], strict=True))


def test_calls_leak_nothing(libraries: Libraries) -> None:
    run = make_executor(add_norm(), libraries)
    x, w = torch.randn(64, 8), torch.randn(8, 4)
    process = psutil.Process()

    def calls(count: int) -> int:
        for _ in range(count):
            run(x, x, w)
        gc.collect()
        return int(process.memory_info().rss)

    calls(1000)
    before = calls(1000)
    assert calls(100_000) - before < 1 << 20


def test_executors_leak_nothing(libraries: Libraries) -> None:
    process = psutil.Process()
    inputs = random_inputs(4)

    def compiles(count: int) -> int:
        for seed in range(count):
            make_executor(random_plan(seed % 5), libraries)(*inputs)
        gc.collect()
        return int(process.memory_info().rss)

    compiles(100)
    before = compiles(50)
    assert compiles(300) - before < 2 << 20


def test_memory_is_kept_between_calls_and_bounded(libraries: Libraries) -> None:
    run = make_executor(add_norm(), libraries)
    w = torch.randn(8, 4)
    _executor.release_memory()
    used = _executor.held_memory()[0]
    rows = 64 * 1024
    x = torch.randn(rows, 8)
    (out,) = run(x, x, w)
    assert _executor.held_memory()[0] - used >= out.numel() * 4  # the user holds the result
    again = run(x, x, w)[0]
    del again
    place = run(x, x, w)[0].data_ptr()
    assert run(x, x, w)[0].data_ptr() == place
    _, kept = _executor.held_memory()
    assert 0 < kept <= 2 * rows * 8 * 4
    small = torch.randn(1, 8)
    for _ in range(200):  # old peaks are forgotten
        run(small, small, w)
    assert _executor.held_memory()[1] <= out.numel() * 4
    del out
    for _ in range(200):
        run(small, small, w)
    assert _executor.held_memory() == (used, 0)


def test_memory_is_safe_in_threads_that_free_each_others_results(libraries: Libraries) -> None:
    run = make_executor(add_norm(), libraries)
    w = torch.randn(8, 4)
    held: list[torch.Tensor] = []
    lock = threading.Lock()

    def work(seed: int) -> None:
        for count in range(100):
            x = torch.full((3000 + 500 * (count % 5), 8), float(seed))
            (out,) = run(x, x, w)
            with lock:
                held.append(out)
                freed = held.pop(0) if len(held) > 6 else None
            del freed
            assert torch.allclose(out, (x + x) @ w)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held.clear()


def test_kept_memory_never_overlaps(libraries: Libraries) -> None:
    """Results of random sizes, freed in random order, hold what was written into them."""
    s0, s1 = symbol("s0"), symbol("s1")
    plan = Plan(
        "fill",
        (PlanInput("rows", None, "int"), PlanInput("value", None, "int")),
        (SymbolBinding("s0", "scalar", 0), SymbolBinding("s1", "scalar", 1)),
        (
            AtenStep(
                "aten.full.default",
                ((s0, 1024), s1),
                (("dtype", torch.int64),),
                (2,),
                (spec(s0, 1024, dtype=torch.int64),),
            ),
        ),
        (PlanOutput(slot=2),),
        (),
        num_slots=3,
    )
    run = make_executor(plan, libraries)
    choose = random.Random(0)
    held: list[tuple[int, torch.Tensor]] = []
    for number in range(600):
        held.append((number, run(choose.choice([4, 5, 16, 40, 100, 300]), number)[0]))
        if len(held) > 12:
            wanted, tensor = held.pop(choose.randrange(len(held)))
            assert int(tensor.min()) == int(tensor.max()) == wanted
        if number % 100 == 99:
            _executor.release_memory()
    held.clear()
