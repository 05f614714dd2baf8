"""The weights of a static library: one run of bytes, each tensor at a multiple of 64.

    weights.place("fc.weight", tensor)        512: its offset; placed once

Right operands of products are stored as the panels that kernels read: [columns / panel, rows, panel], zeros at the end.
"""

from __future__ import annotations

from typing import IO, final

import torch
from torch.nn.functional import pad

from kiln.programs.static.memory import ALIGNMENT


@final
class Weights:
    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._tensors: list[torch.Tensor] = []
        self.size = 0

    def place(self, key: str, tensor: torch.Tensor) -> int:
        """The offset of the tensor's elements in row-major order."""
        if key not in self._offsets:
            self.size += -self.size % ALIGNMENT
            self._offsets[key] = self.size
            self._tensors.append(tensor)
            self.size += tensor.numel() * tensor.itemsize
        return self._offsets[key]

    def write(self, file: IO[bytes]) -> None:
        end = 0
        for tensor in self._tensors:
            file.write(bytes(-end % ALIGNMENT))
            end += -end % ALIGNMENT + tensor.numel() * tensor.itemsize
            plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            file.write(plain.numpy().tobytes())


def panels_of(matrix: torch.Tensor, panel: int) -> torch.Tensor:
    """Of [rows, columns]."""
    rows, columns = matrix.shape
    padded = pad(matrix, (0, -columns % panel))
    return padded.reshape(rows, -1, panel).permute(1, 0, 2)
