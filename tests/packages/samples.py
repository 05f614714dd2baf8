"""Programs that are packaged, and copies of packages with changes in them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kiln
from kiln.packages.archive import PackageWriter
from kiln.packages.manifest import MANIFEST, SIGNATURE

ROWS = kiln.Dim("rows", min=1, max=64)


class Decoder(nn.Module):
    """Attention over a cache of keys and values, which each call writes."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(16, 8))
        self.register_buffer("values", torch.zeros(16, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        query, key, value = self.mix(x).chunk(3, -1)
        self.keys.index_copy_(0, position, key)
        self.values.index_copy_(0, position, value)
        allowed = torch.arange(16) <= position
        scores = (query @ self.keys.T).masked_fill(~allowed, float("-inf"))
        return scores.softmax(-1) @ self.values


def shared(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Changes an argument; results are views of it, of each other, and an argument."""
    x.mul_(2)
    tail = x[1:]
    return tail, tail[0], y, x


def counted(x: Tensor) -> tuple[Tensor, int, int]:
    """Sizes that data decide."""
    n = x.sum().item()
    assert isinstance(n, int)
    made = torch.arange(n) * 2
    return made, n, made.shape[0] * 2 + 1


def decoder(model: Decoder) -> kiln.Program:
    return kiln.export(model, (torch.randn(1, 8), torch.tensor([0])))


def sharing() -> kiln.Program:
    return kiln.export(shared, (torch.ones(4, 3), torch.ones(2)), dynamic_shapes={"x": {0: kiln.Dim("n", min=2)}})


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def repacked(path: Path, changed: dict[str, bytes], to: Path) -> Path:
    """The package with other members; the digests in its manifest stay."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        writer = PackageWriter(archive)
        for name, data in {**members(path), **changed}.items():
            writer.add_bytes(name, data)
    to.write_bytes(file.getvalue())
    return to


def with_manifest(path: Path, document: Any, to: Path) -> Path:
    return repacked(path, {MANIFEST: json.dumps(document).encode()}, to)


def manifest_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(members(path)[MANIFEST])
    return found


def without_signature(path: Path, to: Path) -> Path:
    kept = {name: data for name, data in members(path).items() if name != SIGNATURE}
    with zipfile.ZipFile(to, "w") as archive:
        writer = PackageWriter(archive)
        for name, data in kept.items():
            writer.add_bytes(name, data)
    return to
