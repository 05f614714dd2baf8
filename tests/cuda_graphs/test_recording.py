"""One graphed plan: arguments, held results, layouts, calls without a graph."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from kiln.native._executor import is_lent
from kiln.plan.errors import IndexOutOfRange
from kiln.runtime.cuda_graphs.device import RecordingFailed
from kiln.runtime.cuda_graphs.exports import move_storage, moved_first
from kiln.runtime.cuda_graphs.facts import GraphFacts
from kiln.runtime.cuda_graphs.graphed import ATTEMPTS, KEPT, LAYOUTS, POOL_SHARE, GraphedPlan
from kiln.runtime.cuda_graphs.recording import Recordable
from tests.cuda_graphs.null_device import CPU, NullDevice
from tests.cuda_graphs.plans import random_holds


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def recorded(self, name: str, pool_bytes: int) -> None:
        self.lines.append("recorded")

    def dropped(self, name: str, pool_bytes: int) -> None:
        self.lines.append("dropped")

    def refused(self, name: str, reason: str) -> None:
        self.lines.append(reason)


def graphed(
    device: NullDevice,
    function: Callable[..., Sequence[Any]],
    mutated: tuple[int, ...] = (),
    constants: tuple[torch.Tensor, ...] = (),
    *,
    standalone: bool = True,
) -> GraphedPlan:
    facts = GraphFacts("plan", "cpu", mutated=mutated, bumped=mutated)
    return GraphedPlan(function, Recordable(function, facts, constants, None, standalone), device, Log())


def lines(plan: GraphedPlan) -> list[str]:
    assert isinstance(plan.log, Log)
    return plan.log.lines


def double(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 2,)


def full(value: float, *sizes: int) -> torch.Tensor:
    return torch.full(sizes or (4,), float(value))


def fulls(count: int) -> list[torch.Tensor]:
    """Arguments at different addresses (malloc may reuse those of temporaries)."""
    return [full(n) for n in range(count)]


def test_recorded_at_the_second_call_replayed_from_then_on(device: NullDevice) -> None:
    run = graphed(device, double)
    for n, x in enumerate(fulls(5)):
        (y,) = run(x)
        assert torch.equal(y, full(2 * n))
        del y
    assert len(device.graphs) == 1
    assert device.replays == 4


def test_all_held_results_stay(device: NullDevice) -> None:
    run = graphed(device, double)
    keep = fulls(6)
    held = [run(x)[0] for x in keep]
    for n, y in enumerate(held):
        assert torch.equal(y, full(2 * n))
    assert len(device.graphs) == 1


def test_a_dropped_result_gives_its_memory_to_the_next(device: NullDevice) -> None:
    run = graphed(device, double)
    first, *others = fulls(6)
    run(first)
    pointers = {run(x)[0].data_ptr() for x in others}
    assert len(pointers) == 1


def test_views_and_detached_tensors_go_with_a_held_result(device: NullDevice) -> None:
    run = graphed(device, double)
    run(full(0))
    y = run(full(1))[0]
    view, detached = y[1:3], y.detach()
    run(full(5))
    for held in (y, view, detached):
        assert torch.equal(held, torch.full_like(held, 2))
    view.fill_(7)
    assert y.tolist() == detached.tolist() == [2, 7, 7, 2]


def test_a_pointer_that_left_torch_stays_good(device: NullDevice) -> None:
    run = graphed(device, double)
    first, *others = fulls(7)
    run(first)
    outside = []
    for x in others:
        y = run(x)[0]
        view = y[1:]
        outside.append((numpy.from_dlpack(y), view))
        assert not is_lent(view)
    for n, (array, view) in enumerate(outside):
        assert array.tolist() == [2 * n + 2] * 4 and view.tolist() == [2 * n + 2] * 3
    view.fill_(1)
    assert array[1] == 1
    assert len(device.graphs) == 1


def test_a_capsule_that_left_torch_stays_good(device: NullDevice) -> None:
    """`to_dlpack` does not go through the tensor's `__dlpack__`."""
    run = graphed(device, double)
    first, *others = fulls(4)
    run(first)
    outside = [torch.from_dlpack(torch.to_dlpack(run(x)[0])) for x in others]
    capsules = [torch.utils.dlpack.to_dlpack(run(x)[0]) for x in others]
    outside += [torch.from_dlpack(capsule) for capsule in capsules]
    run(first)
    assert [result.tolist() for result in outside] == [[2 * n] * 4 for n in (1, 2, 3, 1, 2, 3)]


def test_memory_shared_with_other_processes_is_moved_before(device: NullDevice) -> None:
    share = moved_first(torch.UntypedStorage.data_ptr, move_storage)
    run = graphed(device, double)
    first, *others = fulls(4)
    run(first)
    for n, x in enumerate(others, 1):
        y = run(x)[0]
        lent = y.data_ptr()
        assert share(y.untyped_storage()) == y.data_ptr() != lent and not is_lent(y)
        run(first)
        assert torch.equal(y, full(2 * n))
    assert hasattr(torch.UntypedStorage._share_cuda_, "__wrapped__")


def test_a_view_alone_holds_the_memory(device: NullDevice) -> None:
    run = graphed(device, double)
    run(full(0))
    view = run(full(1))[0][2:]
    run(full(5))
    assert view.tolist() == [2, 2]


def test_results_in_one_memory_stay_in_one(device: NullDevice) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[1:]

    run = graphed(device, both)
    run(full(0))
    y, tail = run(full(1))
    assert tail._base is y
    run(full(5))
    tail.fill_(9)
    assert y.tolist() == [2, 9, 9, 9]


def test_the_result_is_an_argument(device: NullDevice) -> None:
    """h = f(h): the argument is the memory that the replay writes."""
    run = graphed(device, double)
    h = full(1)
    for _ in range(20):
        h = run(h)[0]
    assert torch.equal(h, full(2.0**20))
    assert len(device.graphs) <= 4


def test_one_after_the_other(device: NullDevice) -> None:
    f, g = graphed(device, double), graphed(device, lambda x: (x + 1,))
    for n, x in enumerate(fulls(6)):
        assert torch.equal(g(*f(x))[0], full(2 * n + 1))
    assert len(device.graphs) == 2


def test_a_parameter_is_used_in_place_and_may_change(device: NullDevice) -> None:
    weight = nn.Parameter(full(3))
    with torch.no_grad():
        run = graphed(device, lambda x, w: (x * w,))
        for n, x in enumerate(fulls(4)):
            assert torch.equal(run(x, weight)[0], full(3 * n))
        assert run.recordings[0].copied <= {0}
        weight.add_(1)
        assert torch.equal(run(full(2), weight)[0], full(8))
        assert len(device.graphs) == 1
        weight.data = full(5)  # another address: recorded again, in place of the old one
        assert torch.equal(run(full(2), weight)[0], full(10))
        assert len(device.graphs) == 2 and len(run.recordings) == 1
        for n in range(6):  # an optimizer that replaces parameters
            weight.data = full(n)
            assert torch.equal(run(full(2), weight)[0], full(2 * n))
        assert len(device.graphs) <= 4 and 1 in run.recordings[0].copied


def test_an_argument_that_moves_is_copied(device: NullDevice) -> None:
    run = graphed(device, double)
    keep = [full(n) for n in range(6)]
    for n, x in enumerate(keep):
        assert torch.equal(run(x)[0], full(2 * n))
    assert len(device.graphs) == 1
    assert run.recordings[0].copied == {0}


def test_an_argument_that_stood_still_and_moves_later(device: NullDevice) -> None:
    run = graphed(device, double)
    x = full(1)
    for _ in range(3):
        run(x)
    assert run.recordings[0].copied == frozenset()
    keep = [full(n) for n in range(6)]
    for n, kept in enumerate(keep):
        assert torch.equal(run(kept)[0], full(2 * n))
    assert len(device.graphs) == 2 and len(run.recordings) == 1


@pytest.mark.parametrize("moving", [False, True])
def test_a_mutated_argument(device: NullDevice, moving: bool) -> None:
    def bump(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        x.add_(1)
        return (y,)

    run = graphed(device, bump, mutated=(0,))
    keep = [full(0) for _ in range(6)]
    x = keep[0]
    for n in range(6):
        if moving:
            x = keep[n].copy_(x)
        version = x._version
        (y,) = run(x)
        assert x._version > version
        assert torch.equal(x, full(n + 1)) and torch.equal(y, full(2 * n))


def test_strided_and_expanded_arguments_are_copied_whole(device: NullDevice) -> None:
    run = graphed(device, double)
    for n in range(5):
        for x in (full(n, 4, 4).t()[1:], full(n, 4, 4)[:, 1], full(n, 1).expand(5), full(n, 0)):
            assert torch.equal(run(x)[0], x * 2)


def test_results_that_are_arguments(device: NullDevice) -> None:
    def aliases(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        return x, y[1:], x + y, 3, None

    run = graphed(device, aliases)
    for n in range(5):
        x, y = full(n), full(n)
        same, view, total, three, nothing = run(x, y)
        assert same is x and view._base is y and view.data_ptr() == y[1:].data_ptr()
        assert torch.equal(total, full(2 * n)) and (three, nothing) == (3, None)


def test_results_that_are_constants(device: NullDevice) -> None:
    constant = full(1)
    run = graphed(device, lambda x: (constant, x * 2), constants=(constant,))
    for n in range(4):
        assert run(full(n))[0] is constant


def test_numbers_belong_to_the_recording(device: NullDevice) -> None:
    run = graphed(device, lambda x, n: (x * n,))
    x = full(1)
    for factor in (2, 3, 2, 3, 2, 3, 2.0, 2.0, 2.0, True, True):
        result = run(x, factor)[0]
        assert torch.equal(result, full(1) * factor) and result.dtype == (full(1) * factor).dtype
    assert len(device.graphs) == 4


def test_layouts_have_recordings_of_their_own(device: NullDevice) -> None:
    run = graphed(device, double)
    keep = [full(1, size) for _ in range(3) for size in range(1, 5)]
    for x in keep:
        assert torch.equal(run(x)[0], x * 2)
    assert len(device.graphs) == 4


def test_the_number_of_recordings_is_bounded(device: NullDevice) -> None:
    run = graphed(device, double)
    for _ in range(15):
        for size in range(1, KEPT + 4):
            assert torch.equal(run(full(1, size))[0], full(2, size))
            assert len(run.recordings) <= KEPT
    assert len(device.graphs) == ATTEMPTS
    assert lines(run).count(run.stopped) == 1


def test_recordings_take_a_share_of_the_memory(device: NullDevice) -> None:
    run = graphed(device, double)
    device.memory = int(4 * 40 / POOL_SHARE)
    keep = [full(1, size) for size in (10, 10, 20, 20, 30, 30, 100, 100, 10, 10)]
    sizes = []
    for x in keep:
        assert torch.equal(run(x)[0], x * 2)
        sizes.append([recording.graph.bytes // 4 for recording in run.recordings])
    assert sizes[1::2] == [[10], [10, 20], [30], [100], [10]], "the one used longest ago goes first; one always stays"


def test_no_twin_beyond_the_share_of_the_memory(device: NullDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
    run = graphed(device, double)
    device.memory = int(4 * 6 / POOL_SHARE)
    keep = fulls(9)
    held = [run(x)[0] for x in keep]
    assert [result[0].item() for result in held] == [2 * n for n in range(9)]
    assert len(device.graphs) == 1


def test_a_large_held_result_stays_where_it_is(device: NullDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
    run = graphed(device, double)
    keep = fulls(9)
    y = run(keep[0])[0]
    places = set()
    for n in range(1, 9):
        y = run(keep[n])[0]
        places.add(y.data_ptr())
        assert torch.equal(y, full(2 * n))
    assert len(device.graphs) == len(places) == 2
    held = [run(x)[0] for x in keep[:5]]
    assert [result[0].item() for result in held] == [0, 2, 4, 6, 8]
    assert len(device.graphs) == 2


def test_memory_outlives_the_graphs(device: NullDevice) -> None:
    run = graphed(device, double)
    run(full(0))
    y = run(full(3))[0]
    run.clear()
    device.graphs.clear()
    gc.collect()
    assert torch.equal(y, full(6))
    assert lines(run) == ["recorded", "dropped"]
    assert [torch.equal(run(full(n))[0], full(2 * n)) for n in range(3)] == [True] * 3


def test_the_graph_dies_with_the_plan(device: NullDevice) -> None:
    run = graphed(device, double)
    run(full(0))
    run(full(3))
    graph = weakref.ref(device.graphs.pop())
    del run
    assert graph() is None


def test_inference_mode_comes_and_goes(device: NullDevice) -> None:
    run = graphed(device, double)
    for n in range(8):
        with torch.inference_mode(n % 3 == 1):
            y = run(full(n))[0]
        assert y.is_inference() == (n % 3 == 1)
        held = y
        assert torch.equal(held, full(2 * n))


def test_the_users_own_capture_gets_the_plain_run(device: NullDevice) -> None:
    run = graphed(device, double)
    for _ in range(3):
        run(full(1))
    replays = device.replays
    device.capturing = True
    assert torch.equal(run(full(4))[0], full(8))
    assert device.replays == replays


def test_other_threads_run_plainly(device: NullDevice) -> None:
    run = graphed(device, double)
    for _ in range(3):
        run(full(1))
    replays, found = device.replays, []
    thread = threading.Thread(target=lambda: found.append(run(full(4))[0]))
    thread.start()
    thread.join()
    assert torch.equal(found[0], full(8)) and device.replays == replays


def test_a_recording_that_fails_ends_recording(device: NullDevice) -> None:
    run = graphed(device, double)
    device.fail = RuntimeError("operation not permitted when stream is capturing")
    for n in range(4):
        assert torch.equal(run(full(n))[0], full(2 * n))
    assert len(lines(run)) == 1 and "not permitted" in lines(run)[0]
    device.fail = None
    run(full(1))
    assert not device.graphs
    run.clear()  # kiln.reset: everything is tried again
    run(full(1))
    run(full(1))
    assert len(device.graphs) == 1


def test_errors_of_the_program_are_the_programs(device: NullDevice) -> None:
    run = graphed(device, double)
    run(full(1))
    device.fail = IndexOutOfRange(where="k0")
    with pytest.raises(IndexOutOfRange):
        run(full(1))
    assert not isinstance(device.fail, RecordingFailed) and not run.stopped


def test_too_much_to_copy_runs_plainly(device: NullDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.COPY_BYTES", 8)
    run = graphed(device, double)
    keep = [full(n) for n in range(30)]
    for n, x in enumerate(keep):
        assert torch.equal(run(x)[0], full(2 * n))
    assert not device.graphs and "too large" in run.stopped


@pytest.mark.parametrize("seed", range(10))
def test_random_holds(device: NullDevice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1000)
    random_holds(lambda function: graphed(device, function), CPU, seed, 150)
    assert device.replays > 30


def test_numbers_that_never_come_again_end_recording(device: NullDevice) -> None:
    run = graphed(device, lambda x, n: (x * n,))
    for n in range(LAYOUTS + 2):
        assert torch.equal(run(full(1), n)[0], full(n))
    assert "keep changing" in run.stopped and not device.graphs


def test_a_cleared_plan_belongs_to_the_next_thread(device: NullDevice) -> None:
    plan = graphed(device, double)
    for _ in range(2):
        plan(torch.ones(3))
        other = threading.Thread(target=plan, args=(torch.ones(3),))
        other.start()
        other.join()
        plan.clear()
    assert sum("several threads" in line for line in lines(plan)) == 2
