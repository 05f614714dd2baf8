"""What `DistributedDataParallel` does around a forward that was part of a region.

    y = ddp(x)        =>        the region: broadcasts of buffers, the forward        forwarded(ddp, y)

Nothing of the forward depends on the reducer, so it may be told behind the region that a forward ran.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel


def has_built_in_hook(module: DistributedDataParallel) -> bool:
    """Nothing of the Python objects tells."""
    logger = module.logger
    return logger is not None and "comm_hook" in logger._get_ddp_logging_data().strs_map


def forwarded(module: DistributedDataParallel, output: object) -> None:
    """`output` of a call of the module whose gradients are to be reduced."""
    synchronised = module.require_forward_param_sync, module.require_backward_grad_sync
    module.require_forward_param_sync = False  # the region has broadcast the buffers
    module.require_backward_grad_sync = True
    try:
        with torch.enable_grad():
            module._pre_forward(None)
            module._post_forward(output)
    finally:
        module.require_forward_param_sync, module.require_backward_grad_sync = synchronised
