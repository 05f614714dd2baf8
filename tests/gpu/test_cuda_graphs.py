"""CUDA graphs on a GPU: the scenarios of `tests/cuda_graphs`, and what only a GPU can show.

The second half wraps eager functions, so that it tests recordings whatever the compiler can do.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kiln.plan.plan import Plan, PlanOutput, Ref
from kiln.plan.reference import PythonExecutor
from kiln.plan.steps import AtenStep, RandomSeedStep
from kiln.runtime.cuda_graphs.facts import GraphFacts
from kiln.runtime.cuda_graphs.graphed import GraphedPlan
from kiln.runtime.cuda_graphs.graphs import gpu
from kiln.runtime.cuda_graphs.recording import Recordable
from kiln.runtime.cuda_graphs.seeds import SeedRows
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries
from kiln.tensor.spec import TensorSpec
from tests.cuda_graphs.plans import random_holds
from tests.cuda_graphs.scenarios import SCENARIOS, Setup, random_order

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    SCENARIOS[name](Setup(CUDA))


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "forward" in name or "grad" in name])
def test_scenario_with_twins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1 << 30)
    SCENARIOS[name](Setup(CUDA))


@pytest.mark.parametrize("seed", range(12))
def test_random_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1 << 30)
    random_order(Setup(CUDA), seed, length=60)


def test_an_index_out_of_range_is_reported_by_a_later_call() -> None:
    fast = Setup(CUDA).compiled(lambda table, index: table[index] * 2)
    table, good = torch.randn(10, 4, device=CUDA), torch.tensor([1, 3], device=CUDA)
    for _ in range(4):
        torch.testing.assert_close(fast(table, good), table[good] * 2)
    with pytest.raises(IndexError):
        fast(table, good + 100)
        torch.cuda.synchronize()
        fast(table, good)
    torch.testing.assert_close(fast(table, good), table[good] * 2)


# ---------------------------------------------------------------------------------------- recordings by themselves


class Log:
    def __init__(self) -> None:
        self.bytes = 0
        self.reasons: list[str] = []

    def recorded(self, name: str, pool_bytes: int) -> None:
        self.bytes += pool_bytes

    def dropped(self, name: str, pool_bytes: int) -> None:
        self.bytes -= pool_bytes

    def refused(self, name: str, reason: str) -> None:
        self.reasons.append(reason)


def graphed(function: Callable[..., Sequence[Any]], mutated: tuple[int, ...] = ()) -> GraphedPlan:
    what = Recordable(
        function, GraphFacts("plan", "cuda:0", mutated=mutated, bumped=mutated), (), None, standalone=True
    )
    return GraphedPlan(function, what, gpu(0), Log())


def full(value: float, *sizes: int) -> torch.Tensor:
    return torch.full(sizes or (1024,), float(value), device=CUDA)


def chain(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x
    for _ in range(10):
        y = y + 1
    return y, y * 2


def test_results_are_eagers_and_stay() -> None:
    run = graphed(chain)
    held = [run(full(n)) for n in range(8)]
    for n, (result, two) in enumerate(held):
        assert torch.equal(result, full(n + 10)) and torch.equal(two, full(2 * n + 20))
    assert len(run.recordings) == 1 and isinstance(run.log, Log) and run.log.bytes > 0 and not run.log.reasons


def test_matrix_products_and_parameters() -> None:
    weight = torch.randn(64, 64, device=CUDA)
    run = graphed(lambda x, w: (F.relu(x @ w) @ w,))
    for _ in range(5):
        x = torch.randn(32, 64, device=CUDA)
        torch.testing.assert_close(run(x, weight)[0], F.relu(x @ weight) @ weight)
        weight.mul_(0.9)
    assert len(run.recordings) == 1


def test_eager_work_on_held_memory_keeps_its_order() -> None:
    """Kernels launched on a result before the next replay read its old value."""
    run = graphed(lambda x: (x * 2,))
    size = 1 << 22
    sums = []
    for n in range(20):
        y = run(full(n, size))[0]
        for _ in range(5):
            y = y * 1
        sums.append(y.sum())
    assert [int(total.item()) for total in sums] == [2 * n * size for n in range(20)]


def test_replays_on_other_streams_follow_one_another() -> None:
    run = graphed(lambda x: (torch.sin(x) * 2,))
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = torch.randn(1 << 22, device=CUDA)
    expected = torch.sin(x) * 2
    torch.cuda.synchronize()
    found = []
    for n in range(12):
        with torch.cuda.stream(streams[n % 3]):
            found.append(run(x)[0].sum())
    torch.cuda.synchronize()
    torch.testing.assert_close(torch.stack(found), expected.sum().expand(12))


def test_the_users_own_capture() -> None:
    run = graphed(lambda x: (x * 2,))
    x = full(1)
    for _ in range(3):
        run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run(x)
    x.fill_(4)
    graph.replay()
    assert torch.equal(y, full(8))
    assert torch.equal(run(x)[0], full(8))


def test_dropout_in_the_users_own_capture() -> None:
    fast = Setup(CUDA).compiled(lambda x: F.dropout(x * 3, 0.5))
    x = torch.ones(4096, device=CUDA, requires_grad=True)
    for _ in range(3):
        fast(x).sum().backward()
    graph = torch.cuda.CUDAGraph()
    x.grad = None
    with torch.cuda.graph(graph):
        y = fast(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    seen = []
    for _ in range(4):
        graph.replay()
        assert torch.equal(gradient, y) and 0.4 < (y > 0).float().mean() < 0.6
        seen.append(y.detach().clone())
    assert not any(torch.equal(item, other) for n, item in enumerate(seen) for other in seen[:n])
    runs = []
    for _ in range(2):
        torch.cuda.manual_seed(5)
        graph.replay()
        runs.append(y.detach().clone())
    assert torch.equal(*runs), "the seed decides what replays draw"
    assert not torch.equal(fast(x), fast(x))


def test_both_executors_draw_seeds_while_recording() -> None:
    clone = AtenStep("aten.clone.default", (Ref(0),), (), (1,), (TensorSpec(torch.int64, (2,), (1,), 0, CUDA),))
    plan = Plan("seed", (), (), (RandomSeedStep(0, CUDA, 4), clone), (PlanOutput(slot=1),), (), 2)
    for run in (PythonExecutor(plan, Libraries({}, ())), make_executor(plan, Libraries({}, ()))):
        run()
        graph, pairs = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            (pair,) = run()
        for _ in range(3):
            graph.replay()
            pairs.append(pair.tolist())
        assert len({seed for seed, _ in pairs}) == 3 and all(seed >= 0 and offset == 0 for seed, offset in pairs)


def test_what_cannot_be_recorded_ends_recording_and_leaves_torch_whole() -> None:
    run = graphed(lambda x: (x * x.sum().item(),))
    for n in range(4):
        assert torch.equal(run(full(n))[0], full(n) * full(n).sum())
    assert run.stopped and not run.recordings
    assert not torch.cuda.is_current_stream_capturing()
    assert F.dropout(full(1), 0.5).sum() > 0, "torch draws random numbers still"
    other = graphed(chain)
    for n in range(4):
        assert torch.equal(other(full(n))[0], full(n + 10))
    assert len(other.recordings) == 1
    big = torch.empty(1 << 28, dtype=torch.uint8, device=CUDA)
    del big
    torch.cuda.empty_cache()


def test_out_of_memory_while_recording() -> None:
    calls = []

    def greedy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(torch.cuda.is_current_stream_capturing())
        if calls[-1]:
            torch.empty(1 << 45, dtype=torch.uint8, device=CUDA)
        return (x + 1,)

    run = graphed(greedy)
    for n in range(4):
        assert torch.equal(run(full(n))[0], full(n + 1))
    assert calls.count(True) == 2 and "memory" in run.stopped


def test_memory_that_other_processes_see() -> None:
    run = graphed(lambda x: (x * 2,))
    run(full(0))
    shared, plain = run(full(1))[0], run(full(2))[0]
    for share, y in ((torch.UntypedStorage._share_cuda_, shared), (torch._C.StorageBase._share_cuda_, plain)):
        try:
            share(y.untyped_storage())
        except RuntimeError as problem:
            pytest.skip(f"memory cannot be shared here: {problem}")
    for n in range(3, 6):
        run(full(n))
        assert torch.equal(shared, full(2)) and torch.equal(plain, full(4))


def test_memory_is_given_back() -> None:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    run = graphed(lambda x: (torch.cat([x] * 64) * 2,))
    for n in range(4):
        y = run(full(n, 1 << 20))[0]
    assert torch.cuda.memory_reserved() > before + (1 << 28)
    del run
    gc.collect()
    assert torch.equal(y, full(6, 1 << 26)), "a held result outlives its graph"
    del y
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (32 << 20)


def test_torchs_own_random_numbers() -> None:
    run = graphed(lambda x: (F.dropout(x, 0.5),))
    x = full(1, 4096)
    torch.cuda.manual_seed(5)
    expected = [F.dropout(x, 0.5) for _ in range(5)]
    torch.cuda.manual_seed(5)
    found = [run(x)[0] for _ in range(5)]
    for value, other in zip(found, expected, strict=True):
        assert torch.equal(value, other)


def test_seed_rows_draw_as_plain_runs_do() -> None:
    rows = SeedRows(CUDA, 2)
    for seed in (7, -3):
        torch.cuda.manual_seed(seed)
        generator = torch.cuda.default_generators[0]
        for n in range(3):
            rows.refresh((10, 5))
            unsigned = generator.initial_seed()
            signed = unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned
            assert rows.rows.tolist() == [[signed, 20 * n], [signed, 20 * n + 12]]
        assert generator.get_offset() == 60


def test_mutated_arguments() -> None:
    def bump(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        x.add_(1)
        return (y,)

    run = graphed(bump, mutated=(0,))
    steady, keep = full(0), [full(0) for _ in range(6)]
    for n in range(5):
        assert torch.equal(run(steady)[0], full(2 * n)) and torch.equal(steady, full(n + 1))
    for x in keep:
        assert torch.equal(run(x)[0], full(0)) and torch.equal(x, full(1))


@pytest.mark.parametrize("seed", range(6))
def test_random_holds(seed: int) -> None:
    random_holds(graphed, CUDA, seed, 300)
