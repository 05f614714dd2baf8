"""Layers as functions: losses, attention, convolutions, pooling, interpolation, embeddings, norms; linear algebra."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats, halves, ints, leaf, one_leaf

PROGRAMS = Programs("neural")
add, scenario = PROGRAMS.add, PROGRAMS.scenario


def classes(n: int) -> tuple[Any, ...]:
    return leaf(n, 5), ints(n, low=0, high=5)


def image(n: int) -> tuple[Any, ...]:
    return (leaf(2, 3, n + 3, n + 2),)


def signal(n: int) -> tuple[Any, ...]:
    return (leaf(2, 4, n + 3),)


def pair(n: int) -> tuple[Any, ...]:
    return leaf(n, 3), floats(n, 3)


def heads(n: int) -> tuple[Any, ...]:
    return leaf(2, 2, n, 4), leaf(2, 2, n, 4), leaf(2, 2, n, 4)


def matrix(n: int) -> tuple[Any, ...]:
    x = floats(n, n)
    return ((x @ x.t() + n * torch.eye(n)).requires_grad_(),)


W = torch.linspace(-1, 1, 4 * 3 * 9).reshape(4, 3, 3, 3)
K = torch.linspace(-1, 1, 6 * 2 * 3).reshape(6, 2, 3)
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0])

add(
    "cross entropy",
    lambda x, y: (
        F.cross_entropy(x, y),
        F.cross_entropy(x, y, reduction="none"),
        F.cross_entropy(x, y, reduction="sum"),
    ),
    classes,
)
add(
    "cross entropy with weights",
    lambda x, y: (
        F.cross_entropy(x, y, WEIGHTS),
        F.cross_entropy(x, y, WEIGHTS, label_smoothing=0.1),
        F.nll_loss(x, y, WEIGHTS),
    ),
    classes,
)
add(
    "cross entropy that ignores",
    lambda x, y: (
        F.cross_entropy(x, y, ignore_index=2),
        F.cross_entropy(x, y * 0 + 2, ignore_index=2),
        F.cross_entropy(x, y * 0 - 100, reduction="sum"),
    ),
    classes,
)
add(
    "cross entropy of probabilities",
    lambda x, y: F.cross_entropy(x, F.one_hot(y, 5).float() * 0.9, label_smoothing=0.2),
    classes,
)
add(
    "cross entropy of images",
    lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.long), torch.ones(3)),
    image,
)
add("cross entropy of a class out of range", lambda x, y: F.cross_entropy(x, y + 9), classes)
add(
    "cross entropy of no classes",
    lambda x, y: (F.cross_entropy(x[:0], y[:0]), F.nll_loss(x[:0], y[:0], reduction="sum")),
    classes,
)
add(
    "binary cross entropy",
    lambda x, y: (
        F.binary_cross_entropy(x.sigmoid(), (y > 0).float()),
        F.binary_cross_entropy_with_logits(x, (y > 0).float(), pos_weight=torch.tensor([1.0, 2, 3])),
    ),
    pair,
)
add(
    "binary cross entropy at the ends",
    lambda x, y: F.binary_cross_entropy((y > 0).float() + x * 0, (y > 0.5).float()),
    pair,
)
add(
    "binary cross entropy of large logits",
    lambda x, y: F.binary_cross_entropy_with_logits(x * 1e4, (y > 0).float(), reduction="none"),
    pair,
)
add(
    "squares, absolutes and Huber",
    lambda x, y: (
        F.mse_loss(x, y),
        F.l1_loss(x, y, reduction="sum"),
        F.smooth_l1_loss(x, y, beta=0.5),
        F.huber_loss(x, y, delta=0.3),
        F.smooth_l1_loss(x, y, beta=0),
    ),
    pair,
)
add("a loss that broadcasts", lambda x, y: F.mse_loss(x, y[:1]), pair)
add(
    "divergences",
    lambda x, y: (
        F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        F.kl_div(x, y, log_target=True),
        F.kl_div(x.log_softmax(1), y.relu()),
    ),
    pair,
)
add(
    "margins",
    lambda x, y: (
        F.hinge_embedding_loss(x, y.sign()),
        F.soft_margin_loss(x, y.sign()),
        F.margin_ranking_loss(x, y, y.sign()),
        F.cosine_embedding_loss(x, y, y[:, 0].sign()),
    ),
    pair,
)
add(
    "margins of classes",
    lambda x, y: (
        F.multi_margin_loss(x, y),
        F.multilabel_soft_margin_loss(x, F.one_hot(y, 5).float()),
        F.triplet_margin_loss(x, x.flip(0), x * 2),
    ),
    classes,
)
add(
    "Poisson and Gauss",
    lambda x, y: (
        F.poisson_nll_loss(x, y.abs()),
        F.poisson_nll_loss(x, y.abs(), full=True),
        F.gaussian_nll_loss(x, y, y.abs() + 0.1),
    ),
    pair,
)
add(
    "similarities",
    lambda x, y: (
        F.cosine_similarity(x, y),
        F.cosine_similarity(x * 0, y),
        F.pairwise_distance(x, y),
        torch.cdist(x, y),
        F.normalize(x),
        F.normalize(x * 0),
    ),
    pair,
)
add(
    "cdist of equal points",
    lambda x, y: (torch.cdist(x, x), torch.cdist(x, y, p=1), torch.cdist(x, y, p=math.inf)),
    pair,
)
add(
    "cross and dot",
    lambda x, y: (
        torch.linalg.cross(x, y),
        torch.cross(x, y, dim=1),
        (x * y).sum(-1),
        torch.linalg.vecdot(x, y),
        torch.inner(x, y),
        torch.tensordot(x, y, ([0], [0])),
    ),
    pair,
)
add(
    "attention",
    lambda q, k, v: (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, scale=0.3),
    ),
    heads,
)
add(
    "attention with a mask",
    lambda q, k, v: (
        F.scaled_dot_product_attention(q, k, v, torch.ones(q.shape[2], q.shape[2]).tril().bool()),
        F.scaled_dot_product_attention(q, k, v, torch.zeros(2, 1, 1, q.shape[2])),
    ),
    heads,
)
add(
    "attention with a row of no keys",
    lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.arange(q.shape[2])[:, None].expand(-1, q.shape[2]) > 0
    ),
    heads,
)
add(
    "attention with -inf in the mask",
    lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.zeros(q.shape[2], q.shape[2]).masked_fill(torch.arange(q.shape[2])[:, None] == 1, -math.inf)
    ),
    heads,
)
add(
    "attention with a mask and causal",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(q.shape[2], q.shape[2]).bool(), is_causal=True),
    heads,
)
add(
    "attention of other lengths",
    lambda q, k, v: F.scaled_dot_product_attention(q[:, :, :2], k, v, is_causal=True),
    heads,
)
add(
    "attention of grouped heads",
    lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
    heads,
)
add(
    "attention written out",
    lambda q, k, v: (
        (q @ k.mT / 2).masked_fill(torch.ones(q.shape[2], q.shape[2]).triu(1).bool(), -math.inf).softmax(-1) @ v
    ),
    heads,
)
add("attention of rank 3", lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]), heads)
add(
    "convolutions",
    lambda x: (
        F.conv2d(x, W),
        F.conv2d(x, W, torch.ones(4), stride=2, padding=1),
        F.conv2d(x, W, padding="same"),
        F.conv2d(x, W, dilation=2),
    ),
    image,
)
add(
    "grouped and depthwise convolutions",
    lambda x: (F.conv1d(x, K, groups=2), F.conv1d(x, K[:4, :1], groups=4, padding=1)),
    signal,
)
add(
    "transposed convolutions",
    lambda x: (
        F.conv_transpose1d(x, K[:4], stride=2, padding=1, output_padding=1),
        F.conv_transpose1d(x, K[:4], groups=2),
    ),
    signal,
)
add("a convolution without a batch", lambda x: F.conv2d(x[0], W), image)
add("a convolution of too small an image", lambda x: F.conv2d(x[:, :, :2], W), image)
add("a convolution of an empty batch", lambda x: F.conv2d(x[:0], W), image)
add("a convolution with circular padding", lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), W), image)
add(
    "paddings",
    lambda x: (
        F.pad(x, (1, 2), mode="replicate"),
        F.pad(x, (2, 1), mode="reflect"),
        F.pad(x, (1, -1), value=2.5),
        F.pad(x, (0, 0, 1, 1)),
    ),
    signal,
)
add(
    "max pooling",
    lambda x: (
        F.max_pool2d(x, 2, ceil_mode=True),
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, 2, dilation=2),
        F.max_pool2d(x, 2, return_indices=True),
    ),
    image,
)
add(
    "average pooling",
    lambda x: (
        F.avg_pool2d(x, 2, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(x, 2, divisor_override=3),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    ),
    image,
)
add("pooling of nan", lambda x: (F.max_pool1d(x * math.nan, 2), F.avg_pool1d(x * math.nan, 2)), signal)
add(
    "adaptive pooling",
    lambda x: (
        F.adaptive_avg_pool2d(x, (3, 2)),
        F.adaptive_max_pool2d(x, 3),
        F.adaptive_avg_pool2d(x, (None, 1)),
        F.adaptive_avg_pool2d(x, 1),
    ),
    image,
)
add(
    "pooling by powers, and back",
    lambda x: (F.lp_pool1d(x, 2, 2), F.max_unpool1d(*F.max_pool1d(x[:, :, :4], 2, return_indices=True), 2)),
    signal,
)
add(
    "nearest interpolation",
    lambda x: (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(5, 3)),
        F.interpolate(x, scale_factor=0.5),
        F.interpolate(x, size=4, mode="nearest-exact"),
    ),
    image,
)
add(
    "bilinear interpolation",
    lambda x: (
        F.interpolate(x, size=(5, 9), mode="bilinear"),
        F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    ),
    image,
)
add(
    "bicubic interpolation",
    lambda x: (
        F.interpolate(x, size=(5, 9), mode="bicubic"),
        F.interpolate(x, scale_factor=(0.6, 2.0), mode="bicubic", recompute_scale_factor=True),
    ),
    image,
)
add(
    "area and antialiased interpolation",
    lambda x: (
        F.interpolate(x, size=(3, 2), mode="area"),
        F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True),
    ),
    image,
)
add(
    "linear interpolation",
    lambda x: (F.interpolate(x, size=9, mode="linear"), F.interpolate(x, size=1, mode="linear", align_corners=True)),
    signal,
)
add(
    "sampling of a grid",
    lambda x: [
        F.grid_sample(
            x,
            torch.linspace(-1.3, 1.3, 2 * 3 * 3 * 2).reshape(2, 3, 3, 2),
            mode=mode,
            padding_mode=padding,
            align_corners=False,
        )
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
    ],
    image,
)
add(
    "affine grids",
    lambda x: F.grid_sample(
        x, F.affine_grid(torch.eye(2, 3).expand(2, 2, 3), list(x.shape), align_corners=True), align_corners=True
    ),
    image,
)
add(
    "pixel shuffles",
    lambda x: (
        F.pixel_shuffle(x.reshape(1, 4, 2, -1), 2),
        F.pixel_unshuffle(x.reshape(1, 2, 4, -1), 2),
        F.channel_shuffle(x.reshape(1, 4, 2, -1), 2),
    ),
    lambda n: (leaf(4, 4, n),),
)
add(
    "fold and unfold",
    lambda x: (F.unfold(x, 2), F.unfold(x, 3, padding=1, stride=2), F.fold(F.unfold(x, 2), x.shape[2:], 2)),
    image,
)
add(
    "layer norm",
    lambda x: (
        F.layer_norm(x, (3,)),
        F.layer_norm(x, (3,), torch.ones(3) * 2, torch.ones(3)),
        F.layer_norm(x, x.shape),
        F.layer_norm(x * 0, (3,)),
    ),
    lambda n: (floats(n, 3).double().requires_grad_(),),
    signed_zeros=False,
)
add("layer norm of halves", lambda x: (F.layer_norm(x, (8,)), F.rms_norm(x, (8,))), lambda n: (halves(n, 8),))
add(
    "rms norm",
    lambda x: (F.rms_norm(x, (3,)), F.rms_norm(x, (3,), torch.ones(3) * 2, 1e-3), F.rms_norm(x * 0, (3,))),
    one_leaf,
)
add(
    "group, instance and local norm",
    lambda x: (F.group_norm(x, 2), F.instance_norm(x), F.local_response_norm(x, 2)),
    signal,
)
add("a group norm that does not divide", lambda x: F.group_norm(x, 3), signal)
add(
    "batch norm in evaluation",
    lambda x: F.batch_norm(x, torch.ones(4), torch.ones(4) * 2, torch.ones(4), torch.zeros(4)),
    signal,
)
add(
    "embeddings",
    lambda w, i: (
        F.embedding(i, w),
        F.embedding(i, w, padding_idx=1),
        F.embedding(i[:0], w),
        F.embedding(i, w, scale_grad_by_freq=True),
    ),
    lambda n: (leaf(5, 3), ints(n, low=0, high=5)),
)
add(
    "an embedding that renormalises",
    lambda w, i: F.embedding(i, w * 3, max_norm=1.0),
    lambda n: (floats(5, 3), ints(n, low=0, high=5)),
)
add("an embedding out of range", lambda w, i: F.embedding(i + 5, w), lambda n: (leaf(5, 3), ints(n, low=0, high=5)))
add(
    "embedding bags",
    lambda w, i: [F.embedding_bag(i, w, torch.tensor([0, 2, 2]), mode=mode) for mode in ("sum", "mean", "max")],
    lambda n: (leaf(5, 3), ints(n, low=0, high=5)),
)
add(
    "gated units and softmaxes",
    lambda x: (
        F.glu(x, 0),
        F.softmin(x, 1),
        F.log_softmax(x, 0),
        F.hardshrink(x),
        F.softshrink(x, 0.2),
        F.threshold(x, 0.1, 2),
        F.prelu(x, torch.tensor([0.3])),
        F.rrelu(x),
    ),
    one_leaf,
)
add(
    "bilinear and linear",
    lambda x: (
        F.bilinear(x, x, torch.ones(2, 3, 3)),
        F.linear(x, torch.ones(2, 3), torch.ones(2)),
        F.linear(x[0], torch.ones(2, 3)),
    ),
    one_leaf,
)
add(
    "einsums",
    lambda x: (
        torch.einsum("ij->ji", x),
        torch.einsum("ij->", x),
        torch.einsum("ii->i", x[:3]),
        torch.einsum("ij,ij->i", x, x),
        torch.einsum("...j,kj->...k", x, x),
        torch.einsum("i,j,k->ijk", x[0], x[1], x[2]),
    ),
    one_leaf,
)
add(
    "products of ranks",
    lambda x: (
        x[0] @ x[1],
        x @ x[0],
        x[0] @ x.t(),
        x[None] @ x.t(),
        torch.ones(2, 1, 3, 2) @ torch.ones(3, 2, 3),
        x.mv(x[0]),
        x.addmm(x @ x.t(), x, beta=0.5, alpha=2),
    ),
    one_leaf,
)
add(
    "products with beta 0",
    lambda x: (
        torch.addmm(torch.full((3,), math.nan), x, torch.ones(3, 3), beta=0),
        torch.baddbmm(torch.full((1, 1, 1), math.nan), x[None], x.t()[None], beta=0),
    ),
)
add(
    "products of integers",
    lambda x: (x @ x.t(), x.t() @ x[:, 0], torch.einsum("ij,kj->ik", x, x)),
    lambda n: (ints(n, 3),),
)
add(
    "products of halves",
    lambda x: (x @ x.t(), F.linear(x, x), torch.bmm(x[None], x.t()[None])),
    lambda n: (halves(n, 8),),
)
add("products of two dtypes", lambda x: x @ x.double().t())
add(
    "chains and powers of matrices",
    lambda x: (
        torch.linalg.multi_dot([x, x, x]),
        torch.linalg.matrix_power(x / 9, 3),
        torch.chain_matmul(x, x) if False else x.matrix_exp(),
    ),
    lambda n: (floats(n, n) / 9,),
)
add(
    "solving",
    lambda x: (
        torch.linalg.solve(x, torch.ones(x.shape[0], 2)),
        torch.linalg.inv(x),
        torch.linalg.det(x),
        torch.linalg.slogdet(x),
    ),
    matrix,
)
add(
    "factors",
    lambda x: (torch.linalg.cholesky(x), torch.linalg.eigvalsh(x), torch.linalg.svdvals(x), torch.linalg.qr(x).R.abs()),
    matrix,
)
add("a singular matrix", lambda x: torch.linalg.inv(x * 0), matrix)
add("a matrix that is not positive", lambda x: torch.linalg.cholesky(-x), matrix)
add(
    "Fourier transforms",
    lambda x: (
        torch.fft.fft(x),
        torch.fft.rfft(x, dim=0),
        torch.fft.irfft(torch.fft.rfft(x), n=3),
        torch.fft.fftshift(x),
    ),
    one_leaf,
)
add(
    "norms of matrices",
    lambda x: (
        torch.linalg.matrix_norm(x),
        torch.linalg.matrix_norm(x, 1),
        torch.linalg.matrix_norm(x, 2),
        x.norm(p="nuc"),
        torch.linalg.norm(x, math.inf),
    ),
    one_leaf,
)
add(
    "polynomials and special functions",
    lambda x: (
        torch.special.expit(x),
        torch.special.log_ndtr(x),
        torch.polygamma(1, x.abs() + 1),
        torch.special.zeta(x.abs() + 2, x.abs() + 1),
        torch.special.multigammaln(x.abs() + 3, 2),
    ),
)


@scenario
def sequences_that_are_packed(compile: Compile) -> Iterator[Any]:
    layer = torch.nn.GRU(3, 4, batch_first=True)

    def program(x: Tensor, lengths: Tensor) -> Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

    f = compile(program)
    for lengths in ([2, 4], [4, 1], [3, 3]):
        yield f(floats(2, 4, 3), torch.tensor(lengths))


@scenario
def a_loss_with_a_weight_that_changes(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y, weight, kind: F.cross_entropy(x, y, weight, reduction=kind))
    for weight, kind in ((None, "mean"), (WEIGHTS, "mean"), (WEIGHTS, "sum"), (None, "none"), (None, "bad")):
        yield attempt(f, *classes(4), weight, kind)


@scenario
def ctc_losses(compile: Compile) -> Iterator[Any]:
    f = compile(
        lambda x, targets, lengths: F.ctc_loss(
            x.log_softmax(-1), targets, torch.tensor([6, 5]), lengths, zero_infinity=True
        )
    )
    for _ in range(2):
        yield f(leaf(6, 2, 5), ints(2, 3, low=1, high=5), torch.tensor([3, 2]))
