"""A tensor as bytes, in its own layout.

decode_tensor(encode_tensor(x.t()))      the same elements, sizes and strides, in fresh memory
"""

from __future__ import annotations

import json

import torch

from kiln.tensor.content import elements
from kiln.tensor.dtypes import DTYPE_NAMES, DTYPES_BY_NAME


def encode_tensor(tensor: torch.Tensor) -> bytes:
    """Dtype, sizes, strides and device as JSON, then the elements of its memory from first to last."""
    head = {"dtype": DTYPE_NAMES[tensor.dtype], "sizes": list(tensor.shape), "strides": list(tensor.stride())}
    if tensor.device.type != "cpu":
        head["device"] = str(tensor.device)
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "little") + text + elements(flat_view(tensor))


def decode_tensor(data: bytes) -> torch.Tensor:
    length = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + length])
    dtype = DTYPES_BY_NAME[head["dtype"]]
    body = bytearray(data[4 + length :])
    flat = torch.frombuffer(body, dtype=dtype) if body else torch.empty(0, dtype=dtype, device="cpu")
    return flat.clone().to(head.get("device", "cpu")).as_strided(head["sizes"], head["strides"])


def span_of(tensor: torch.Tensor) -> int:
    """Elements from the first to the last in memory, gaps included; expanded dimensions count once."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of `tensor` from its first element to its last."""
    return tensor.detach().as_strided((span_of(tensor),), (1,))
