"""What `DistributedDataParallel` does around a forward that was part of a region.

    y = ddp(x)        =>        the region: broadcasts of buffers, the forward        forwarded(ddp, y)

Nothing of the forward depends on the reducer, so it may be told behind the region that a forward ran.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

LAYOUTS: WeakKeyDictionary[object, tuple[tuple[int, ...], ...]] = WeakKeyDictionary()
"""By reducer: a guard asks in each call, and torch makes tensors to answer."""


def has_built_in_hook(module: DistributedDataParallel) -> bool:
    """Nothing of the Python objects tells."""
    logger = module.logger
    return logger is not None and "comm_hook" in logger._get_ddp_logging_data().strs_map


def bucket_layout(module: DistributedDataParallel) -> tuple[tuple[int, ...], ...]:
    """The places among `_module_parameters` of the parameters in each bucket of the reducer, which has settled them."""
    reducer = module.reducer
    if reducer not in LAYOUTS:
        places = {id(parameter): place for place, parameter in enumerate(module._module_parameters)}
        buckets = sorted(reducer._get_zeros_like_grad_buckets(), key=lambda bucket: bucket.index())
        LAYOUTS[reducer] = tuple([tuple([places[id(each)] for each in bucket.parameters()]) for bucket in buckets])
    return LAYOUTS[reducer]


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
