"""Autocast: one cast per version of a weight, made by the recorder.

    with torch.autocast("cpu"):              %2 = convert(%weight, dtype=bf16)
        y = F.linear(x, w)            =>     %3 = aten.mm(convert(%x), %2)
        z = F.linear(y, w)                   %4 = aten.mm(%3, %2)

torch's autocast caches the casts of leaves that require grad by the identity of the tensor, and would return fakes of
an earlier trace. So its cache is disabled while a call is recorded, and arguments that it would serve are cast before.
(Without any cache each use is cast again, which rounds gradients differently.) The rest of autocast happens in torch's
own kernels, above the recording mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import final

import torch

from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import Target

is_any_autocast_enabled = torch._C._is_any_autocast_enabled

# fmt: off
LOWERED = frozenset({
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "chain_matmul", "multi_dot",
    "__matmul__", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "scaled_dot_product_attention",
})
"""Functions whose arguments autocast casts to lower precision on some device."""
# fmt: on
KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


@lru_cache(maxsize=256)
def lowers(name: str, kind: str) -> bool:
    """Whether autocast for this device type has a kernel for the function; on CPUs it has none for `mv`."""
    base = f"aten::{OVERLOADS.get(name, name)}"
    return kind not in KEYS or torch._C._dispatch_has_kernel_for_dispatch_key(base, KEYS[kind])


OVERLOADS = {
    "__matmul__": "matmul",
    "multi_dot": "linalg_multi_dot",
    "conv_transpose2d": "conv_transpose2d.input",
    "conv_transpose3d": "conv_transpose3d.input",
}
"""Operators with another name than their function."""


@contextmanager
def no_autocast() -> Iterator[None]:
    """What is recorded of a backward that runs later, behind the `with` in which the region is called."""
    kinds = [kind for kind in KEYS if torch.is_autocast_enabled(kind)]
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)


@final
class Casts:
    """The casts of a recording. Fakes are kept alive, so that their ids stay unique."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, bool, torch.dtype], tuple[FakeTensor, torch.Tensor]] = {}

    def arguments(self, target: Target, args: Sequence[object]) -> Sequence[object]:
        """`args`, with those cast that torch's cache would serve."""
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name not in LOWERED or not torch.is_autocast_cache_enabled():
            return args
        return [self._cast(name, arg) if type(arg) is FakeTensor else arg for arg in args]

    def _cast(self, name: str, fake: FakeTensor) -> torch.Tensor:
        kind = fake.device.type
        if not torch.is_autocast_enabled(kind) or not lowers(name, kind) or not _is_cached(fake):
            return fake
        dtype = torch.get_autocast_dtype(kind)
        key = id(fake), fake._version, torch.is_grad_enabled(), dtype
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = (fake, fake.to(dtype))
        return found[1]


def _is_cached(fake: FakeTensor) -> bool:
    return fake.requires_grad and fake.is_leaf and fake.dtype is torch.float32 and not fake._is_view()
