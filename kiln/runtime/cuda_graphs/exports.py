"""Results that leave torch get memory of their own first.

    y = run(x)                      y stands in a graph's memory
    cupy.from_dlpack(y)             y.__dlpack__() moves it out, then tells its pointer

Held results are moved when their graph is replayed again, which torch's tensors follow and a pointer outside torch
would not. So where torch tells a pointer to others by protocol (DLPack, the CUDA array interface), a result of a graph
is moved before. `watch_exports` puts this in front of the two protocols of `torch.Tensor`, when a graph is recorded.
What `Tensor.data_ptr()` gave is, as in any program, good for work that is issued before the next call.
"""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import Any

import torch

from kiln.native._executor import give_memory, is_lent
from kiln.runtime.cuda_graphs.recording import plainly


def move_out(tensor: torch.Tensor) -> None:
    """Give a result of a graph, and all that shares its storage, memory of its own."""
    if not is_lent(tensor):
        return
    with plainly():
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        give_memory(tensor, memory.clone())


@lru_cache(maxsize=1)
def watch_exports() -> None:
    """From now on `__dlpack__` and `__cuda_array_interface__` of tensors call `move_out`; once per process."""
    tell = torch.Tensor.__dlpack__
    described: Any = torch.Tensor.__cuda_array_interface__

    @wraps(tell)
    def dlpack(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        move_out(self)
        return tell(self, *args, **kwargs)

    def array_interface(self: torch.Tensor) -> Any:
        move_out(self)
        return described.__get__(self)

    torch.Tensor.__dlpack__ = dlpack  # type: ignore[method-assign,assignment]
    torch.Tensor.__cuda_array_interface__ = property(array_interface, doc=described.__doc__)  # type: ignore[assignment]


__all__ = ["move_out", "watch_exports"]
