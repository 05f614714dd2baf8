"""What sizes and numbers a function has been called with: decides, at each compile, which become symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from kiln.runtime.guards.source import Source
from kiln.symbolic.policy import DimChoice, DimPolicy, ScalarPolicy, read_marks


class SizeHistory:
    """Observed sizes and integers by source; `choose` answers for the next compile and remembers."""

    def __init__(self, dynamic: Literal["auto", "never", "always"]) -> None:
        self._dims = DimPolicy(dynamic)
        self._parameter_dims = DimPolicy("never")
        self._scalars = ScalarPolicy(dynamic)
        self._sizes: dict[str, list[tuple[int, ...]]] = {}
        self._ints: dict[str, list[int]] = {}

    def dims(self, tensor: torch.Tensor, source: Source) -> tuple[DimChoice, ...]:
        """Per dimension: static or a symbol. A size that changed once becomes a symbol; those of parameters do not."""
        sizes = tuple(tensor.shape)
        if isinstance(tensor, torch.nn.Parameter):
            return self._parameter_dims.choose(sizes, [], read_marks(tensor))
        seen = self._sizes.setdefault(source.text(), [])
        choice = self._dims.choose(sizes, seen, read_marks(tensor))
        if sizes not in seen:
            seen.append(sizes)
        return choice

    def seen(self) -> dict[str, Any]:
        """All that was observed, as data."""
        return {"sizes": {name: [list(one) for one in seen] for name, seen in self._sizes.items()}, "ints": self._ints}

    def remember(self, seen: Mapping[str, Any]) -> None:
        """What another process observed (its `seen`) was observed here too."""
        for name, sizes in seen["sizes"].items():
            known = self._sizes.setdefault(name, [])
            known.extend(one for one in map(tuple, sizes) if one not in known)
        for name, values in seen["ints"].items():
            ints = self._ints.setdefault(name, [])
            ints.extend(one for one in values if one not in ints)

    def is_symbol(self, value: int, source: Source) -> bool:
        """Whether this integer argument becomes a symbol."""
        seen = self._ints.setdefault(source.text(), [])
        choice = self._scalars.choose(value, seen, is_argument=True)
        if value not in seen:
            seen.append(value)
        return bool(choice)
