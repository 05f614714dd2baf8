"""A view of a tensor's memory with sizes, strides, an offset and a dtype of its own.

    strided_view(f32[4, 2], torch.complex64, (4,), (1,), 0)     view_as_complex, with its gradient
    strided_view(f32[4, 2], torch.int32, (2, 4), (1, 2), 0)     the bytes; shares the version, has no gradient

Results that share memory with an input or another result are rebuilt so; `view_of` of the native executor is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def strided_view(
    base: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> torch.Tensor:
    """`offset` counts elements of `dtype` from the start of the storage."""
    if dtype is base.dtype:
        return base.as_strided(sizes, strides, offset)
    if base.is_complex() and dtype is base.dtype.to_real():
        return torch.view_as_real(base).as_strided(sizes, strides, offset)
    if dtype.is_complex and base.dtype is dtype.to_real():
        pairs, steps = (*sizes, 2), (*[2 * stride for stride in strides], 1)
        return torch.view_as_complex(base.as_strided(pairs, steps, 2 * offset))
    elements = base.untyped_storage().nbytes() // dtype.itemsize * dtype.itemsize // base.element_size()
    whole = base.detach().as_strided((elements,), (1,), 0)
    return whole.view(dtype).as_strided(sizes, strides, offset)
