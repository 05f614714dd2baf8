"""Replay of a log on fresh fakes: what a graph break does with the calls before it.

    calls 0..4 stay, 5 and 6 go, 6 wrote to a tensor     =>     0..4 run again; every fake has a successor

In-place ops change the autograd state of fakes, which nothing can undo. Calls without effects need no replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall
from kiln.runtime.eager_replay import SETTERS


@final
class Successors:
    """Old value -> new value, by identity; containers are rebuilt."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Any]] = {}

    def add(self, old: Any, new: Any) -> None:
        """Pair the results of a call and of its replay, part by part."""
        if isinstance(old, list | tuple):
            for left, right in zip(old, new, strict=True):
                self.add(left, right)
        elif isinstance(old, dict):
            for key in old:
                self.add(old[key], new[key])
        elif isinstance(old, FakeTensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            self._found[id(old)] = (old, new)

    def of(self, value: Any) -> Any:
        """The successor of a value, or the value."""
        found = self._found.get(id(value))
        if found is not None:
            return found[1]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self.of(one) for one in value])
        if type(value) in (list, tuple):
            return type(value)([self.of(one) for one in value])
        if type(value) is dict:
            return {key: self.of(one) for key, one in value.items()}
        if isinstance(value, slice):
            return slice(self.of(value.start), self.of(value.stop), self.of(value.step))
        return value


def replay(
    calls: Sequence[TorchCall], successors: Successors, call: Callable[..., Any], log: Callable[..., Any]
) -> None:
    """Run `calls` again through `call`; changes of mode are made and logged through `log`."""
    grad = torch.is_grad_enabled()
    try:
        for one in calls:
            if one.kind == "setstate":
                (value,) = one.args
                SETTERS[str(one.target)](*(value if isinstance(value, tuple) else (value,)))
                log(one.target, value, stack=one.stack)
                continue
            result = call(one.target, successors.of(one.args), successors.of(one.kwargs), stack=one.stack)
            successors.add(one.result, result)
    finally:
        torch._C._set_grad_enabled(grad)
