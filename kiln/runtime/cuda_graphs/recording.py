"""A recorded graph of a plan, for arguments of one layout.

    recording = Recording.make(plan, device, args, copied={0})
    recording.state.check(args)         FITS: same layouts and addresses, and no result is still held
    outs = recording.run(args)          copies argument 0, replays, returns tensors over the graph's memory
    recording.save_held()               results that the caller still holds get memory of their own

Arguments are used in place (the graph contains their addresses, which every call compares) or copied into buffers that
the graph reads. Results are lent: their memory is the graph's. `save_held` replaces the memory of a held *storage*, so
that all its tensors keep their values: views, detached and saved ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch

from kiln.native._executor import GraphReplay, give_memory
from kiln.runtime.cuda_graphs.device import GraphDevice, RecordedGraph
from kiln.runtime.cuda_graphs.facts import GraphFacts
from kiln.runtime.cuda_graphs.seeds import SeedRows
from kiln.support.records import dataclass
from kiln.tensor.encoding import flat_view, span_of

# Verdicts of `GraphReplay.check`, csrc/executor/graph_replay.cpp
FITS, HELD, MOVED, OTHER = range(4)

Function = Callable[..., Sequence[object]]


@contextmanager
def plainly() -> Iterator[None]:
    """For tensors that outlive the call: without its inference mode and autograd graph."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@final
@dataclass(frozen=True)
class Recordable:
    """What to record: an executor (with its seeds as constants), and facts of its plan.

    `standalone`: the caller gets its results as they are, so that views of arguments must be views for autograd, too;
    otherwise a region rebuilds them.
    """

    run: Function
    facts: GraphFacts
    constants: tuple[torch.Tensor, ...]
    seeds: SeedRows | None
    standalone: bool


@final
class Recording:
    """A graph, the buffers that it reads, and the state of its results."""

    def __init__(
        self,
        graph: RecordedGraph,
        device: GraphDevice,
        state: GraphReplay,
        buffers: Sequence[torch.Tensor],
        copied: frozenset[int],
        written_back: Sequence[int],
    ) -> None:
        self.graph = graph
        self.device = device
        self.state = state
        self.buffers = list(buffers)
        self.copied = copied
        self.written_back = list(written_back)
        self.seeds: SeedRows | None = None
        self.increments: tuple[int, ...] = ()
        self.used = 0
        """The number of the call of the plan that replayed it last."""

    @staticmethod
    @plainly()
    def make(what: Recordable, device: GraphDevice, args: tuple[Any, ...], copied: Collection[int]) -> Recording:
        """Record the plan for `args`, without computing. Raises what `GraphDevice.record` raises."""
        flats = {position: flat_buffer(args[position]) for position in sorted(copied)}
        used = tuple(over(flats[n], arg) if n in flats else arg for n, arg in enumerate(args))
        for position, flat in flats.items():
            flat.copy_(flat_view(args[position]))
        graph, results = device.record(what.run, used, what.facts.name)
        results = tuple(results)
        count = len(results) - what.facts.seeds
        constants = (*what.constants, *(what.seeds.tensors if what.seeds else ()))
        state = GraphReplay(args, used, results[:count], constants, what.facts.bumped, what.standalone)
        positions = list(flats)
        written_back = [positions.index(position) for position in what.facts.mutated if position in flats]
        made = Recording(graph, device, state, list(flats.values()), frozenset(flats), written_back)
        made.seeds, made.increments = what.seeds, results[count:]
        return made

    def run(self, args: tuple[Any, ...]) -> tuple[object, ...]:
        """The results for arguments that fit."""
        with self.device.lock:
            self.device.enter()
            if self.buffers:
                sources = self.state.sources(args)
                torch._foreach_copy_(self.buffers, sources)
            if self.seeds is not None:
                self.seeds.refresh(self.increments)
            self.graph.replay()
            for number in self.written_back:
                sources[number].copy_(self.buffers[number])
        return self.state.hand_out(args)

    def save_held(self) -> None:
        """Give results that are still held memory of their own."""
        held = self.state.held()
        with self.device.lock:
            self.device.enter()
            fresh = [torch.empty_like(memory) for memory in held]
            torch._foreach_copy_(fresh, held)
        for memory, own in zip(held, fresh, strict=True):
            give_memory(memory, own)


def span_bytes(tensor: torch.Tensor) -> int:
    return span_of(tensor) * tensor.element_size()


def flat_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """Fresh memory for the layout of `tensor`."""
    return torch.empty(span_of(tensor), dtype=tensor.dtype, device=tensor.device)


def over(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`flat` in the layout of `tensor`."""
    return flat.as_strided(tensor.shape, tensor.stride(), 0)
