"""Replay of a log on fresh fakes, for the calls before a graph break.

    calls 0..4 stay, 5 and 6 are dropped, 6 wrote to a tensor     =>     0..4 run again; every fake has a successor

In-place ops change the autograd state of fakes, which cannot be undone. If no dropped call has effects, none is
replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, cast, final

import torch

from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import Target, TorchCall
from kiln.runtime.eager_replay import SETTERS
from kiln.support.location import Location

T = TypeVar("T")


@final
class Successors:
    """Old value -> new value, by identity; containers are rebuilt."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, object]] = {}

    def add(self, old: object, new: object) -> None:
        """Pair the results of a call and of its replay, part by part."""
        if isinstance(old, list | tuple):
            for left, right in zip(old, cast(Sequence[object], new), strict=True):
                self.add(left, right)
        elif isinstance(old, dict):
            for key in old:
                self.add(old[key], cast(dict[object, object], new)[key])
        elif isinstance(old, FakeTensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            self._found[id(old)] = (old, new)

    def of(self, value: T) -> T:
        """The successor of a value, or the value."""
        found = self._found.get(id(value))
        if found is not None:
            return found[1]  # type: ignore[return-value]
        made: object = value
        if isinstance(made, tuple) and hasattr(made, "_fields"):
            made = type(made)._make([self.of(item) for item in made])  # type: ignore[attr-defined]
        elif type(made) is list or type(made) is tuple:
            made = type(made)([self.of(item) for item in made])
        elif type(made) is dict:
            made = {key: self.of(item) for key, item in made.items()}
        elif isinstance(made, slice):
            made = slice(self.of(made.start), self.of(made.stop), self.of(made.step))
        return made  # type: ignore[return-value]


class RunCall(Protocol):
    def __call__(
        self, target: Target, args: Sequence[object], kwargs: dict[str, object], *, stack: tuple[Location, ...] = ()
    ) -> object: ...


class LogState(Protocol):
    def __call__(self, kind: str, value: object, *, stack: tuple[Location, ...] = ()) -> None: ...


def replay(calls: Sequence[TorchCall], successors: Successors, run: RunCall, log: LogState) -> None:
    """Run `calls` again; changes of modes are made, and logged through `log`."""
    grad = torch.is_grad_enabled()
    try:
        for call in calls:
            if call.kind == "setstate":
                (value,) = call.args
                SETTERS[str(call.target)](*(value if isinstance(value, tuple) else (value,)))
                log(str(call.target), value, stack=call.stack)
                continue
            result = run(call.target, successors.of(call.args), successors.of(call.kwargs), stack=call.stack)
            successors.add(call.result, result)
    finally:
        torch._C._set_grad_enabled(grad)
