"""`tensor.data = value` as a function, for the log of torch calls.

    w.data = w.data * 2          2  function  set_data  (w, %1)

Of fakes it moves `tensor` to the storage view of `value`. The autograd state of `tensor` stays, as in eager.
"""

from __future__ import annotations

import torch

from kiln.graph.trace.fake import FakeTensor


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.data = value
    if type(tensor) is FakeTensor:
        assert type(value) is FakeTensor
        tensor.storage_view, tensor.symbols = value.storage_view, value.symbols
