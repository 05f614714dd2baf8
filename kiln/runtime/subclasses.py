"""Tensors of subclasses in transformed code: wrappers are built bare, before their attributes are set, and torch-level
graphs get plain tensors, since what `__torch_function__` does is in the graph already."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

_make_wrapper = cast(Callable[..., torch.Tensor], torch.Tensor._make_wrapper_subclass)


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its class, in the same memory."""
    return tensor.as_subclass(torch.Tensor)


def make_wrapper(
    cls: type,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A wrapper of `cls`, which has metadata of its own and no memory."""
    return _make_wrapper(cls, sizes, strides=strides, storage_offset=offset, dtype=dtype, device=device)
