"""Recording on a device: the calls of torch's public CUDA graph API, behind an interface that tests can implement.

    device = CudaGraphDevice(torch.device("cuda:0"))
    graph, results = device.record(run, (x,), "net")    `results` are in the graph's pool, not computed yet
    graph.replay()                                      computes them

Each recording has a pool of its own, so that only its replays write to its memory. Replays on a device do not overlap:
a replay on another stream than the last one waits for that stream (graphs share the workspace of cuBLAS, and replays
of a graph its memory).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, Protocol, final

import torch

from kiln.native._executor import take_report
from kiln.plan.errors import STATUS_ERRORS, UnknownStatus, status_error
from kiln.support.errors import KilnError

Results = Sequence[Any]
Run = Callable[..., Results]

PASSED_ON = (*STATUS_ERRORS.values(), UnknownStatus, torch.cuda.OutOfMemoryError)
"""Errors of the program itself, which earlier kernels reported; all others are failures to record."""


class RecordingFailed(KilnError, RuntimeError):
    code = "KILN4020"
    what = "recording a CUDA graph of `{plan}` failed"
    why = "{problem}"
    try_ = ("it runs without a graph from now on; mode='default' records none",)


class RecordedGraph(Protocol):
    """A recorded graph. `bytes`: size of its memory pool."""

    bytes: int

    def replay(self) -> None: ...


class GraphDevice(Protocol):
    """Where graphs are recorded and replayed; shared by all threads."""

    device: torch.device
    memory: int
    """Bytes in all."""
    lock: RLock
    """Held from `enter` until the replay is launched."""

    def is_recording(self) -> bool:
        """Is the caller's stream being recorded already?"""

    def record(self, run: Run, args: tuple[Any, ...], name: str) -> tuple[RecordedGraph, Results]:
        """A graph of what `run(*args)` launches, which reads the arguments in place, and the results.

        Raises RecordingFailed, and errors that earlier kernels reported.
        """

    def enter(self) -> None:
        """Called before the first launch of a replay."""


@final
class CudaGraph:
    """A recorded graph of torch."""

    def __init__(self, graph: torch.cuda.CUDAGraph, pool_bytes: int) -> None:
        self.bytes = pool_bytes
        self.replay = graph.replay


@final
class CudaGraphDevice:
    """A GPU, shared by all functions: the stream to record on, the workspaces of libraries, the order of replays."""

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
        """Wait for the last replay if it was on another stream. Raises errors that earlier kernels reported."""
        status, where = take_report(self.device.index)
        if status:
            raise status_error(status, where)
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
            torch.cuda.empty_cache()  # which is not possible while recording
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
            gc.disable()  # a collection may run destructors that wait for the device
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
        """Handles and workspaces belong to the thread and the stream: made here, they are not in the graph's pool."""
        small = torch.ones((16, 16), device=self.device)
        torch.mm(small, small)

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """End a capture that failed.

        If torch cannot, release the pool, and make a capture that succeeds: until a capture ends, torch's generator
        takes itself to be recorded and refuses every random op.
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
