"""The attributes and methods of tensors by what a frame does with them.

x.shape     metadata of the fake tensor, no torch call
x.T         a torch call
x.item()    reads values
"""

from __future__ import annotations

import torch

from kiln.capture.interpreter.core import Handler


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


METADATA_ATTRIBUTES = names(
    "shape dtype device ndim requires_grad layout is_leaf itemsize nbytes names is_cuda is_cpu is_meta "
    "is_xpu is_mps is_vulkan is_ort is_xla is_sparse is_sparse_csr is_quantized is_nested is_mkldnn"
) & frozenset(dir(torch.Tensor))
METADATA_METHODS = names(
    "size dim stride numel nelement ndimension is_floating_point is_complex is_contiguous element_size storage_offset "
    "get_device is_signed is_conj is_neg is_inference has_names __len__"
)
RECORDED_ATTRIBUTES = names("T mT H mH real imag grad data")
TRUTH_METHODS = names("item __bool__")
PLAIN_METHODS = names("item __int__ __float__ __index__ __complex__")
"""Their result is a Python number."""
NUMBER_METHODS = names("item __int__ __float__ __index__")
WHOLE_METHODS = names("__int__ __index__")
VALUE_METHODS = PLAIN_METHODS | names(
    "__bool__ __array__ data_ptr const_data_ptr untyped_storage storage is_shared is_pinned"
)
"""They read values, or ask for memory."""
FILLS = names("uniform_ normal_ random_ exponential_ bernoulli_ cauchy_ log_normal_ geometric_")
"""They draw what they write."""
HANDLED_METHODS = {
    name: getattr(torch.Tensor, name)
    for name in FILLS
    | names("register_hook retain_grad requires_grad_ numpy as_subclass backward equal allclose is_nonzero tolist")
    | names("new_tensor to_sparse _is_view")
}
"""Methods with a handler."""
PYTHON_METHODS: dict[str, Handler] = {}
"""Methods of torch that are Python functions (`builtins/torch_bodies.py`)."""
IN_PLACE = frozenset(
    f"{mark}{name}{mark}"
    for mark in ("", "__")
    for name in (
        "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor",
    )
)  # fmt: skip
"""Names of operators, and of the methods behind them, that write to their first operand."""
