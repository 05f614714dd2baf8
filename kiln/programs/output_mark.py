"""What stands for an output of the graph while the results of a captured call are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from kiln.programs.call.errors import UnknownResult


@final
class OutputMark:
    """Stands for an output of the region while the results are put together; no dataclass, which would be a container.

    `sizes`: of a tensor; `value`: the symbol for its number, if the graph reads it; `read` makes one of a float.
    """

    def __init__(
        self,
        number: int,
        sizes: tuple[int | torch.SymInt, ...],
        value: torch.SymInt | None = None,
        read: Callable[[], torch.SymFloat] | None = None,
    ) -> None:
        self.number, self.sizes, self.value, self.read = number, sizes, value, read

    def size(self, dim: int) -> int | torch.SymInt:
        return self.sizes[dim]

    def item(self) -> torch.SymInt | torch.SymFloat:
        if self.value is None and self.read is None:
            raise UnknownResult(function="the program", type="number read from a tensor")
        return self.value if self.value is not None else self.read()  # type: ignore[misc]

    def detach(self) -> OutputMark:
        return self

    def requires_grad_(self) -> OutputMark:
        return self
