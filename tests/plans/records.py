"""A call of a plan as a file: arguments before, results and arguments after, bit for bit.

Arguments that share memory share it again when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.tensor.content import elements

SIZES, STRIDES, OFFSET, DTYPE, STORAGE = range(5)


def snapshot(values: Sequence[Any]) -> dict[str, Any]:
    """Storages as bytes, each once; tensors as views of them; anything else as it is."""
    storages: dict[int, int] = {}
    bodies: list[torch.Tensor] = []
    rows: list[Any] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            rows.append(("value", value))
            continue
        storage = value.untyped_storage()
        number = storages.setdefault(storage.data_ptr() or -id(storage), len(bodies))
        if number == len(bodies):
            bodies.append(torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage).clone())
        layout = (tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.dtype, number)
        rows.append(("tensor", layout))
    return {"storages": bodies, "rows": rows}


def restore(saved: dict[str, Any]) -> list[Any]:
    """The values of a snapshot, in fresh memory."""
    storages = [body.clone().untyped_storage() for body in saved["storages"]]
    values: list[Any] = []
    for kind, content in saved["rows"]:
        if kind == "tensor":
            fresh = torch.empty(0, dtype=content[DTYPE])
            fresh.set_(storages[content[STORAGE]], content[OFFSET], content[SIZES], content[STRIDES])
            values.append(fresh)
        else:
            values.append(content)
    return values


def bits(value: Any) -> Any:
    """What is compared: layout and bytes of a tensor, type and value of anything else."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, repr(value)
    return str(value.dtype), tuple(value.shape), tuple(value.stride()), elements(value)
