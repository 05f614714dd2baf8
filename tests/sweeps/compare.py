"""One result of Kiln beside eager's: kind, shape, dtype, strides, and values against a float64 reference.

    differences(ours, eager, exact, scale)  =>  [("strides", "output 0", "(1, 3) instead of (3, 1)")]

A value may be off by three times eager's own error and some units in the last place; without a reference it may be off
by what `torch.testing.assert_close` grants. Where eager is not finite, ours is not, or it is the exact result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

ULPS = 8
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
"""Tolerances of `assert_close`: relative, absolute."""
Difference = tuple[str, str, str]
"""Kind, which result, what is different."""


def leaves(value: Any) -> list[Any]:
    """The results in nested containers, in order."""
    return tree_flatten(value)[0]


def differences(ours: Any, eager: Any, exact: Any = None, scale: float = 0.0, values: bool = True) -> list[Difference]:
    """The differences of two results; `exact`: the float64 result, if known; `scale`: magnitude of the inputs."""
    mine, theirs = leaves(ours), leaves(eager)
    if len(mine) != len(theirs):
        return [("structure", "results", f"{len(mine)} instead of {len(theirs)}")]
    true = leaves(exact)
    if len(true) != len(theirs):
        true = [None] * len(theirs)
    found = []
    for n, (left, right, reference) in enumerate(zip(mine, theirs, true, strict=True)):
        found += [(kind, f"{n}", text) for kind, text in _of_leaf(left, right, reference, scale, values)]
    return found


def _of_leaf(ours: Any, eager: Any, exact: Any, scale: float, values: bool) -> Iterator[tuple[str, str]]:
    if not isinstance(eager, Tensor) or not isinstance(ours, Tensor):
        if type(ours) is not type(eager):
            yield "structure", f"{type(ours).__name__} instead of {type(eager).__name__}"
        elif not isinstance(eager, Tensor) and values and not _equal_numbers(ours, eager):
            yield "values", f"{ours!r} instead of {eager!r}"
        return
    different = list(_of_metadata(ours, eager))
    yield from different
    if values and not any(kind in ("shape", "dtype", "structure") for kind, _ in different):
        yield from _of_values(ours.detach(), eager.detach(), exact, scale)


def _equal_numbers(ours: Any, eager: Any) -> bool:
    if isinstance(eager, (float, complex)):
        return bool(torch.isclose(torch.tensor(ours), torch.tensor(eager), rtol=1e-5, atol=1e-6, equal_nan=True))
    return bool(ours == eager)


def _of_metadata(ours: Tensor, eager: Tensor) -> Iterator[tuple[str, str]]:
    if ours.layout != eager.layout or ours.device != eager.device:
        yield "structure", f"{ours.layout} on {ours.device} instead of {eager.layout} on {eager.device}"
        return
    if ours.shape != eager.shape:
        yield "shape", f"{tuple(ours.shape)} instead of {tuple(eager.shape)}"
    if ours.dtype != eager.dtype:
        yield "dtype", f"{ours.dtype} instead of {eager.dtype}"
    if ours.requires_grad != eager.requires_grad:
        yield "requires_grad", f"{ours.requires_grad} instead of {eager.requires_grad}"
    if eager.layout == torch.strided and ours.shape == eager.shape and strides_of(ours) != strides_of(eager):
        yield "strides", f"{ours.stride()} instead of {eager.stride()} of {tuple(eager.shape)}"


def strides_of(tensor: Tensor) -> list[int]:
    """The strides that matter: those of dimensions along which there is a second element."""
    if not tensor.numel():
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def plain(tensor: Tensor) -> Tensor:
    """Dense real numbers in order."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().reshape(-1)


def _of_values(ours: Tensor, eager: Tensor, exact: Any, scale: float) -> Iterator[tuple[str, str]]:
    mine, theirs = plain(ours), plain(eager)
    if not theirs.is_floating_point():
        wrong = mine != theirs
        if wrong.any():
            yield "values", _worst(mine, theirs, wrong.to(torch.float32), wrong)
        return
    if torch.equal(mine, theirs):
        return
    mine, theirs, eps = mine.double(), theirs.double(), torch.finfo(theirs.dtype).eps
    finite = theirs.isfinite()
    odd = ((mine.isnan() != theirs.isnan()) | (mine != theirs) & (mine.isinf() | theirs.isinf())) & ~(
        mine.isnan() & theirs.isnan()
    )
    reference = _reference(exact, eager)
    if reference is not None:  # eager overflows on the way to a finite result: ours may be right
        odd &= ~((mine - reference).abs() <= eps * ULPS * reference.abs())
    if odd.any():
        yield "nonfinite", _worst(mine, theirs, odd.to(torch.float32), odd)
    finite &= mine.isfinite()
    error = (mine - theirs).abs()
    if reference is None:
        relative, absolute = TOLERANCES.get(eager.dtype, (1e-5, 1e-5))
        bound = absolute + relative * theirs.abs()
    else:
        known = finite & reference.isfinite()
        largest = theirs[known].abs().max().item() if known.any() else 0.0
        own = (theirs - reference)[known].abs().max().item() if known.any() else 0.0
        bound = 3 * own + eps * (ULPS * theirs.abs() + largest + 2 * scale)
        error = torch.where(known, torch.minimum(error, (mine - reference).abs()), error)
    wrong = finite & (error > bound)
    if wrong.any():
        yield "values", _worst(mine, theirs, error, wrong)


def _reference(exact: Any, eager: Tensor) -> Tensor | None:
    """The float64 result as `plain` numbers, where it is one of the same shape."""
    if not isinstance(exact, Tensor) or exact.shape != eager.shape or exact.is_complex() != eager.is_complex():
        return None
    if exact.dtype not in (torch.float64, torch.complex128):
        return None
    return plain(exact.detach())


def _worst(mine: Tensor, theirs: Tensor, error: Tensor, wrong: Tensor) -> str:
    at = int(torch.where(wrong, error, torch.full_like(error, -1.0)).argmax())
    count = int(wrong.sum())
    return f"{mine[at].item()!r} instead of {theirs[at].item()!r} at {at}; {count} of {theirs.numel()} are wrong"


def scale_of(tensors: Sequence[Tensor]) -> float:
    """The largest number among floating-point tensors."""
    found = 0.0
    for tensor in tensors:
        if tensor.layout == torch.strided and (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
            sizes = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64).abs()
            sizes = sizes[sizes.isfinite()]
            found = max(found, sizes.max().item() if sizes.numel() else 0.0)
    return found
