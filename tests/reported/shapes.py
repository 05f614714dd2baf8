"""Sizes that change, 0 and 1 among them; strides, memory formats, expanded and flipped inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats, leaf, one_leaf

PROGRAMS = Programs("shapes")
add, scenario = PROGRAMS.add, PROGRAMS.scenario
MANY = (4, 6, 1, 0, 2, 17)


def image(n: int) -> tuple[Tensor, ...]:
    return (floats(n, 2, 4, 4),)


def channels_last(n: int) -> tuple[Tensor, ...]:
    return (floats(n, 3, 4, 4).contiguous(memory_format=torch.channels_last),)


add("all sizes, pointwise", lambda x: x * 2 + x[:, :1], sizes=MANY)
add("all sizes, reductions", lambda x: (x.sum(0), x.mean(1), x.softmax(1), x.prod(), x.std(1)), sizes=MANY)
add("all sizes, scans", lambda x: (x.cumsum(0), x.flip(0), x.sort(0).values), sizes=MANY)
add("all sizes, products", lambda x: (x @ x.t(), x.t() @ x, x @ torch.ones(3)), sizes=MANY)
add("all sizes, views", lambda x: (x.view(-1), x.t(), x.unsqueeze(1), x.reshape(3, -1)), sizes=MANY)
add("all sizes, gradients", lambda x: (x * x.sum(0)).sin(), one_leaf, sizes=MANY)
add("all sizes, broadcasting", lambda x, y: (x + y, x * y.t()), lambda n: (floats(n, 1), floats(1, n)), sizes=MANY)
add("all sizes, cat", lambda x: (torch.cat([x, x[:1]]), torch.stack([x, x], 1)), sizes=MANY)
add("all sizes, split", lambda x: (x.split(2), x.chunk(3), x.unbind(1)), sizes=MANY)
add(
    "all sizes, pad",
    lambda x: (torch.nn.functional.pad(x, (1, 0, 2, 1), value=7), torch.nn.functional.pad(x, (-1, 1))),
    sizes=MANY,
)
add(
    "all sizes, arange",
    lambda x: (torch.arange(x.shape[0]), torch.linspace(0, 1, x.shape[0]), torch.eye(x.shape[0])),
    sizes=MANY,
)
add(
    "all sizes, numbers",
    lambda x: (x.shape[0] * 2, x.numel() // 2, x.shape, x.stride(), x.size(0) ** 2, x.shape[0] / 4),
    sizes=MANY,
)
add("all sizes, branches", lambda x: x * 2 if x.shape[0] > 3 else x - 1 if x.shape[0] else x, sizes=MANY)
add("all sizes, loops", lambda x: [row * i for i, row in enumerate(x)], sizes=(4, 3, 1, 0, 2))
add("all sizes, variance", lambda x: (x.var(0), x.std(1), x.var()), sizes=(4, 6, 2, 17))
add("all sizes, unflatten", lambda x: (x.flatten(), x.unflatten(1, (3, 1)), x.view(x.shape[0], 1, 3)), sizes=MANY)
add("a view that does not fit", lambda x: x.view(2, -1), sizes=(4, 6, 3))
add("a view of a transposed input", lambda x: x.t().view(-1))
add("an expand that does not fit", lambda x: x.expand(5, 3), sizes=(1, 5, 4))
add("sizes that must be equal", lambda x, y: x + y, lambda n: (floats(n), floats(5)), sizes=(5, 1, 4))
add("a size-1 axis that grows", lambda x: x + torch.ones(4, 3), sizes=(1, 4, 1, 4, 3))
add(
    "an expanded input",
    lambda x: (x + 1, x * x, x.sum(0), x.contiguous()),
    lambda n: (floats(1, 3).expand(n, 3),),
    sizes=MANY,
)
add("a flipped input", lambda x: (x + 1, x.cumsum(0)), lambda n: (floats(n, 3).flip(0)[1:],))
add(
    "a strided input",
    lambda x: (x + 1, x.sum(1), x.view(-1) if x.is_contiguous() else x.stride()),
    lambda n: (floats(n, 6)[:, ::2],),
)
add("an input with an offset", lambda x: (x + 1, x.storage_offset(), x.stride()), lambda n: (floats(n + 1, 3)[1:],))
add("a transposed input", lambda x: (x + 1, x * x.contiguous(), x.relu()), lambda n: (floats(3, n).t(),))
add(
    "a permuted result",
    lambda x: (x.permute(2, 0, 1) + 1, x.permute(2, 0, 1).contiguous() * 2),
    lambda n: (floats(n, 2, 3),),
)
add("two layouts", lambda x, y: (x + y, y + x, torch.where(x > 0, x, y)), lambda n: (floats(n, 3), floats(3, n).t()))
add(
    "preserved strides",
    lambda x: (torch.empty_like(x).stride(), torch.zeros_like(x), x.clone(), x.t().clone()),
    lambda n: (floats(3, n).t(),),
)
add(
    "strides of like",
    lambda x: (torch.ones_like(x), torch.full_like(x, 2), torch.zeros_like(x, memory_format=torch.contiguous_format)),
    lambda n: (floats(n, 6)[:, ::2],),
)
add("empty_strided", lambda x: torch.empty_strided((3, 2), (1, 3)).copy_(x[:3, :2]))
add("channels_last kept", lambda x: (x * 2, x.relu() + 1, x.clone(), x.contiguous(), x.sum(1)), channels_last)
add(
    "channels_last made",
    lambda x: (x.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last) * 2),
    image,
)
add(
    "channels_last of one channel",
    lambda x: (x[:, :1] * 2, x[:, :1].contiguous(memory_format=torch.channels_last).stride()),
    channels_last,
)
add(
    "channels_last and a broadcast",
    lambda x: (x + torch.ones(3, 1, 1), x * x.mean((2, 3), keepdim=True)),
    channels_last,
)
add("channels_last in a convolution", lambda x: torch.nn.functional.conv2d(x, torch.ones(2, 3, 3, 3)), channels_last)
add(
    "channels_last in pooling",
    lambda x: (
        torch.nn.functional.max_pool2d(x, 2),
        torch.nn.functional.avg_pool2d(x, 2),
        torch.nn.functional.interpolate(x, scale_factor=2),
    ),
    channels_last,
)
add("channels_last in a norm", lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), channels_last)
add("cat of channels_last", lambda x: torch.cat([x, x * 2], 1), channels_last)
add(
    "is_contiguous asked",
    lambda x: (
        x.is_contiguous(),
        x.is_contiguous(memory_format=torch.channels_last),
        x.t().is_contiguous() if x.dim() == 2 else None,
    ),
    channels_last,
)
add(
    "a reshape of channels_last",
    lambda x: (x.reshape(x.shape[0], -1), x.flatten(2), x.permute(0, 2, 3, 1).view(x.shape[0], -1)),
    channels_last,
)
add(
    "matrix products of layouts",
    lambda x: (x.t() @ x, (x @ x.t()).t(), torch.mm(x, x.t())[:, ::2] @ torch.ones((x.shape[0] + 1) // 2)),
)
add(
    "results of products and their strides",
    lambda x: (
        torch.einsum("ij,kj->ki", x, x),
        x @ x[:2].t(),
        torch.matmul(x[None], x.t()),
        torch.bmm(x[None], x.t()[None]),
    ),
)
add(
    "sums and their strides",
    lambda x: (x.permute(2, 0, 1).sum(0), x.permute(1, 2, 0).mean(-1, keepdim=True), x.permute(2, 0, 1).softmax(-1)),
    lambda n: (floats(n, 2, 3),),
)
add("sorts and their strides", lambda x: (x.t().sort(0), x.t().cumsum(0), x.t().argsort(1, stable=True)))
add("T, mT, H", lambda x: (x.T, x.mT, x.H, x.adjoint()))
add(
    "squeeze of several axes",
    lambda x: (x[None, :, None].squeeze(), x[None, :, None].squeeze((0, 2)), x[:, :1].squeeze(1), x.squeeze(0)),
    sizes=(4, 1, 2),
)
add(
    "rank 0",
    lambda x: (
        x.sum().view(1),
        x.sum().expand(3),
        x.sum()[None],
        x.sum().unsqueeze(-1),
        x.sum().reshape(()),
        x[0, 0].shape,
    ),
)
add("ranks above five", lambda x: x.view(1, -1, 1, 3, 1, 1).transpose(1, 3) * torch.ones(1, 1, 2, 1, 1, 1))
add(
    "comparisons of shapes",
    lambda x: (
        x.shape == (4, 3),
        x.shape[0] == x.shape[1],
        x.shape == torch.Size([4, 3]),
        len(x.shape),
        x.shape[-1] * x.size(0),
        x.shape[:1] + (2,),  # noqa: RUF005
    ),
    sizes=(4, 3, 6),
)
add(
    "a size in a tensor",
    lambda x: (
        torch.tensor(x.shape),
        torch.tensor([x.shape[0], 1.5]),
        x * torch.tensor(x.shape[0]),
        x.new_tensor(x.shape),
    ),
    sizes=(4, 6, 1),
)
add(
    "a size as a scale",
    lambda x: (x / x.shape[0], x * x.shape[0] ** -0.5, x.sum(0).div(x.shape[0]), x + x.shape[0] // 2),
)
add("as_strided of an expanded input", lambda x: x.as_strided((2, 2), (0, 1)), lambda n: (floats(n),))
add("sliding windows", lambda x: (x.unfold(0, 2, 2), x.unfold(1, 3, 1), x.unfold(0, 2, 1).unfold(1, 2, 1)))
add("unfold beyond the size", lambda x: x.unfold(0, 5, 1), sizes=(6, 4))


@scenario
def ranks_that_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2, x.sum(-1), x.shape))
    for sizes in ((3,), (2, 3), (1, 2, 3), (3,), (4, 4)):
        yield f(floats(*sizes))


@scenario
def dtypes_that_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2 + 1, x.sum(), x / 2))
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64, torch.uint8, torch.float32):
        yield f(torch.arange(4).to(dtype))


@scenario
def strides_that_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x + 1, x.view(-1) if x.is_contiguous() else None, x.reshape(-1)))
    base = floats(6, 6)
    for x in (base[:3, :3].contiguous(), base[:3, :3], base.t()[:3, :3], base[::2, ::2], base[0].expand(3, 6)[:, :3]):
        yield f(x)


@scenario
def several_sizes_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: (x @ y, x.sum(1, keepdim=True) * y[:1], torch.cat([x.flatten(), y.flatten()])))
    for m, k, n in ((2, 3, 4), (3, 3, 3), (4, 1, 2), (1, 5, 1), (2, 2, 0)):
        yield f(floats(m, k), floats(k, n))
    yield attempt(f, floats(2, 3), floats(2, 3))


@scenario
def lengths_of_lists_that_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda items: (torch.stack(items).sum(0), len(items), [item * 2 for item in items]))
    for n in (2, 3, 1, 4, 2):
        yield f([floats(2) for _ in range(n)])
    yield attempt(f, [])


@scenario
def an_argument_that_may_be_none(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, mask: x if mask is None else x.masked_fill(mask, 0.0))
    for mask in (None, torch.ones(3).bool(), None, torch.tensor([True, False, True])):
        yield f(floats(3), mask)


@scenario
def kinds_of_inputs_that_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 2)
    for x in (torch.ones(2), 3, torch.tensor(3), torch.nn.Parameter(torch.ones(2)), 2.5, "ab", [1], leaf(2)):
        yield attempt(f, x)


@scenario
def sizes_from_data(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor, lengths: Tensor) -> Any:
        n = int(lengths.max())
        mask = torch.arange(n)[None] < lengths[:, None]
        return x[:, :n] * mask, torch.zeros(n), x.split(lengths.tolist(), 1)[0]

    f = compile(program)
    for lengths in ([1, 3], [2, 2], [4, 0]):
        yield f(floats(2, 4), torch.tensor(lengths))
    yield attempt(f, floats(2, 4), torch.tensor([5, 1]))


@scenario
def a_result_of_unknown_size(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x[x > 0].sum(), x.nonzero().shape[0], x[x > 0].reshape(-1, 1) * 2, x.unique().numel()))
    for x in (floats(5), floats(5), torch.zeros(5), torch.ones(3)):
        yield f(x)
