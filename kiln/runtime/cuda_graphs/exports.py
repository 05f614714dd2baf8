"""Gives results that leave torch memory of their own.

    y = run(x)                      y is in a graph's memory
    cupy.from_dlpack(y)             y.__dlpack__() first moves it to other memory

When a graph is replayed, results that are still held get other memory: torch's tensors follow, a pointer outside torch
would not. So `watch_exports`, called before the first recording, wraps the functions by which torch exports pointers
(DLPack, the CUDA array interface, memory shared with another process): they move results of graphs first. Not covered:
`to_dlpack` if its name was imported earlier, and DLPack's exchange through C functions (`__dlpack_c_exchange_api__`).
Pointers from these, and from `Tensor.data_ptr()`, are valid for work that is issued before the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch

from kiln.native._executor import give_memory, is_lent
from kiln.runtime.cuda_graphs.recording import plainly

Export = Callable[..., object]


def move_out(tensor: torch.Tensor) -> None:
    """Give a result of a graph, and all that shares its storage, memory of its own."""
    if is_lent(tensor):
        move_storage(tensor.untyped_storage())


def move_storage(storage: torch.UntypedStorage) -> None:
    """The same, for storages."""
    with plainly():
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        if is_lent(memory):
            give_memory(memory, memory.clone())


def moved_first(export: Export, move: Callable[[Any], None]) -> Export:
    """`export(held, ...)`, after `move(held)`."""

    @wraps(export)
    def moving(held: Any, *args: object, **kwargs: object) -> object:
        move(held)
        return export(held, *args, **kwargs)

    return moving


@lru_cache(maxsize=1)
def watch_exports() -> None:
    """Wrap what exports pointers; once per process."""
    described: Any = torch.Tensor.__cuda_array_interface__
    array_interface: object = property(moved_first(described.__get__, move_out), doc=described.__doc__)
    dlpack: Any = torch.utils.dlpack
    to_dlpack = moved_first(dlpack.to_dlpack, move_out)
    watched: tuple[tuple[object, str, object], ...] = (
        (torch.Tensor, "__dlpack__", moved_first(torch.Tensor.__dlpack__, move_out)),
        (torch.Tensor, "__cuda_array_interface__", array_interface),
        (torch, "to_dlpack", to_dlpack),
        (dlpack, "to_dlpack", to_dlpack),
        (torch.UntypedStorage, "_share_cuda_", moved_first(torch.UntypedStorage._share_cuda_, move_storage)),
    )
    for owner, name, replaced in watched:
        setattr(owner, name, replaced)
