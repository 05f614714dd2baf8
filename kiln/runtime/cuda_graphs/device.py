"""Recording on a device: the few calls of torch's public CUDA graph API, behind an interface that tests can fill.

    device = CudaGraphDevice(torch.device("cuda:0"))
    graph, results = device.record(run, (x,), "net")    nothing is computed yet; `results` stand in the graph's pool
    graph.replay()                                      now they are

Each recording has a pool of its own, so the one thing that writes to its memory is its replay. Replays on a device
follow one another: one on another stream than the last waits for that stream first (all graphs share the workspace
of the library that multiplies matrices, and a graph its own memory).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, Protocol, final

import torch

from kiln.native._executor import take_status
from kiln.plan.errors import STATUS_ERRORS, UnknownStatus, status_error
from kiln.support.errors import KilnError

Results = Sequence[Any]
Run = Callable[..., Results]

PASSED_ON = (*STATUS_ERRORS.values(), UnknownStatus, torch.cuda.OutOfMemoryError)
"""What earlier kernels reported is the program's error; whatever else goes wrong while recording is the recording's."""


class RecordingFailed(KilnError, RuntimeError):
    code = "KILN4020"
    what = "recording a CUDA graph of `{plan}` failed"
    why = "{problem}"
    try_ = ("it runs without a graph from now on; mode='default' records none",)


class RecordedGraph(Protocol):
    """What was recorded. `bytes`: of the memory pool."""

    bytes: int

    def replay(self) -> None: ...


class GraphDevice(Protocol):
    """Where graphs are recorded and replayed; one for all threads."""

    device: torch.device
    memory: int
    """Bytes in all."""
    lock: RLock
    """Held from `enter` until the replay is launched."""

    def is_recording(self) -> bool:
        """Whether the caller's stream is being recorded already, by whomever."""

    def record(self, run: Run, args: tuple[Any, ...], name: str) -> tuple[RecordedGraph, Results]:
        """What `run(*args)` launches, as a graph that reads the arguments where they stand, and what it returned.

        Raises RecordingFailed, and what earlier kernels reported.
        """

    def enter(self) -> None:
        """Called before what belongs to a replay is launched."""


@final
class CudaGraph:
    """A recorded graph of torch."""

    def __init__(self, graph: torch.cuda.CUDAGraph, pool_bytes: int) -> None:
        self.bytes = pool_bytes
        self.replay = graph.replay


@final
class CudaGraphDevice:
    """One GPU. All functions share it: the stream to record on and its libraries' workspaces, the order of replays."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self.memory = torch.cuda.get_device_properties(index).total_memory
        self.side = torch.cuda.Stream(self.device)
        self.last: torch.cuda.Stream | None = None
        self.lock = RLock()
        self._last_raw = -1

    def is_recording(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def enter(self) -> None:
        """Order against the last replay: one comparison while the stream is the same.

        Raises what kernels of earlier calls reported.
        """
        status = take_status(self.device.index)
        if status:
            raise status_error(status, "a kernel of an earlier call")
        raw = torch._C._cuda_getCurrentRawStream(self.device.index)
        if raw == self._last_raw:
            return
        current = torch.cuda.current_stream(self.device)
        if self.last is not None:
            current.wait_stream(self.last)
        self.last, self._last_raw = current, raw

    def record(self, run: Run, args: tuple[Any, ...], name: str) -> tuple[RecordedGraph, Results]:
        with self.lock:
            return self._record_twice(run, args, name)

    def _record_twice(self, run: Run, args: tuple[Any, ...], name: str) -> tuple[RecordedGraph, Results]:
        try:
            return self._record(run, args, name)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()  # what torch keeps for later allocations cannot be given back while recording
        try:
            return self._record(run, args, name)
        except torch.cuda.OutOfMemoryError as problem:
            raise RecordingFailed(plan=name, problem=f"out of memory: {first_line(problem)}") from problem

    def _record(self, run: Run, args: tuple[Any, ...], name: str) -> tuple[RecordedGraph, Results]:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self.side):
            self.side.wait_stream(current)
            self._prepare_libraries()
            before = torch.cuda.memory_reserved(self.device)
            collecting = gc.isenabled()
            gc.disable()  # objects of others that die while recording may wait for the device
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                results = run(*args)
                graph.capture_end()
            except BaseException as problem:
                self._abandon(graph, pool)
                if isinstance(problem, PASSED_ON) or not isinstance(problem, Exception):
                    raise
                raise RecordingFailed(plan=name, problem=first_line(problem)) from problem
            finally:
                if collecting:
                    gc.enable()
            pool_bytes = torch.cuda.memory_reserved(self.device) - before
        current.wait_stream(self.side)
        return CudaGraph(graph, max(pool_bytes, 0)), results

    def _prepare_libraries(self) -> None:
        """Handles and workspaces belong to the thread and the stream: made now, they are in no graph's pool."""
        small = torch.ones((16, 16), device=self.device)
        torch.mm(small, small)

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """End a capture that failed.

        Where torch cannot, its allocator is told that the pool is not used any more, and a capture that succeeds
        follows: until one ends, torch's generator believes that it is being recorded and refuses every random op.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            for give_up in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
                with contextlib.suppress(RuntimeError):
                    give_up(self.device.index, pool)
            with contextlib.suppress(RuntimeError):
                mark, small = torch.zeros((), device=self.device), torch.cuda.CUDAGraph()
                small.capture_begin(capture_error_mode="thread_local")
                mark.zero_()
                small.capture_end()
        with contextlib.suppress(RuntimeError):
            graph.reset()


def first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
