"""What `DistributedDataParallel` does around a forward that was part of a region.

    y = ddp(x)        =>        the region: broadcasts of buffers, the forward        forwarded(ddp, y, True, True)

Nothing of the forward depends on the reducer, so it may be told behind the region that a forward ran.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel


def forwarded(module: DistributedDataParallel, output: object, grad: bool, sync: bool) -> None:
    """`grad`, `sync`: whether gradients were on, and to be reduced, when the program called the module."""
    before = module.require_backward_grad_sync
    module.require_backward_grad_sync = sync
    module.require_forward_param_sync = False  # the region has broadcast the buffers
    try:
        with torch.set_grad_enabled(grad):
            module._pre_forward(None)
            module._post_forward(output)
    finally:
        module.require_backward_grad_sync = before
