"""What stands for the values of calls when they are repeated on other fakes, as those of equal layers are.

successors.add(y, new_y)
successors.of((x, [y]))      (x, [new_y])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast, final

import torch

from kiln.graph.trace.fake import FakeTensor

T = TypeVar("T")


@final
class Successors:
    """Old value -> new value, by identity; containers are rebuilt."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, object]] = {}

    def add(self, old: object, new: object) -> None:
        """Pair the results of a call and of its repetition, part by part."""
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
