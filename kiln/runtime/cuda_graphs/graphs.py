"""The CUDA graphs of a compiled function: wraps executors, emits events, drops all graphs on `clear`.

    graphs = CudaGraphs(events)
    run = graphs.wrap(plain, make_seeded, facts, constants, standalone=True)

`run` is `plain` itself where the plan cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, final
from weakref import WeakSet

import torch

from kiln.runtime.cuda_graphs.device import CudaGraphDevice, GraphDevice
from kiln.runtime.cuda_graphs.facts import GraphFacts
from kiln.runtime.cuda_graphs.graphed import GraphedPlan
from kiln.runtime.cuda_graphs.recording import Function, Recordable, plainly
from kiln.runtime.cuda_graphs.seeds import SeedRows
from kiln.support.events import EventSink

MakeDevice = Callable[[torch.device], GraphDevice | None]


def cuda_device(device: torch.device) -> GraphDevice | None:
    """None where the device has no graphs."""
    if device.type != "cuda":
        return None
    return gpu(torch.cuda.current_device() if device.index is None else device.index)


@lru_cache(maxsize=64)
def gpu(index: int) -> GraphDevice:
    """One object per GPU and process."""
    return CudaGraphDevice(torch.device("cuda", index))


@final
class CudaGraphs:
    """Makes and keeps the graphs of a compiled function. Tests pass a `make_device`."""

    def __init__(self, events: EventSink, make_device: MakeDevice = cuda_device) -> None:
        self.events = events
        self.make_device = make_device
        self._plans: WeakSet[GraphedPlan] = WeakSet()

    def wrap(
        self,
        plain: Function,
        make_seeded: Callable[[Sequence[torch.Tensor]], Function],
        facts: GraphFacts,
        constants: Sequence[torch.Tensor],
        *,
        standalone: bool,
    ) -> Callable[..., Any]:
        """`plain` with graphs. `make_seeded(constants)` makes the executor of the seeded plan."""
        if facts.refusal:
            self.refused(facts.name, facts.refusal)
            return plain
        where = torch.device(facts.device)
        device = self.make_device(where)
        if device is None:
            self.refused(facts.name, f"{where.type} has no graphs")
            return plain
        run, seeds = plain, None
        if facts.seeds:
            with plainly():
                seeds = SeedRows(device.device, facts.seeds)
            run = make_seeded([*constants, *seeds.tensors])
        made = GraphedPlan(plain, Recordable(run, facts, tuple(constants), seeds, standalone), device, self)
        self._plans.add(made)
        return made

    def clear(self) -> None:
        """Drop all graphs and free their memory; later calls record new ones."""
        for plan in list(self._plans):
            plan.clear()

    # GraphLog

    def recorded(self, name: str, pool_bytes: int) -> None:
        self.events.emit("graph_recorded", plan=name, count=1, bytes=pool_bytes)

    def dropped(self, name: str, pool_bytes: int) -> None:
        self.events.emit("graph_dropped", plan=name, count=-1, bytes=-pool_bytes)

    def refused(self, name: str, reason: str) -> None:
        self.events.emit("graph_refused", plan=name, reason=reason)
