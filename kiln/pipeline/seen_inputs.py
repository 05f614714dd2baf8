"""What sizes and numbers a function has been called with: decides, at each compile, which become symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.source import LocalSource, Source
from kiln.symbolic.policy import DimChoice, DimKind, DimPolicy, ScalarPolicy, read_marks

WHOLE = range(1 << 62)
"""Integers that may be symbols: all stages take symbols for sizes, which are not negative, and count in 64 bits."""


class SizeHistory:
    """Observed sizes and numbers by source; `choose` answers for the next compile and remembers."""

    def __init__(self, dynamic: Literal["auto", "never", "always"]) -> None:
        self._dims = DimPolicy(dynamic)
        self._parameter_dims = DimPolicy("never")
        self._scalars = ScalarPolicy(dynamic)
        self._sizes: dict[str, list[tuple[int, ...]]] = {}
        self._numbers: dict[str, list[int | float]] = {}

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
        sizes = {name: [list(one) for one in seen] for name, seen in self._sizes.items()}
        return {"sizes": sizes, "numbers": self._numbers}

    def remember(self, seen: Mapping[str, Any]) -> None:
        """What another process observed (its `seen`) was observed here too."""
        for name, sizes in seen["sizes"].items():
            known = self._sizes.setdefault(name, [])
            known.extend(one for one in map(tuple, sizes) if one not in known)
        for name, values in seen["numbers"].items():
            known_numbers = self._numbers.setdefault(name, [])
            known_numbers.extend(one for one in values if one not in known_numbers)

    def scalars(self) -> Callable[[int | float, Source], bool] | None:
        """Answers which numbers become inputs; None: none, so that nobody has to ask."""
        if not self._numbers and self._scalars.dynamic != "always":
            return None
        return self.is_symbol

    def is_symbol(self, value: int | float, source: Source) -> bool:
        """Whether this number becomes an input."""
        if not math.isfinite(value) or (isinstance(value, int) and value not in WHOLE):
            return False
        argument = type(source) is LocalSource
        if not argument and not self._numbers:
            return False
        seen = self._numbers.get(source.text(), [])
        return self._scalars.choose(value, seen, is_argument=argument).kind is DimKind.SYMBOL

    def fixed(self, guards: Iterable[Guard]) -> None:
        """A variant was made for the numbers in its guards."""
        for guard in guards:
            value = guard.expected
            if guard.kind is not GuardKind.EQUALS or isinstance(value, bool):
                continue
            if isinstance(value, int | float) and math.isfinite(value):
                seen = self._numbers.setdefault(guard.source.text(), [])
                if value not in seen:
                    seen.append(value)
