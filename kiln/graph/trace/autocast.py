"""Autocast: one cast per weight, made by the recorder.

    with torch.autocast("cpu"):              %2 = convert(%weight, dtype=bf16)
        y = F.linear(x, w)            =>     %3 = aten.mm(convert(%x), %2)
        z = F.linear(y, w)                   %4 = aten.mm(%3, %2)

torch's autocast caches the casts of leaves that require grad by the identity of the tensor, and would return fakes of
an earlier trace. So its cache is disabled while a call is recorded, and arguments that it would serve are cast before.
(Without any cache each use is cast again, which rounds gradients differently.) As in torch's cache, a cast is used
until the outermost `with` ends, also where another dtype is asked for or the weight has changed. The rest of autocast
happens in torch's own kernels, above the recording mode.
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
        self._made: dict[tuple[int, bool], tuple[FakeTensor, torch.Tensor]] = {}

    def forget(self) -> None:
        """The outermost autocast has ended."""
        self._made.clear()

    def arguments(
        self, target: Target, args: Sequence[object], kwargs: dict[str, object]
    ) -> tuple[Sequence[object], dict[str, object], bool]:
        """`args` and `kwargs`, with those cast that torch's cache would serve; and whether all others are cast, too:
        where the cache serves one of another dtype, which torch would cast again here."""
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name not in LOWERED or not torch.is_autocast_cache_enabled():
            return args, kwargs, False
        values = [*args, *kwargs.values()]
        made = [self._cast(name, value) if type(value) is FakeTensor else value for value in values]
        pairs = zip(values, made, strict=True)
        others = any([isinstance(new, torch.Tensor) and new is not old and is_other(new) for old, new in pairs])
        if others:
            made = [cast_plainly(new) if new is old else new for old, new in zip(values, made, strict=True)]
        return made[: len(args)], dict(zip(kwargs, made[len(args) :], strict=True)), others

    def _cast(self, name: str, fake: FakeTensor) -> torch.Tensor:
        kind = fake.device.type
        if not torch.is_autocast_enabled(kind) or not lowers(name, kind) or not _is_cached(fake):
            return fake
        key = id(fake), torch.is_inference_mode_enabled()
        found = self._made.get(key)
        if found is None:
            with torch.enable_grad():
                found = self._made[key] = (fake, fake.to(torch.get_autocast_dtype(kind)))
        return found[1]


def is_other(fake: torch.Tensor) -> bool:
    return fake.dtype is not torch.get_autocast_dtype(fake.device.type)


def cast_plainly(value: object) -> object:
    """As autocast casts what is in no cache."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return value
    return value.to(torch.get_autocast_dtype(value.device.type))


def _is_cached(fake: FakeTensor) -> bool:
    return fake.requires_grad and fake.is_leaf and fake.dtype is torch.float32 and not fake._is_view()
