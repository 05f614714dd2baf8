"""Reading and writing by index, mask and scatter; reductions, scans, sorting, and their empty cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats, ints, leaf, one_leaf

PROGRAMS = Programs("indexing")
add = PROGRAMS.add
REPEATS = torch.tensor([0, 2, 2, 0])


def with_index(n: int) -> tuple[Any, ...]:
    return floats(n, 3), ints(5, low=-n, high=n)


def with_positions(n: int) -> tuple[Any, ...]:
    return floats(n, 3), ints(n, 3, low=0, high=n)


def empty(n: int) -> tuple[Any, ...]:
    return (torch.empty(0, n),)


def sixteen(n: int) -> tuple[Any, ...]:
    return (torch.arange(float(n * 5)).reshape(n, 5).sin(),)


add("a negative index", lambda x: (x[-1], x[-2:, -1], x[..., -1], x.select(0, -1)))
add("an index out of range", lambda x: x[9])
add("slices beyond the ends", lambda x: (x[2:99], x[-99:2], x[3:1], x[99:], x[::5]))
add("a negative step", lambda x: x[::-1])
add("None and Ellipsis", lambda x: (x[None], x[..., None], x[:, None, 1:], x[None, ..., 0], x[...]))
add("an index of True", lambda x: (x[True], x[False], x[None, True]))
add(
    "a list as index",
    lambda x: (x[[0, 2]], x[[0, 1], [1, 2]], x[:, [2, 0]], x[[True, False, True, False]]),
    sizes=(4, 4),
)
add("a tuple of lists", lambda x: (x[([0, 1], [1, 1])], x[[[0], [1]], [0, 2]]))
add("tensors with negative indices", lambda x, i: (x[i], x[i, -1], x[:, i % 3], x[i][i]), with_index)
add(
    "tensors as index beside slices",
    lambda x, i: (x[i, 1:], x[i, None], x[None, i], x[i[:, None], i[None] % 3]),
    with_index,
)
add(
    "indices on both sides of a slice",
    lambda x: (lambda y: (y[REPEATS, :, REPEATS], y[:, REPEATS, REPEATS % 2], y[0, :, REPEATS]))(
        x.expand(4, 4, 4) if x.shape[0] == x.shape[1] else x
    ),
    lambda n: (floats(4, 4),),
)
add("an index out of range in a tensor", lambda x, i: x[i * 9], with_index)
add("an empty index", lambda x: (x[torch.empty(0, dtype=torch.long)], x[[]], x[torch.zeros(x.shape[0]).bool()]))
add("a rank-0 index", lambda x: (x[torch.tensor(1)], x[torch.tensor(-1), torch.tensor(0)], x[torch.tensor(True)]))
add("bytes as a mask", lambda x: x[(x[:, 0] > 0).to(torch.uint8)])
add("a mask", lambda x: (x[x > 0], x[x[:, 0] > 0], x[:, x[0] > 0], x[x > 99]))
add("a mask, backward", lambda x: (x[x > 0] * 2, x.masked_select(x < 0)), one_leaf)
add("a mask of another size", lambda x: x[torch.ones(7).bool()])
add("a mask written", lambda x: (x.__setitem__(x > 0, 0.0), x)[1])
add("a mask written by a tensor", lambda x: (x.__setitem__(x > 0, x[x > 0] * 2), x)[1])
add("a mask written by too few values", lambda x: (x.__setitem__(x > -99, torch.ones(2)), x)[1])
add("a written index with repeats", lambda x: (x.__setitem__(REPEATS, 5.0), x)[1])
add("index_put with accumulation", lambda x: x.index_put((REPEATS,), torch.ones(4, 3), accumulate=True), one_leaf)
add("index_put_ of two indices", lambda x: x.index_put_((REPEATS, REPEATS % 2), torch.tensor(1.0), accumulate=True))
add("an addition at an index with repeats", lambda x: (x.__setitem__(REPEATS, x[REPEATS] + 1), x)[1])
add(
    "index_add, alpha",
    lambda x: (x.index_add(0, REPEATS, torch.ones(4, 3), alpha=2), x.index_add(1, torch.tensor([0, 0]), x[:, :2])),
)
add(
    "index_copy and index_fill",
    lambda x: (
        x.index_copy(0, torch.tensor([2, 0]), x[:2]),
        x.index_fill(1, torch.tensor([1]), 9),
        x.index_select(1, torch.tensor([2, 2])),
    ),
)
add(
    "index_add to integers",
    lambda x: x.index_add(0, torch.tensor([0, 0, 1, 1]), torch.ones(4, dtype=torch.int64)),
    lambda n: (ints(n),),
)
add(
    "index_reduce",
    lambda x: (
        x.index_reduce(0, REPEATS, torch.ones(4, 3) * 2, "prod"),
        x.index_reduce(0, REPEATS, torch.ones(4, 3), "amax", include_self=False),
    ),
)
add(
    "gather and take_along_dim",
    lambda x, i: (x.gather(0, i), x.gather(0, i[:2]), x.take_along_dim(i, 0)),
    with_positions,
)
add("gather, backward", lambda x, i: x.gather(0, i), lambda n: (leaf(n, 3), ints(n, 3, low=0, high=n)))
add("gather of a smaller index", lambda x, i: x.gather(1, i[:1, :2] % 3), with_positions)
add(
    "take and put",
    lambda x, i: (x.take(i), x.put(i, torch.ones_like(i, dtype=x.dtype)), x.put(i, x[:, :3], accumulate=True)),
    with_positions,
)
add(
    "scatter of a number",
    lambda x, i: (
        x.scatter(0, i[:2], 1.5),
        x.scatter(0, i[:1], 2.0, reduce="add"),
        x.scatter(0, i[:1], 2.0, reduce="multiply"),
    ),
    with_positions,
)
add(
    "scatter_add with repeats",
    lambda x, i: x.scatter_add(0, i, x * 2),
    lambda n: (leaf(n, 3), ints(n, 3, low=0, high=n)),
)
add(
    "scatter_reduce",
    lambda x, i: [x.scatter_reduce(0, i, x * 2, kind) for kind in ("sum", "prod", "mean", "amax", "amin")],
    with_positions,
)
add(
    "scatter_reduce without self",
    lambda x, i: [
        x.scatter_reduce(0, i, x * 2, kind, include_self=False) for kind in ("sum", "prod", "mean", "amax", "amin")
    ],
    with_positions,
)
add(
    "scatter_reduce, backward",
    lambda x, i: (x.scatter_reduce(0, i, x * 2, "mean"), x.scatter_reduce(0, i, x * 2, "amax")),
    lambda n: (leaf(n, 3), ints(n, 3, low=0, high=n)),
)
add(
    "scatter of integers",
    lambda i: torch.zeros(9, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)),
    lambda n: (ints(n, low=0, high=9),),
)
add("masked_scatter", lambda x: x.masked_scatter(x > 0, torch.arange(18.0)))
add("masked_scatter with too few values", lambda x: x.masked_scatter(x > -99, torch.ones(2)))
add(
    "select_scatter and its kin",
    lambda x: (
        x.select_scatter(torch.ones(3), 0, 1),
        x.slice_scatter(torch.ones(2, 3), 0, 1, 3),
        x.diagonal_scatter(torch.ones(3)),
    ),
)
add("fill_diagonal", lambda x: (x.clone().fill_diagonal_(7), torch.zeros(7, 3).fill_diagonal_(1, wrap=True)))
add("diagonals", lambda x: (x.diag(), x.diagonal(1), x[0].diag(-1), torch.diag_embed(x, 1), x.diagflat(), x.trace()))
add(
    "triangles of batches",
    lambda x: (x.expand(2, *x.shape).tril(-1), x.triu(5), torch.tril_indices(3, 4), torch.triu_indices(3, 2, 1)),
)
add(
    "nonzero and argwhere",
    lambda x: ((x > 0).nonzero(), (x > 0).nonzero(as_tuple=True), torch.argwhere(x > 9), torch.where(x > 0)),
)
add(
    "repeat_interleave",
    lambda x: (x.repeat_interleave(2, 0), x.repeat_interleave(torch.tensor([1, 0, 2]), 1), x.repeat_interleave(3)),
)
add("repeat and tile", lambda x: (x.repeat(2, 1, 2), x.tile(2), x.repeat(0, 1), x[0].repeat(2, 2)))
add(
    "sums of nothing",
    lambda x: (x.sum(), x.sum(0), x.mean(0), x.prod(0), x.any(), x.all(), x.var(0), x.logsumexp(0)),
    empty,
)
add("the largest of nothing", lambda x: x.max(), empty)
add("the largest of nothing along an axis", lambda x: (x.amax(1), x.argmax(1)), empty)
add("the largest of nothing along the empty axis", lambda x: x.amax(0), empty)
add(
    "scans and sorts of nothing",
    lambda x: (
        x.cumsum(0),
        x.sort(0),
        x.topk(0, 0),
        x.cat([x, x]) if hasattr(x, "cat") else torch.cat([x, x]),
        x.flip(0),
    ),
    empty,
)
add(
    "products and softmax of nothing",
    lambda x: (x.t() @ x, x @ x.t(), x.softmax(0), x.softmax(1), torch.einsum("ij,ik->jk", x, x)),
    empty,
)
add(
    "a cat with an empty tensor",
    lambda x: (torch.cat([torch.empty(0), x]), torch.cat([x, x[:0]]), torch.stack([x[:0], x[:0]])),
)
add(
    "reductions and keepdim",
    lambda x: (x.sum((0, 1), keepdim=True), x.mean(-1, keepdim=True), x.amax((), keepdim=True), x.sum([])),
)
add(
    "reductions of rank 0",
    lambda x: (x.sum().sum(0), x.sum().max(0), x.sum().softmax(0), x.sum().cumsum(0), x.sum().sort()),
)
add("repeated axes", lambda x: x.sum((0, 0)))
add("an axis out of range", lambda x: x.sum(2))
add(
    "scans of dtypes",
    lambda x: (x.cumsum(0), x.cumsum(0, dtype=torch.float32), x.cumprod(0), x.bool().cumsum(0)),
    lambda n: (ints(n, dtype=torch.int32),),
)
add(
    "a scan of bytes",
    lambda x: (x.cumsum(0), x.cumsum(0, dtype=torch.uint8), x.sum(dtype=torch.uint8)),
    lambda n: (ints(n, low=99, high=256, dtype=torch.uint8),),
)
add(
    "stable sorts",
    lambda x: (
        x.sign().sort(0, stable=True),
        x.sign().sort(1, descending=True, stable=True),
        x.sign().flatten().argsort(stable=True),
    ),
)
add(
    "ties of arguments",
    lambda x: (
        x.sign().argmax(0),
        x.sign().argmin(1),
        (x * 0).argmax(),
        x.sign().max(0).indices,
        x.sign().min(1).indices,
    ),
)
add(
    "topk",
    lambda x: (
        x.topk(2, 0),
        x.topk(1, 1, largest=False),
        x.flatten().topk(3, sorted=True),
        x.kthvalue(2, 0),
        x.mode(0).values,
    ),
)
add("topk beyond the size", lambda x: x.topk(9, 0))
add("medians and modes", lambda x: (x.median(0), x.sign().mode(1).values, x.flatten().median()))
add(
    "unique and consecutive",
    lambda x: (
        x.sign().unique(dim=0),
        x.sign().flatten().unique_consecutive(return_counts=True),
        x.unique(sorted=True),
    ),
)
add(
    "histograms",
    lambda x: (
        x.histc(4, -1, 1),
        torch.bincount(x.abs().long().flatten(), minlength=5),
        torch.bincount(x.abs().long().flatten(), x.flatten()),
    ),
)
add(
    "differences and integrals",
    lambda x: (
        x.diff(),
        x.diff(n=2, dim=0),
        x.diff(prepend=x[:, :1]),
        torch.trapezoid(x),
        torch.trapezoid(x, dx=2, dim=0),
        torch.cumulative_trapezoid(x),
    ),
)
add("gradients of a grid", lambda x: torch.gradient(x, dim=0))
add("cov and corrcoef", lambda x: (x.cov(), x.corrcoef(), x.cov(correction=0)))
add(
    "std_mean and var_mean", lambda x: (torch.std_mean(x, 1), torch.var_mean(x, correction=0), x.std(0, unbiased=False))
)
add(
    "odd sizes",
    lambda x: (x.sum(), x.sum(0), x.sum(1), x.softmax(1), x.amax(0), x.cumsum(1)),
    sixteen,
    sizes=(13, 16, 17),
)
add("large sizes", lambda x: (x.sum(), x.mean(0), x.argmax(1), (x + 1).norm()), sixteen, sizes=(129, 1025))
add("an outer axis of one", lambda x: (x[:1].sum(0), x[:1].softmax(0), x[:1].var(0), x[:1].expand(3, -1).sum(0)))
add(
    "isin and one_hot",
    lambda i: (torch.isin(i, torch.tensor([1, 2])), torch.nn.functional.one_hot(i, 9), torch.nn.functional.one_hot(i)),
    lambda n: (ints(n, low=0, high=9),),
)
add(
    "meshgrid and cartesian products",
    lambda x: (
        torch.meshgrid(x[0], x[1], indexing="ij"),
        torch.meshgrid(x[0], x[1], indexing="xy"),
        torch.cartesian_prod(x[0], x[1]),
        torch.combinations(x[0]),
    ),
)
add("block_diag, kron, vander", lambda x: (torch.block_diag(x, x[:1]), torch.kron(x, x[:2]), torch.vander(x[0])))
add("renorm and cummax", lambda x: (x.renorm(2, 0, 1.0), x.cummin(0), x.logcumsumexp(1)))


@PROGRAMS.scenario
def an_index_that_comes_from_values(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x[x.argmax()] + x[int(x.argmin())])
    for n in (3, 3, 5):
        yield f(floats(n))


@PROGRAMS.scenario
def an_integer_index_that_changes(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, i: (x[i], x[i:], x[:i], x.narrow(0, 0, abs(i))))
    for i in (0, 1, 2, -1, -3, 5):
        yield attempt(f, floats(4), i)


@PROGRAMS.scenario
def slices_that_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, start, stop, step: x[start:stop:step] * 2)
    for bounds in ((0, 3, 1), (1, 3, 1), (2, 9, 1), (-2, 6, 1), (0, 6, 2), (4, 2, 1), (1, -1, 3), (None, None, 1)):
        yield attempt(f, floats(6), *bounds)


@PROGRAMS.scenario
def writes_at_a_position_that_changes(compile: Compile) -> Iterator[Any]:
    def program(cache: Tensor, x: Tensor, position: int) -> Tensor:
        cache[:, position : position + x.shape[1]] = x
        return cache[:, : position + x.shape[1]].sum(1)

    f = compile(program)
    cache = torch.zeros(2, 6)
    for position, n in ((0, 2), (2, 1), (3, 1), (4, 2)):
        yield f(cache, floats(2, n), position), cache
    yield attempt(f, cache, floats(2, 2), 5), cache


@PROGRAMS.scenario
def writes_at_a_position_in_a_tensor(compile: Compile) -> Iterator[Any]:
    def program(cache: Tensor, x: Tensor, position: Tensor) -> Tensor:
        cache.index_copy_(1, position, x)
        cache[:, position] += 1
        return cache * 2

    f = compile(program)
    cache = torch.zeros(2, 6)
    for positions in ([0, 1], [2], [5], [3, 4, 1]):
        yield f(cache, floats(2, len(positions)), torch.tensor(positions)), cache
    yield attempt(f, cache, floats(2, 1), torch.tensor([6]))
