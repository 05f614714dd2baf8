"""Reductions, moves, norms, losses, images, attention, randomness: forward and backward against eager."""

import pytest
import torch
import torch.nn.functional as F

from tests.trace.harness import check

cl = torch.channels_last


def r(*shape):
    return torch.randn(shape)


def g(*shape):
    return torch.randn(shape).requires_grad_()


def ints(*shape, high=5):
    return torch.randint(0, high, shape)


def images(*shape):
    return torch.randn(shape).to(memory_format=cl)


REDUCTIONS = {
    "sum": (torch.sum, [g(3, 4)]),
    "sum dim": (lambda x: x.sum(1), [g(3, 4)]),
    "sum dims keep": (lambda x: x.sum((0, -1), keepdim=True), [g(3, 4, 5)]),
    "sum ints": (torch.sum, [ints(3, 4)]),
    "sum bools": (lambda x: x.sum(0), [ints(3, 4) > 2]),
    "sum dtype": (lambda x: x.sum(0, dtype=torch.float64), [r(3, 4)]),
    "sum rank 0": (torch.sum, [g()]),
    "sum transposed": (lambda x: x.sum(0), [r(3, 4, 5).permute(2, 0, 1)]),
    "prod": (torch.prod, [g(3, 4)]),
    "prod dim": (lambda x: x.prod(1), [g(3, 4)]),
    "mean": (torch.mean, [g(3, 4)]),
    "mean dim": (lambda x: x.mean(-1, keepdim=True), [g(3, 4)]),
    "mean dims": (lambda x: x.mean([2, 3]), [images(2, 3, 4, 5).requires_grad_()]),
    "var": (torch.var, [g(3, 4)]),
    "var dim": (lambda x: x.var(1, unbiased=False), [g(3, 4)]),
    "std": (lambda x: x.std(1, keepdim=True), [g(3, 4)]),
    "var_mean": (lambda x: torch.var_mean(x, 1), [g(3, 4)]),
    "std_mean": (lambda x: torch.std_mean(x, (0, 1)), [g(3, 4)]),
    "amax": (lambda x: x.amax(1), [g(3, 4)]),
    "amin": (lambda x: x.amin((0, 1)), [g(3, 4)]),
    "max": (torch.max, [g(3, 4)]),
    "min": (torch.min, [g(3, 4)]),
    "max dim": (lambda x: x.max(1), [g(3, 4)]),
    "min dim keep": (lambda x: x.min(0, keepdim=True), [g(3, 4)]),
    "argmax": (torch.argmax, [r(3, 4)]),
    "argmax dim": (lambda x: x.argmax(1), [r(3, 4)]),
    "argmin keep": (lambda x: x.argmin(0, keepdim=True), [r(3, 4)]),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), [r(3, 4)]),
    "any": (torch.any, [ints(3, 4) > 3]),
    "any dim": (lambda x: x.any(1), [ints(3, 4)]),
    "all dim keep": (lambda x: x.all(1, keepdim=True), [ints(3, 4)]),
    "all dims": (lambda x: torch.all(x, (0, 1)), [ints(3, 4)]),
    "all uint8": (torch.all, [ints(3, 4).to(torch.uint8)]),
    "count_nonzero": (lambda x: torch.count_nonzero(x, 1), [ints(3, 4)]),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), [g(3, 4)]),
    "logsumexp inf": (lambda x: torch.logsumexp(x, 1), [torch.full((2, 3), -float("inf"))]),
    "norm": (torch.linalg.vector_norm, [g(3, 4)]),
    "norm 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=1), [g(3, 4)]),
    "norm inf": (lambda x: torch.linalg.vector_norm(x, float("inf")), [g(3, 4)]),
    "norm 3": (lambda x: x.norm(3, dim=0), [g(3, 4)]),
    "norm 0": (lambda x: torch.linalg.vector_norm(x, 0), [r(3, 4)]),
    "normalize": (lambda x: F.normalize(x, dim=1), [g(3, 4)]),
    "cumsum": (lambda x: x.cumsum(1), [g(3, 4)]),
    "cumsum ints": (lambda x: x.cumsum(0), [ints(3, 4)]),
    "cumprod": (lambda x: x.cumprod(1), [r(3, 4)]),
    "cummax": (lambda x: x.cummax(1), [g(3, 4)]),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), [g(3, 4)]),
    "nansum": (torch.nansum, [torch.tensor([1.0, float("nan")])]),
    "nanmean": (torch.nanmean, [torch.tensor([1.0, float("nan")])]),
    "trace": (torch.trace, [g(4, 4)]),
    "median": (lambda x: x.median(1), [g(3, 5)]),
    "kthvalue": (lambda x: x.kthvalue(2, 1), [g(3, 5)]),
    "mode": (lambda x: x.mode(1), [r(3, 5)]),
    "cosine": (lambda x, y: F.cosine_similarity(x, y), [g(3, 4), g(3, 4)]),
    "dist": (torch.dist, [g(3, 4), g(3, 4)]),
    "cdist": (torch.cdist, [r(3, 4), r(5, 4)]),
    "cdist of many points": (torch.cdist, [g(30, 4), g(27, 4)]),
    "cdist of many points in batches": (torch.cdist, [g(2, 30, 4), g(2, 27, 4)]),
    "cdist batches": (lambda x, y: torch.cdist(x, y, p=1.0), [g(1, 3, 4), g(2, 1, 5, 4)]),
    "max of truth": (lambda x: x.max(1), [ints(3, 4) > 2]),
    "min of truth": (lambda x: x.min(1, keepdim=True), [ints(3, 4) > 2]),
    "cumprod with zeros": (lambda x: x.cumprod(1), [torch.tensor([[1.0, 0.0, 2.0], [3.0, 1.0, 1.0]]).requires_grad_()]),
    "logsumexp ints": (lambda x: torch.logsumexp(x, 1), [ints(3, 4)]),
    "huber of two dtypes": (lambda x, y: F.huber_loss(x, y), [r(3, 4), r(3, 4).double()]),
    "mse of two dtypes": (lambda x, y: F.mse_loss(x, y, reduction="none"), [g(3, 4), ints(3, 4) > 2]),
    "smooth l1 of two dtypes": (lambda x, y: F.smooth_l1_loss(x, y), [g(3, 4), r(3, 4).double()]),
    "select_scatter of two dtypes": (lambda x, y: x.select_scatter(y, 0, 1), [ints(3, 4) > 2, ints(4)]),
    "diagonal_scatter of two dtypes": (lambda x, y: x.diagonal_scatter(y), [ints(3, 4) > 2, ints(3)]),
    "softmax of no rows": (lambda x: x.softmax(-1), [r(5, 0, 0)]),
}

MOVES = {
    "clone": (torch.clone, [g(3, 4)]),
    "clone transposed": (torch.clone, [r(3, 4).t()]),
    "clone contiguous": (lambda x: x.clone(memory_format=torch.contiguous_format), [r(3, 4).t()]),
    "contiguous": (lambda x: x.t().contiguous(), [g(3, 4)]),
    "channels last": (lambda x: x.contiguous(memory_format=cl), [g(2, 3, 4, 5)]),
    "to dtype": (lambda x: x.to(torch.float64), [g(3, 4)]),
    "to half": (lambda x: x.half(), [r(3, 4)]),
    "to int": (lambda x: x.long(), [r(3, 4) * 10]),
    "to channels last and double": (lambda x: x.to(torch.float64, memory_format=cl), [r(2, 3, 4, 5)]),
    "cat": (lambda x, y: torch.cat([x, y], 1), [g(3, 4), g(3, 2)]),
    "cat promotes": (lambda x, y: torch.cat([x, y]), [r(3, 4), ints(2, 4)]),
    "cat empty": (lambda x, y: torch.cat([x, y]), [r(0), r(2, 4)]),
    "cat channels last": (lambda x, y: torch.cat([x, y], 1), [images(2, 3, 4, 5), images(2, 3, 4, 5)]),
    "stack": (lambda x, y: torch.stack([x, y], 1), [g(3, 4), g(3, 4)]),
    "hstack": (lambda x, y: torch.hstack([x, y]), [g(3, 4), g(3, 4)]),
    "repeat": (lambda x: x.repeat(2, 1, 3), [g(3, 4)]),
    "tile": (lambda x: torch.tile(x, (2, 2)), [g(3, 4)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), [g(3, 4)]),
    "repeat_interleave flat": (lambda x: torch.repeat_interleave(x, 3), [g(3, 4)]),
    "flip": (lambda x: x.flip(0, 1), [g(3, 4)]),
    "roll": (lambda x: x.roll(1, 0), [g(3, 4)]),
    "roll flat": (lambda x: x.roll(2), [g(3, 4)]),
    "roll two": (lambda x: x.roll((1, -1), (0, 1)), [g(3, 4)]),
    "tril": (torch.tril, [g(3, 4)]),
    "triu": (lambda x: x.triu(1), [g(2, 3, 4)]),
    "tril bool": (lambda x: x.tril(-1), [ints(3, 3) > 1]),
    "pad": (lambda x: F.pad(x, (1, 2)), [g(3, 4)]),
    "pad two": (lambda x: F.pad(x, (1, -1, 2, 0), value=3.5), [g(3, 4)]),
    "pad crop": (lambda x: F.pad(x, (-1, -1)), [g(3, 4)]),
    "pad reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"), [g(2, 3, 4)]),
    "pad replicate": (lambda x: F.pad(x, (1, 2, 1, 1), mode="replicate"), [g(1, 2, 3, 4)]),
    "pad circular": (lambda x: F.pad(x, (1, 2), mode="circular"), [g(2, 3, 4)]),
    "gather": (lambda x, i: x.gather(1, i), [g(3, 5), ints(3, 2)]),
    "index_select": (lambda x, i: x.index_select(1, i), [g(3, 5), ints(4)]),
    "index": (lambda x, i: x[i], [g(5, 3), ints(2, 4)]),
    "index second": (lambda x, i: x[:, i], [g(3, 5), ints(4)]),
    "index two": (lambda x, i, j: x[i, j], [g(5, 5, 2), ints(4), ints(3, 1)]),
    "index apart": (lambda x, i, j: x[i, :, j], [g(5, 3, 5), ints(4), ints(4)]),
    "index negative": (lambda x: x[torch.tensor([-1, 0])], [g(5, 3)]),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), [g(3, 5), ints(3, 2)]),
    "scatter": (lambda x, i, y: x.scatter(1, i, y), [g(3, 5), ints(3, 2), g(3, 2)]),
    "scatter value": (lambda x, i: x.scatter(1, i, 2.0), [g(3, 5), ints(3, 2)]),
    "scatter_add": (lambda x, i, y: x.scatter_add(1, i, y), [g(3, 5), ints(3, 4), g(3, 4)]),
    "scatter_reduce": (lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), [r(3, 5), ints(3, 4), r(3, 4)]),
    "scatter_reduce mean": (lambda x, i, y: x.scatter_reduce(1, i, y, "mean"), [r(3, 5), ints(3, 4), r(3, 4)]),
    "one_hot": (lambda i: F.one_hot(i, 5), [ints(3, 2)]),
    "index_add": (lambda x, i, y: x.index_add(1, i, y, alpha=2), [g(3, 5), ints(4), g(3, 4)]),
    "index_copy": (lambda x, y: x.index_copy(0, torch.tensor([2, 0]), y), [g(3, 5), g(2, 5)]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 7.0), [g(3, 5), ints(2)]),
    "index_put": (lambda x, i, y: x.index_put((i,), y, accumulate=True), [g(5, 3), ints(4), g(4, 3)]),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1.0), [g(3, 4), ints(4) > 2]),
    "mask put": (lambda x, m: torch.index_put(x, (m,), torch.tensor(0.0)), [r(3, 4), ints(3, 4) > 2]),
    "select_scatter": (lambda x, y: x.select_scatter(y, 0, -1), [g(3, 4), g(4)]),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 1, 3), [g(3, 4), g(3, 2)]),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y), [g(3, 4), g(3)]),
    "views back": (lambda x: (x[1:, ::2], x[0], x.diagonal(), x.unfold(0, 2, 1)), [g(4, 6)]),
    "views": (lambda x: (x.t(), x.view(-1), x[None], x.squeeze(), x.expand(2, 4, 6), x.unbind()), [g(4, 6)]),
    "chunks": (lambda x: (x.chunk(3), x.split([1, 3]), x.split(3), x.tensor_split(2, 1)), [g(4, 6)]),
    "movedim": (lambda x: (x.movedim(0, 2), x.swapaxes(0, 1), x.mT), [g(2, 3, 4)]),
    "flatten": (lambda x: (x.flatten(), x.flatten(1), x.unflatten(0, (1, 2))), [g(2, 3, 4)]),
    "reshape copies": (lambda x: x.t().reshape(12), [g(3, 4)]),
    "where broadcast": (lambda c, x: torch.where(c, x, torch.zeros(())), [ints(3, 1) > 2, g(3, 4)]),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), [g(3), g(4)]),
    "outer": (torch.outer, [g(3), g(4)]),
    "diag": (torch.diag, [g(3)]),
    "diag_embed": (torch.diag_embed, [g(2, 3)]),
    "embedding": (F.embedding, [ints(2, 3), g(5, 4)]),
    "embedding padding": (lambda i, w: F.embedding(i, w, padding_idx=0), [ints(2, 3), g(5, 4)]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [g(1, 8, 3, 4)]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), [g(1, 2, 4, 6)]),
    "unfold image": (lambda x: F.unfold(x, 2), [g(1, 2, 4, 6)]),
    "fold": (lambda x: F.fold(x, (4, 6), 2), [g(1, 8, 15)]),
    "rot90": (torch.rot90, [g(3, 4)]),
    "broadcast_tensors": (torch.broadcast_tensors, [g(3, 1), g(1, 4)]),
    "atleast_3d": (torch.atleast_3d, [g(3)]),
    "searchsorted": (torch.searchsorted, [torch.arange(5.0), r(3)]),
    "bucketize": (torch.bucketize, [r(3), torch.arange(5.0)]),
    "segment_reduce": (lambda x: torch.segment_reduce(x, "mean", lengths=torch.tensor([2, 1])), [g(3, 4)]),
    "segment_reduce offsets": (
        lambda x: torch.segment_reduce(x, "max", offsets=torch.tensor([[0, 3], [1, 3]]), axis=1, initial=0.0),
        [g(2, 3, 4)],
    ),
    "sort": (lambda x: x.sort(1), [g(3, 4)]),
    "argsort": (lambda x: x.argsort(dim=1, stable=True), [r(3, 4)]),
    "topk": (lambda x: x.topk(2, 1), [g(3, 4)]),
    "view dtype": (lambda x: x.view(torch.int32) + 1, [r(3, 4)]),
    "view wider": (lambda x: x.view(torch.int64) + 1, [r(3, 4)]),
    "as_strided": (lambda x: x.as_strided((2, 2), (4, 1), 1), [g(3, 4)]),
    "unfold overlapping": (lambda x: x.unfold(1, 3, 1).sum(-1), [g(3, 6)]),
    "cross": (lambda x, y: torch.linalg.cross(x, y), [g(4, 3), g(4, 3)]),
}

CREATION = {
    "zeros": (lambda x: torch.zeros(2, 3) + x, [r(3)]),
    "zeros_like": (torch.zeros_like, [r(3, 4).t()]),
    "ones_like": (lambda x: torch.ones_like(x, dtype=torch.int32), [images(2, 3, 4, 5)]),
    "full_like": (lambda x: torch.full_like(x, 2), [r(3, 4)]),
    "new": (lambda x: (x.new_zeros(2), x.new_ones(2, 3), x.new_full((2,), 3)), [r(3)]),
    "full": (lambda x: (torch.full((2, 3), 1.5), torch.full((2,), 1), torch.full((2,), True)), [r(3)]),
    "arange": (
        lambda x: (torch.arange(5), torch.arange(2, 7), torch.arange(5, 0, -2), torch.arange(0, 1, 0.25)),
        [r(3)],
    ),
    "eye": (lambda x: (torch.eye(3), torch.eye(2, 4, dtype=torch.bool)), [r(3)]),
    "linspace": (lambda x: torch.linspace(0, 1, 5), [r(3)]),
    "scalar tensor": (lambda x: x + torch.tensor(2.0), [r(3)]),
    "literal": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), [r(3)]),
    "empty then filled": (lambda x: torch.empty(3).fill_(2.0) + x, [r(3)]),
    "empty_like copied": (lambda x: torch.empty_like(x).copy_(x), [r(3, 4).t()]),
    "tril_indices": (lambda x: torch.tril_indices(3, 3), [r(3)]),
}

NORMS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [g(2, 3, 4), g(4), g(4)]),
    "layer_norm plain": (lambda x: F.layer_norm(x, (3, 4)), [g(2, 3, 4)]),
    "layer_norm weight": (lambda x, w: F.layer_norm(x, (4,), w), [g(2, 3, 4), g(4)]),
    "layer_norm transposed": (lambda x: F.layer_norm(x, (4,)), [r(4, 3).t()]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [g(2, 4, 3, 5), g(4), g(4)]),
    "group_norm plain": (lambda x: F.group_norm(x, 2), [g(2, 4, 5)]),
    "group_norm channels last": (
        lambda x, w, b: F.group_norm(x.contiguous(memory_format=torch.channels_last), 2, w, b),
        [g(2, 4, 3, 5), g(4), g(4)],
    ),
    "group_norm channels last 3d": (
        lambda x: F.group_norm(x.contiguous(memory_format=torch.channels_last_3d), 3),
        [g(1, 6, 2, 3, 2)],
    ),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [g(2, 4, 3, 5), g(4), g(4)]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [g(4, 3, 2, 5), g(3), g(3)]),
    "batch_norm stats": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True),
        [g(4, 3, 2, 5), r(3), torch.rand(3) + 0.5, g(3), g(3)],
    ),
    "batch_norm eval": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False),
        [g(4, 3, 2, 5), r(3), torch.rand(3) + 0.5, g(3), g(3)],
    ),
    "batch_norm vectors": (
        lambda x, m, v: F.batch_norm(x, m, v, None, None, True),
        [g(4, 3), r(3), torch.rand(3) + 0.5],
    ),
    "batch_norm channels last": (
        lambda x, m, v: F.batch_norm(x, m, v, None, None, True),
        [images(4, 3, 2, 5).requires_grad_(), r(3), torch.rand(3) + 0.5],
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [g(2, 3, 4), g(4)]),
    "local_response_norm": (lambda x: F.local_response_norm(x, 2), [g(2, 4, 5)]),
    "weight_norm": (lambda v, w: torch._weight_norm(v, w, 0), [g(3, 4), g(3, 1)]),
    "weight_norm last": (lambda v, w: torch._weight_norm(v, w, 2), [g(3, 4, 5), g(1, 1, 5)]),
    "weight_norm transposed": (lambda v, w: torch._weight_norm(v.mT, w, 0), [g(4, 3), g(3, 1)]),
    "softmax": (lambda x: x.softmax(-1), [g(3, 4)]),
    "softmax first": (lambda x: x.softmax(0), [g(3, 4)]),
    "softmax transposed": (lambda x: x.softmax(1), [r(4, 3).t()]),
    "log_softmax": (lambda x: x.log_softmax(1), [g(3, 4)]),
    "softmin": (lambda x: F.softmin(x, 1), [g(3, 4)]),
    "softmax dtype": (lambda x: F.softmax(x, 1, dtype=torch.float64), [g(3, 4)]),
    "softmax rank 0": (lambda x: x.softmax(0), [g()]),
}

LOSSES = {
    f"{name} {reduction}": (lambda *a, f=f, reduction=reduction: f(*a, reduction=reduction), args)
    for reduction in ("mean", "sum", "none")
    for name, f, args in [
        ("mse", F.mse_loss, [g(3, 4), g(3, 4)]),
        ("l1", F.l1_loss, [g(3, 4), r(3, 4)]),
        ("smooth_l1", F.smooth_l1_loss, [g(3, 4), g(3, 4)]),
        ("huber", F.huber_loss, [g(3, 4), g(3, 4)]),
        ("bce", F.binary_cross_entropy, [torch.rand(3, 4).requires_grad_(), torch.rand(3, 4)]),
        ("bce logits", F.binary_cross_entropy_with_logits, [g(3, 4), torch.rand(3, 4)]),
        ("kl", F.kl_div, [g(3, 4), torch.rand(3, 4)]),
        ("nll", F.nll_loss, [g(3, 5), ints(3)]),
        ("nll image", F.nll_loss, [g(2, 5, 3, 4), ints(2, 3, 4)]),
        ("cross entropy", F.cross_entropy, [g(3, 5), ints(3)]),
        ("cross entropy weight", F.cross_entropy, [g(3, 5), ints(3), torch.rand(5)]),
        ("cross entropy probabilities", F.cross_entropy, [g(3, 5), torch.rand(3, 5)]),
        ("soft margin", F.soft_margin_loss, [g(3, 4), r(3, 4).sign()]),
        ("hinge", F.hinge_embedding_loss, [g(3, 4), r(3, 4).sign()]),
        ("poisson", F.poisson_nll_loss, [g(3, 4), torch.rand(3, 4)]),
    ]
} | {
    "cross entropy ignored": (
        lambda x: F.cross_entropy(x, torch.tensor([1, -100, 2])),
        [g(3, 5)],
    ),
    "cross entropy smoothed": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), [g(3, 5), ints(3)]),
    "nll one": (F.nll_loss, [g(5), torch.tensor(2)]),
    "triplet": (F.triplet_margin_loss, [g(3, 4), g(3, 4), g(3, 4)]),
    "bce weight": (F.binary_cross_entropy, [torch.rand(3).requires_grad_(), torch.rand(3), torch.rand(3)]),
    "bce pos_weight": (
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        [g(3, 4), torch.rand(3, 4), torch.rand(4)],
    ),
    "cosine embedding": (F.cosine_embedding_loss, [g(3, 4), g(3, 4), torch.tensor([1.0, -1.0, 1.0])]),
    "margin ranking": (F.margin_ranking_loss, [g(3), g(3), r(3).sign()]),
}

MATRICES = {
    "mm": (torch.mm, [g(3, 4), g(4, 5)]),
    "mm transposed": (torch.mm, [r(4, 3).t(), r(4, 5)]),
    "matmul batch": (torch.matmul, [g(2, 3, 4), g(4, 5)]),
    "matmul broadcast": (torch.matmul, [g(2, 1, 3, 4), g(5, 4, 3)]),
    "matmul vector": (torch.matmul, [g(3, 4), g(4)]),
    "dot": (torch.dot, [g(4), g(4)]),
    "bmm": (torch.bmm, [g(2, 3, 4), g(2, 4, 5)]),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), [g(5), g(3, 4), g(4, 5)]),
    "baddbmm": (torch.baddbmm, [g(2, 3, 5), g(2, 3, 4), g(2, 4, 5)]),
    "addmv": (torch.addmv, [g(3), g(3, 4), g(4)]),
    "addr": (torch.addr, [g(3, 4), g(3), g(4)]),
    "linear": (F.linear, [g(2, 3, 4), g(5, 4), g(5)]),
    "linear plain": (F.linear, [g(3, 4), g(5, 4)]),
    "bilinear": (F.bilinear, [g(3, 4), g(3, 5), g(2, 4, 5)]),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), [g(2, 3, 4), g(2, 4, 5)]),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 1), [g(3, 4), g(4, 5)]),
    "kron": (torch.kron, [g(2, 3), g(3, 2)]),
    "chain": (lambda x, y, z: torch.linalg.multi_dot([x, y, z]), [g(2, 3), g(3, 4), g(4, 2)]),
}

IMAGES = {
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), [g(2, 3, 8, 9), g(4, 3, 3, 3), g(4)]),
    "conv2d channels last": (lambda x, w: F.conv2d(x, w), [images(2, 3, 8, 9).requires_grad_(), g(4, 3, 3, 3)]),
    "conv2d weight channels last": (lambda x, w: F.conv2d(x, w), [r(2, 3, 8, 9), images(4, 3, 3, 3)]),
    "conv2d 1x1": (lambda x, w: F.conv2d(x, w), [g(2, 3, 8, 9), g(4, 3, 1, 1)]),
    "conv2d 1x1 channels last": (lambda x, w: F.conv2d(x, w), [images(2, 3, 8, 9).requires_grad_(), g(4, 3, 1, 1)]),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=4), [g(2, 4, 8, 9), g(4, 1, 3, 3)]),
    "conv2d dilated": (lambda x, w: F.conv2d(x, w, dilation=2), [g(2, 3, 8, 9), g(4, 3, 3, 3)]),
    "conv2d one image": (lambda x, w: F.conv2d(x, w, padding="same"), [g(3, 8, 9), g(4, 3, 3, 3)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), [g(2, 3, 9), g(4, 3, 3), g(4)]),
    "conv3d": (lambda x, w: F.conv3d(x, w), [g(1, 2, 4, 5, 6), g(3, 2, 2, 2, 2)]),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), [g(2, 3, 5, 6), g(3, 4, 3, 3), g(4)]),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2, groups=3), [g(2, 3, 5), g(3, 2, 3)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), [g(2, 3, 8, 9)]),
    "max_pool2d channels last": (lambda x: F.max_pool2d(x, 2), [images(2, 3, 8, 9).requires_grad_()]),
    "max_pool2d ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), [g(2, 3, 8, 9)]),
    "max_pool2d one image": (lambda x: F.max_pool2d(x, 2), [g(3, 8, 9)]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), [g(2, 3, 9)]),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), [g(1, 2, 4, 5, 6)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), [g(2, 3, 8, 9)]),
    "avg_pool2d channels last": (lambda x: F.avg_pool2d(x, 2), [images(2, 3, 8, 9).requires_grad_()]),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), [g(2, 3, 9)]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), [g(1, 2, 4, 5, 6)]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), [g(2, 3, 8, 9)]),
    "adaptive_avg_pool2d one": (lambda x: F.adaptive_avg_pool2d(x, 1), [g(2, 3, 8, 9)]),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), [g(2, 3, 9)]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), [g(2, 3, 8, 9)]),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), [g(2, 3, 4, 5)]),
    "nearest size": (lambda x: F.interpolate(x, size=(5, 6)), [images(2, 3, 4, 5).requires_grad_()]),
    "bilinear up": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [g(2, 3, 4, 5)]),
    "bicubic": (lambda x: F.interpolate(x, size=(5, 6), mode="bicubic", align_corners=True), [g(2, 3, 4, 5)]),
    "linear up": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), [g(2, 3, 4)]),
    "grid_sample": (lambda x, i: F.grid_sample(x, i, align_corners=False), [g(1, 2, 4, 5), g(1, 3, 3, 2)]),
    "affine_grid": (lambda x: F.affine_grid(x, [1, 2, 3, 4], align_corners=False), [g(1, 2, 3)]),
}

ATTENTION = {
    "sdpa": (F.scaled_dot_product_attention, [g(2, 4, 6, 8), g(2, 4, 6, 8), g(2, 4, 6, 8)]),
    "sdpa causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [g(2, 4, 6, 8), g(2, 4, 6, 8), g(2, 4, 6, 8)],
    ),
    "sdpa transposed": (
        lambda q, k, v: F.scaled_dot_product_attention(*[x.transpose(1, 2) for x in (q, k, v)]).transpose(1, 2),
        [g(2, 6, 4, 8), g(2, 6, 4, 8), g(2, 6, 4, 8)],
    ),
    "sdpa mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [g(2, 4, 6, 8), g(2, 4, 5, 8), g(2, 4, 5, 8), r(2, 1, 6, 5)],
    ),
    "sdpa bool mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.5),
        [r(2, 4, 6, 8), r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 1, 6, 5) > 0],
    ),
    "sdpa mask with gradient": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [g(2, 4, 6, 8), g(2, 4, 5, 8), g(2, 4, 5, 8), g(2, 4, 6, 5)],
    ),
    "sdpa grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [g(2, 4, 6, 8), g(2, 2, 6, 8), g(2, 2, 6, 8)],
    ),
    "sdpa other width": (F.scaled_dot_product_attention, [g(2, 4, 6, 8), g(2, 4, 6, 8), g(2, 4, 6, 3)]),
    "mha": (
        lambda x, wi, bi, wo, bo: F.multi_head_attention_forward(
            x, x, x, 8, 2, wi, bi, None, None, False, 0.0, wo, bo, need_weights=False
        )[0],
        [g(5, 3, 8), g(24, 8), g(24), g(8, 8), g(8)],
    ),
}

RANDOM = {
    "dropout": (lambda x: F.dropout(x, 0.3), [g(30, 4)]),
    "dropout eval": (lambda x: F.dropout(x, 0.3, False), [g(3, 4)]),
    "dropout all": (lambda x: F.dropout(x, 1.0), [g(3, 4)]),
    "feature dropout": (lambda x: F.dropout2d(x, 0.3), [g(3, 4, 5, 6)]),
    "alpha dropout": (lambda x: F.alpha_dropout(x, 0.3, True), [g(3, 4)]),
    "rand": (lambda x: x + torch.rand(3, 4), [g(3, 4)]),
    "randn": (lambda x: x + torch.randn(3, 4), [g(3, 4)]),
    "rand_like": (lambda x: torch.rand_like(x) * x, [g(3, 4)]),
    "randn_like": (torch.randn_like, [r(3, 4)]),
    "randint": (lambda x: torch.randint(2, 9, (3, 4)), [r(3)]),
    "bernoulli": (torch.bernoulli, [torch.rand(3, 4)]),
    "bernoulli p": (lambda x: torch.bernoulli(x, 0.3), [torch.rand(3, 4)]),
    "uniform_": (lambda x: torch.empty(3, 4).uniform_(-1, 2) + x, [r(3, 4)]),
    "normal_": (lambda x: torch.empty(3, 4).normal_(1, 2) + x, [r(3, 4)]),
    "exponential_": (lambda x: torch.empty(3, 4).exponential_(2) + x, [r(3, 4)]),
    "two draws": (lambda x: torch.rand(4) + torch.rand(4) + x, [r(4)]),
    "normal": (lambda x: torch.normal(0.0, 1.0, (3,)) + x, [r(3)]),
}

FOREACH = {
    "add": (lambda x, y: torch._foreach_add([x, y], [y, x], alpha=2), [r(3), r(3)]),
    "mul number": (lambda x, y: torch._foreach_mul([x, y], 2.0), [r(3), r(4)]),
    "mul numbers": (lambda x, y: torch._foreach_mul([x, y], [2.0, 3.0]), [r(3), r(4)]),
    "mul tensor": (lambda x, y: torch._foreach_mul([x, y], torch.tensor(2.0)), [r(3), r(4)]),
    "power of a number": (lambda x, y: torch._foreach_pow(0.9, [x, y]), [r(3), r(4)]),
    "sqrt": (lambda x, y: torch._foreach_sqrt([x.abs(), y.abs()]), [r(3), r(4)]),
    "add_": (lambda x, y: torch._foreach_add_([x, y], 1.0), [r(3), r(4)]),
    "addcdiv_": (lambda x, y: torch._foreach_addcdiv_([x], [y], [y.abs() + 1], 0.5), [r(3), r(3)]),
    "addcmul numbers": (lambda x, y: torch._foreach_addcmul([x], [y], [y], [0.5]), [r(3), r(3)]),
    "lerp_": (lambda x, y: torch._foreach_lerp_([x], [y], 0.3), [r(3), r(3)]),
    "norm": (lambda x, y: torch._foreach_norm([x, y]), [r(3), r(4)]),
    "zero_": (lambda x, y: torch._foreach_zero_([x, y]), [r(3), r(4)]),
    "copy_": (lambda x, y: torch._foreach_copy_([x], [y]), [r(3), r(3)]),
    "maximum_": (lambda x, y: torch._foreach_maximum_([x], [y]), [r(3), r(3)]),
    "pow": (lambda x, y: torch._foreach_pow([x, y], 2), [r(3), r(3)]),
    "neg_": (lambda x, y: torch._foreach_neg_([x, y]), [r(3), r(3)]),
}

MORE = {
    "view_copy": (lambda x: (torch.view_copy(x, (4, 3)), torch.transpose_copy(x, 0, 1)), [r(3, 4)]),
    "split_copy": (lambda x: torch.split_copy(x, 2, 1), [r(3, 4)]),
    "unsafe_split": (lambda x: torch.unsafe_split(x, 2, 1), [g(3, 4)]),
    "isin": (lambda x, y: (torch.isin(x, y), torch.isin(x, 2), torch.isin(x, y, invert=True)), [ints(3, 4), ints(2)]),
    "xlog1py": (torch.special.xlog1py, [g(3), torch.rand(3)]),
    "entr": (torch.special.entr, [torch.rand(4)]),
    "ldexp": (torch.ldexp, [g(3), ints(3)]),
    "logaddexp2": (torch.logaddexp2, [g(3), g(3)]),
    "addbmm": (torch.addbmm, [g(3, 5), g(2, 3, 4), g(2, 4, 5)]),
    "take": (lambda x, i: torch.take(x, i), [g(3, 4), ints(2, 2)]),
    "put_": (lambda x: x.clone().put_(torch.tensor([1, 2]), torch.ones(2)), [r(3, 4)]),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), [g(1, 4, 3, 3)]),
    "pad3d": (lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"), [g(1, 2, 3, 4, 5)]),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [g(1, 2, 3, 4, 5)]),
    "nearest 3d": (lambda x: F.interpolate(x, scale_factor=2), [g(1, 2, 3, 4, 5)]),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), [g(1, 2, 4, 5, 6)]),
    "norm dtype": (lambda x: torch.norm(x, 2, 0, dtype=torch.float64), [r(3, 4)]),
    "clip_grad_norm": (lambda x, y: torch.nn.utils.get_total_norm([x, y]), [r(3), r(4)]),
    "inverse": (torch.linalg.inv, [torch.eye(3) + 0.1 * r(3, 3)]),
    "solve": (torch.linalg.solve, [torch.eye(3) + 0.1 * r(3, 3), r(3, 2)]),
    "qr": (torch.linalg.qr, [r(3, 3)]),
    "cholesky": (torch.linalg.cholesky, [torch.eye(3) * 2]),
    "fft": (lambda x: torch.fft.rfft(x).abs(), [r(8)]),
    "lstm cell": (
        lambda x, h, c, wi, wh: torch.lstm_cell(x, (h, c), wi, wh),
        [g(2, 3), g(2, 4), g(2, 4), g(16, 3), g(16, 4)],
    ),
    "rms_norm bf16": (lambda x, w: F.rms_norm(x, (4,), w), [r(2, 3, 4).bfloat16(), r(4).bfloat16()]),
    "histc": (lambda x: torch.histc(x, 5, 0, 1), [torch.rand(9)]),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), [r(3, 4)]),
    "logspace": (lambda x: torch.logspace(0, 1, 4), [r(1)]),
    "multi_margin": (F.multi_margin_loss, [g(3, 5), ints(3)]),
    "embedding_bag": (lambda w: F.embedding_bag(torch.tensor([[0, 1], [2, 2]]), w), [g(4, 3)]),
    "index_reduce": (lambda x, y: x.index_reduce(0, torch.tensor([0, 2]), y, "prod"), [r(3, 4), r(2, 4)]),
    "masked_scatter": (lambda x, m, y: x.masked_scatter(m, y), [r(3, 4), ints(3, 4) > 2, r(12)]),
    "polygamma": (lambda x: torch.polygamma(1, x), [torch.rand(3) + 1]),
    "i0": (torch.special.i0, [r(3)]),
    "hann": (lambda x: torch.hann_window(5) + x, [r(5)]),
    "max_unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        [r(1, 1, 4, 4)],
    ),
}

GROUPS = {
    "reductions": REDUCTIONS, "moves": MOVES, "creation": CREATION, "norms": NORMS, "losses": LOSSES,
    "matrices": MATRICES, "images": IMAGES, "attention": ATTENTION, "random": RANDOM,
    "foreach": FOREACH, "more": MORE,
}  # fmt: skip
CASES = [(group, name) for group, cases in GROUPS.items() for name in cases]


SINCE = {"mse of two dtypes": "2.13"}
"""Older versions of eager torch raise in the backward."""


def skip_if_eager_raises(name):
    if torch.torch_version.TorchVersion(torch.__version__) < SINCE.get(name, "0"):
        pytest.skip("eager raises")


@pytest.mark.parametrize(("group", "name"), CASES, ids=lambda part: part)
def test_equals_eager(group, name):
    skip_if_eager_raises(name)
    function, args = GROUPS[group][name]
    backward = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
    check(function, args, backward=backward, rtol=1e-4, atol=1e-5)
