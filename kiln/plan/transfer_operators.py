"""The operator that copies a tensor to the host, or back to a device, while kernels run.

kiln_transfer.started(x, "cpu")        memory that is filled on a stream of its own: pinned, with the strides of x
kiln_transfer.started(y, "cuda:0")     the way back

As a collective, a transfer is ended by `wait_tensor`: the current stream waits for it then, the host only where a hook
of the program gets what is saved. Until then x keeps its memory, for which a plan provides.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import final

import torch
import torch.distributed as dist

NAMESPACE = "kiln_transfer"
TRANSFER = f"{NAMESPACE}.started.default"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define("started(Tensor x, Device device) -> Tensor")


def can_transfer() -> bool:
    """Whether torch has what waits: a build without `torch.distributed` has not."""
    return dist.is_available()


def started(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    gpu = x.device if device.type == "cpu" else device
    if gpu.type != "cuda":
        made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)
        return ended_by_wait(made.copy_(x), Transfer())
    pinned = device.type == "cpu"
    made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device, pin_memory=pinned)
    stream = stream_of(gpu, pinned)
    stream.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(stream):
        made.copy_(x, non_blocking=True)
    (x if pinned else made).record_stream(stream)  # an error in front of the wait would free it under the copy
    return ended_by_wait(made, Transfer(gpu, stream.record_event(), to_host=pinned))


LIBRARY.impl("started", started, "CompositeExplicitAutograd")


@lru_cache(maxsize=64)
def stream_of(device: torch.device, to_host: bool) -> torch.cuda.Stream:
    """One for each way: the link carries both at a time."""
    return torch.cuda.Stream(device)


if dist.is_available():

    @final
    class Transfer(dist.Work):
        """What `wait_tensor` finds for a tensor; on a CPU the copy has been made."""

        def __init__(
            self, device: torch.device | None = None, event: torch.cuda.Event | None = None, to_host: bool = False
        ) -> None:
            super().__init__()
            self.device = device
            self.event = event
            self.to_host = to_host

        def wait(self, timeout: timedelta | None = None) -> bool:
            if self.event is None:
                return True
            if self.to_host and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
                self.event.synchronize()  # a hook of the program may read what is saved at once, on the host
            else:
                self.event.wait(torch.cuda.current_stream(self.device))
            return True


def ended_by_wait(made: torch.Tensor, work: Transfer) -> torch.Tensor:
    torch._C._distributed_c10d._register_work(made, work)
    return made
