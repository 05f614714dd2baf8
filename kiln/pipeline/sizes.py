"""What sizes and numbers a function has been called with: decides, at each compile, which become symbols."""

from __future__ import annotations

from typing import Literal

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
        seen = self._sizes.setdefault(source.text(), [])
        policy = self._parameter_dims if isinstance(tensor, torch.nn.Parameter) else self._dims
        choice = policy.choose(sizes, seen, read_marks(tensor))
        if sizes not in seen:
            seen.append(sizes)
        return choice

    def is_symbol(self, value: int, source: Source) -> bool:
        """Whether this integer argument becomes a symbol."""
        seen = self._ints.setdefault(source.text(), [])
        choice = self._scalars.choose(value, seen, is_argument=True)
        if value not in seen:
            seen.append(value)
        return bool(choice)
