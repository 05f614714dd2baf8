"""`flex_attention` as plain Python, interpreted in its place: the score function is traced between two products.

    flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h, i - j])

Without one, and if only the result is asked for, it is `scaled_dot_product_attention`, which has fused kernels.
(In eager mode the operator calls torch.compile.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, _get_mod_type, _ModificationType
from torch.nn.functional import scaled_dot_product_attention

from kiln.capture.interpreter.transform_polyfills import index_by_tensors


class IndexByTensors(torch.overrides.TorchFunctionMode):
    """`bias[h, i]` with tensors of rank 0 looks elements up, without asking for their values."""

    def __torch_function__(  # type: ignore[override]
        self,
        function: Callable[..., object],
        types: tuple[type, ...],
        args: tuple[Tensor, Tensor | int | tuple[Tensor | int, ...]],
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return index_by_tensors(self, function, types, args, kwargs)


def everywhere(function: Callable[..., Tensor], *first: int) -> Callable[..., Tensor]:
    """`function` of single elements, of all batches, heads, queries and keys."""
    for place in (3, 2, 1, 0):
        dims = tuple([0 if number == place else None for number in range(4)])
        function = torch.vmap(function, in_dims=(*first, *dims))
    return function


def create_mask(
    mod_fn: Callable[..., Tensor],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
) -> Tensor:
    """The mask as a tensor; of a score function, where the score is not -inf."""
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    sizes = [1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN]
    places = [torch.arange(0, size, device=device) for size in sizes]
    with IndexByTensors():
        if _get_mod_type(mod_fn) == _ModificationType.SCORE_MOD:
            return ~torch.isneginf(everywhere(mod_fn, 0)(torch.zeros(sizes, device=device), *places))
        return everywhere(mod_fn)(*places)


def annotate(annotation_dict: dict[str, object]) -> nullcontext[None]:
    """What torch's own tracer reads."""
    return nullcontext()


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: object = None,
    *,
    return_aux: AuxRequest | None = None,
) -> object:
    require_fitting(query, key, value, block_mask, enable_gqa)
    if return_lse and return_aux is not None:
        raise ValueError("Cannot specify both return_lse and return_aux.")
    if return_aux is not None and return_aux.max_scores and query.device.type in ("cpu", "mps"):
        raise NotImplementedError("Returning max scores is not supported on CPU/MPS.")
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    key, value = [x.expand((query.size(0), *x.shape[1:])) for x in (key, value)]
    sizes = (*query.shape[:3], key.size(2))
    places = [torch.arange(size, device=query.device) for size in sizes]
    mask = None
    with IndexByTensors():
        if block_mask is not None:
            mask = everywhere(block_mask.mask_mod)(*places)
    if score_mod is None and not return_lse and return_aux is None:
        return like_query(scaled_dot_product_attention(query, key, value, mask, scale=scale), query)
    precise = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(precise) @ key.to(precise).transpose(-2, -1) * scale
    if score_mod is not None:
        with IndexByTensors():
            scores = everywhere(score_mod, 0)(scores, *places)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    weights = torch._safe_softmax(scores, -1)
    out = like_query(weights.to(query.dtype) @ value.to(query.dtype), query)
    if return_aux is not None:
        return out, AuxOutput(
            lse=log_sums(scores) if return_aux.lse else None,
            max_scores=scores.amax(-1) if return_aux.max_scores else None,
        )
    return (out, log_sums(scores)) if return_lse else out


def log_sums(scores: Tensor) -> Tensor:
    """Of a row without keys: -inf."""
    return torch.where((scores == -math.inf).all(-1), -math.inf, scores.logsumexp(-1))


def like_query(out: Tensor, query: Tensor) -> Tensor:
    """In memory in the order of the dimensions of the query, the last one innermost."""
    order = sorted(range(3), key=query.stride, reverse=True)
    return out.permute(*order, 3).contiguous().permute(*[order.index(dim) for dim in range(3)], 3)


def require_fitting(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask | None, enable_gqa: bool) -> None:
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if query.dtype != key.dtype or query.dtype != value.dtype:
        raise ValueError("Expected query, key, and value to have the same dtype")
    if query.size(-1) != key.size(-1):
        raise ValueError(f"Expect query and key to have the same embedding dimension: {query.shape}, {key.shape}")
    heads = f"Hq={query.size(1)} and Hkv={key.size(1)}"
    if not enable_gqa and query.size(1) != key.size(1):
        raise ValueError(f"Expect query and key/value to have the same number of heads but got {heads}.")
    if query.size(1) % key.size(1):
        raise ValueError(f"Expect number of query heads to be a multiple of kv heads for GQA but got {heads}.")
    if query.size(0) != key.size(0) and (block_mask is None or key.size(0) != 1):
        raise ValueError("Expect query and key/value to have the same batch size")
    if block_mask is not None and block_mask.seq_lengths != (query.size(2), key.size(2)):
        lengths = (query.size(2), key.size(2))
        raise ValueError(f"block_mask was created for {block_mask.seq_lengths} but the lengths are {lengths}.")
