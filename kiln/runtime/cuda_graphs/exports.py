"""Results that leave torch get memory of their own first.

    y = run(x)                      y stands in a graph's memory
    cupy.from_dlpack(y)             y.__dlpack__() moves it out, then tells its pointer

Held results are moved when their graph is replayed again, which torch's tensors follow and a pointer outside torch
would not. So where torch tells a pointer to others (DLPack, the CUDA array interface, memory shared with another
process), a result of a graph is moved before. `watch_exports` puts this in front of these, when a graph is recorded.
Not seen: `to_dlpack` where its name was imported before, and DLPack's exchange through C functions
(`__dlpack_c_exchange_api__`). What these and `Tensor.data_ptr()` gave is, as in any program, good for work that is
issued before the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch

from kiln.native._executor import give_memory, is_lent
from kiln.runtime.cuda_graphs.recording import plainly

Tells = Callable[..., object]


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


def moved_first(tell: Tells, move: Callable[[Any], None]) -> Tells:
    """`tell(held, ...)`, after `move(held)`."""

    @wraps(tell)
    def moving(held: Any, *args: object, **kwargs: object) -> object:
        move(held)
        return tell(held, *args, **kwargs)

    return moving


@lru_cache(maxsize=1)
def watch_exports() -> None:
    """From now on what tells a pointer moves results of graphs first; once per process."""
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
