"""Inputs that are read at the beginning, since something writes to their memory before the program reads them.

row = table[0]                    (outside)
row.copy_(x)                      the memory of `table` has been written in part
return table * 2                  the capture begins again, with `table` as an input from the beginning
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from types import CodeType
from typing import final

import torch

from kiln.capture.interpreter.core import CaptureState
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.inputs import WRITTEN
from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass


class ReadEarlier(Exception):
    """A tensor from outside is read too late."""

    codes: frozenset[CodeType] = frozenset()

    def __init__(self, real: torch.Tensor, source: Source) -> None:
        super().__init__(source)
        self.real, self.source = real, source


@contextmanager
def reading(real: torch.Tensor, source: Source) -> Iterator[None]:
    """Make a tensor an input. Raises ReadEarlier."""
    try:
        yield
    except UnsupportedInput as problem:
        if problem.details["reason"] != WRITTEN:
            raise
        raise ReadEarlier(real, source) from problem


@final
@dataclass
class EarlyInputs:
    """What earlier attempts found."""

    found: list[tuple[torch.Tensor, Source]] = field(default_factory=list)

    def read(self, s: CaptureState) -> None:
        for real, source in self.found:
            s.wrap(real, source)
