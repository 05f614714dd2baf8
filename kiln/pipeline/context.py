"""What every stage of a compile gets: options, targets, events, dump, on-disk cache, shape environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, final

from kiln.runtime.autograd import GradientRun
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from kiln.support.dump import Dump
from kiln.support.errors import InternalFault, KilnError
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import ShapeEnv

if TYPE_CHECKING:
    from kiln.graph.ir.graph import Graph
    from kiln.graph.ir.node import Node
    from kiln.pipeline.offload import Offload


class ReportEager(Protocol):
    def __call__(self, problem: KilnError, cause: Exception | None = None) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class CompileContext:
    """`host` is the CPU; `target` what the current graph is compiled for: the host or a GPU."""

    options: Options
    host: Target
    target: Target
    events: EventSink
    dump: Dump
    store: DiskStore
    env: ShapeEnv | None = None
    """Of the trace that is compiled; None before there is one."""
    graphs: CudaGraphs | None = None
    """Makes and keeps the CUDA graphs of the function; None without the option `cuda_graphs`."""
    report_eager: ReportEager | None = None
    """Warns that something runs eager (or raises, with fullgraph); for what is compiled after the capture."""
    check_time: Callable[[], None] = lambda: None
    """Called between stages; raises a KilnError when the compile takes too long."""
    counting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered by a compile that starts later, when a program runs: it counts as time of compiling."""

    compile_gradients: Callable[..., GradientRun] | None = None
    """What create_graph=True runs is compiled with it."""
    known: Callable[[Graph], tuple[Graph, dict[Node, Node]]] | None = None
    """Replaces values of a joint graph by inputs that hold them (`graph/passes/known_values.py`)."""
    offload: Offload | None = None
    """Another compiler that gets parts of the graphs."""

    def report_failure(self, fault: Exception) -> None:
        """Warn that something runs eager since its compile failed; raises where nobody can be told."""
        if self.report_eager is None:
            raise fault
        problem = InternalFault(stage=self.events.failed_stage, problem=repr(fault))
        self.report_eager(*((fault,) if isinstance(fault, KilnError) else (problem, fault)))

    @property
    def without(self) -> tuple[str, ...]:
        """The passes and rules that are switched off."""
        return self.host.without
