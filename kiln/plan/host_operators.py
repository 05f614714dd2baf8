"""Operators of a plan that ask the host.

kiln_host.clock("perf_counter", [y])      the time as a tensor of rank 0, once `y` is computed
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

NAMESPACE = "kiln_host"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define("clock(str name, Tensor[] after) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
CLOCK = f"{NAMESPACE}.clock.default"


def dtype_of(clock: str) -> torch.dtype:
    return torch.int64 if clock.endswith("_ns") else torch.float64


def clock(name: str, after: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor(getattr(time, name)(), dtype=dtype_of(name), device="cpu")


LIBRARY.impl("clock", clock, "CompositeExplicitAutograd")
