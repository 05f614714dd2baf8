"""A device without a GPU: a graph is a function with recorded addresses; a replay writes to them.

What a replay must not do to others it really does here: results, and everything over their memory, are overwritten.
Recording leaves arguments as they were, as recording on a GPU does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import RLock
from typing import Any

import torch

from kiln.runtime.cuda_graphs.device import RecordedGraph, RecordingFailed, Results, Run
from kiln.runtime.cuda_graphs.recording import span_bytes
from kiln.support.errors import KilnError
from kiln.tensor.encoding import flat_view

CPU = torch.device("cpu")


class NullGraph:
    def __init__(self, run: Run, args: tuple[Any, ...], results: Sequence[Any]) -> None:
        self.run = run
        self.args = tuple(at_address(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        self.memory = [
            (place, torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()))
            for place, value in enumerate(results)
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in given
        ]
        self.bytes = sum(memory.numel() for _, memory in self.memory)
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode(False), torch.no_grad():
            again = self.run(*self.args)
            for place, memory in self.memory:
                made = torch.empty(0, dtype=torch.uint8).set_(again[place].untyped_storage())
                if made.data_ptr() != memory.data_ptr():
                    memory.copy_(made)


def at_address(tensor: torch.Tensor) -> torch.Tensor:
    """The address of a tensor, as a graph has it; does not keep the tensor alive."""
    span = span_bytes(tensor)
    if span == 0:
        return tensor.detach()
    memory = (ctypes.c_char * span).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride(), 0)


class NullDevice:
    """Counts what is recorded. `fail`: why the next recording fails; `capturing`: as if the user recorded a graph."""

    def __init__(self) -> None:
        self.device = CPU
        self.memory = 1 << 40
        self.graphs: list[NullGraph] = []
        self.fail: Exception | None = None
        self.capturing = False
        self.lock = RLock()

    def is_recording(self) -> bool:
        return self.capturing

    def enter(self) -> None:
        pass

    def record(self, run: Run, args: tuple[Any, ...], name: str) -> tuple[RecordedGraph, Results]:
        if self.fail is not None:
            if isinstance(self.fail, KilnError):
                raise self.fail
            raise RecordingFailed(plan=name, problem=str(self.fail)) from self.fail
        places = [flat_view(at_address(arg)) for arg in args if isinstance(arg, torch.Tensor)]
        before = [place.clone() for place in places]
        results = run(*args)
        for place, contents in zip(places, before, strict=True):
            place.copy_(contents)
        self.graphs.append(NullGraph(run, args, results))
        return self.graphs[-1], results

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)
