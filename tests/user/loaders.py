"""What a worker process of a DataLoader imports."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import kiln


@kiln.compile
def decorated(batch: Sequence[Tensor]) -> tuple[Tensor, bool]:
    return torch.stack(list(batch)) * 2, kiln.is_compiling()


def plain(batch: Sequence[Tensor]) -> tuple[Tensor, bool]:
    return torch.stack(list(batch)) * 3, kiln.is_compiling()


wrapped = kiln.compile(plain, dynamic=True, options={"variants": 3})


class Collate:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @kiln.compile
    def method(self, batch: Sequence[Tensor]) -> tuple[Tensor, bool]:
        return torch.stack(list(batch)) * self.factor, kiln.is_compiling()
