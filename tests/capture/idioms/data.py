"""Sizes and values that depend on data."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .table import Table

TABLE = Table()


def vectors(count: int = 2, size: int = 6) -> Any:
    def calls() -> list[tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return [(torch.randn(size),) for _ in range(count)]

    return calls


def integers(*values: list[int]) -> Any:
    return lambda: [(torch.arange(12.0), torch.tensor(value)) for value in values]


@TABLE.add(vectors())
def assigns_where_negative(x):
    y = x * 2
    y[y < 0] = 0.0
    return y + 1


@TABLE.add(vectors())
def assigns_tensor_where_negative(x):
    y = x.clone()
    y[x < 0] = torch.tensor(3.0)
    return y


@TABLE.add(lambda: [(torch.randn(4, 3), torch.tensor([True, False, True, True]))])
def assigns_rows(x, mask):
    y = x * 1
    y[mask] = -1.0
    y[~mask, 0] = 5.0
    return y


@TABLE.add(vectors())
def assigns_gathered(x):
    y = x.clone()
    mask = x > 0
    y[mask] = y[mask] * 2
    return y


@TABLE.add(vectors())
def adds_where(x):
    y = x * 1
    y[x > 0] += 10.0
    return y


@TABLE.add(vectors())
def masked_values(x):
    return x[x > 0] * 2


@TABLE.add(vectors())
def masked_sum(x):
    return x[x > 0].sum() + x.masked_select(x < 0).sum()


@TABLE.add(vectors())
def nonzero_rows(x):
    return x[(x > 0).nonzero().squeeze(1)] + 1


@TABLE.add(vectors())
def nonzero_tuple(x):
    (i,) = torch.where(x > 0)
    (j,) = (x < 0).nonzero(as_tuple=True)
    return x[i].sum() - x[j].sum()


@TABLE.add(integers([3, 1, 3, 2], [5, 5, 5]))
def unique_values(x, i):
    values, inverse, counts = torch.unique(i, return_inverse=True, return_counts=True)
    return values * 2, inverse + 1, counts.sum()


@TABLE.add(integers([2, 1, 4], [1, 1, 2]))
def repeats(x, n):
    return torch.repeat_interleave(x[:3], n) * 2


@TABLE.add(lambda: [(torch.arange(7.0), [2, 5]), (torch.arange(7.0), [2, 5])])
def splits_by_list(x, sizes):
    a, b = torch.split(x, sizes)
    return a.sum() * b


@TABLE.add(integers([3, 9], [5, 7]))
def splits_by_tensor(x, n):
    a, b = x.split(n.tolist())
    return a.sum() * b


@TABLE.add(lambda: [(torch.arange(12.0), torch.tensor(3)), (torch.arange(12.0), torch.tensor(5))])
def range_of_item(x, n):
    return torch.arange(n.item()).sum() + x


@TABLE.add(lambda: [(torch.arange(12.0), torch.tensor(3)), (torch.arange(12.0), torch.tensor(5))])
def slice_by_item(x, n):
    return x[: n.item()] * 2


@TABLE.add(lambda: [(torch.arange(4.0), torch.tensor(3)), (torch.arange(4.0), torch.tensor(5))])
def repeat_by_item(x, n):
    return x.repeat(n.item()).sum()


@TABLE.add(lambda: [(torch.arange(4.0), torch.tensor(3)), (torch.arange(4.0), torch.tensor(5))])
def zeros_of_item(x, n):
    return torch.zeros(int(n), 4) + x


@TABLE.add(lambda: [(torch.randn(3, 6), torch.tensor([2, 6, 3])), (torch.randn(3, 6), torch.tensor([1, 4, 3]))])
def asserts_lengths(x, lengths):
    assert lengths.max().item() <= x.shape[1], "too long"
    mask = torch.arange(x.shape[1])[None] < lengths[:, None]
    return (x * mask).sum(1)


@TABLE.add(vectors())
def asserts_finite(x):
    assert torch.isfinite(x).all(), "not finite"
    return x * 2


@TABLE.add(vectors())
def raises_if_not_finite(x):
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    return x * 2


@TABLE.add(lambda: [(torch.arange(12.0), torch.tensor(3)), (torch.arange(12.0), torch.tensor(5))])
def checks_item(x, n):
    k = n.item()
    torch._check(k >= 1)
    torch._check(k < 10, lambda: f"too many: {k}")
    return x.narrow(0, 0, k) + 1


@TABLE.add(lambda: [(torch.arange(12.0), torch.tensor([2, 6])), (torch.arange(12.0), torch.tensor([2, 6]))])
def grid_to_list(x, grid):
    h, w = grid.tolist()
    return x.view(h, w).sum(0)


@TABLE.add(lambda: [(torch.arange(12.0).view(4, 3), torch.tensor([[1, 2], [3, 1]]))] * 2)
def grid_of_images(x, grid):
    total = x.sum()
    for h, w in grid.tolist():
        total = total + torch.arange(h * w).float().view(h, w).mean()
    return total


@TABLE.add(vectors())
def branches_on_any(x):
    if (x > 100).any():
        x = x - 100
    return x * 2


@TABLE.add(vectors())
def float_item_multiplies(x):
    return x * x.max().item()


@TABLE.add(vectors())
def float_item_returned(x):
    loss = (x * x).sum()
    return x + 1, loss.item()


@TABLE.add(vectors())
def logs_float(x):
    logs = {}
    loss = (x * x).mean()
    logs["loss"] = loss.item()
    return loss * 2, logs


@TABLE.add(lambda: [(torch.arange(6).view(2, 3),), (torch.arange(6).view(2, 3) * 2,)])
def list_returned(x):
    return x * 2, x.sum(1).tolist()


@TABLE.add(lambda: [(torch.randn(2, 4), torch.tensor([1, 3])), (torch.randn(2, 4), torch.tensor([0, 2]))])
def integer_index(x, labels):
    return x[torch.arange(2), labels].sum()


@TABLE.add(lambda: [(torch.randn(2, 4), torch.tensor(1)), (torch.randn(2, 4), torch.tensor(0))])
def index_by_scalar(x, i):
    return x[i] + x[:, i].sum()


@TABLE.add(lambda: [(torch.randn(8, 4), torch.tensor([1, 3])), (torch.randn(8, 4), torch.tensor([0, 2]))])
def boxes_above(x, keep):
    scores = x[:, 0]
    inside = scores > 0.0
    boxes, scores = x[inside], scores[inside]
    order = scores.argsort(descending=True)
    return boxes[order]


@TABLE.add(lambda: [(torch.tensor([3, 0, 5, 0, 2]),), (torch.tensor([0, 0, 1, 0, 2]),)])
def first_nonzero(ids):
    return (ids == 0).nonzero()[0].float() if ids.dim() else ids


@TABLE.add(
    lambda: [
        (torch.randn(3, 4), torch.tensor([[1, 0, 1, 1]] * 3)),
        (torch.randn(3, 4), torch.tensor([[1, 0, 0, 1]] * 3)),
    ]
)
def masked_mean(x, mask):
    chosen = x[mask.bool()]
    return chosen.mean() if chosen.numel() > 0 else x.sum()


@TABLE.add(vectors())
def bucket_counts(x):
    return torch.bincount((x > 0).long(), minlength=2)


@TABLE.add(lambda: [(torch.randn(n, 2), torch.arange(2 * n) % n) for n in (4, 5, 6)])
def mean_of_neighbours(x, index):
    degree = torch.bincount(index, minlength=x.size(0)).clamp(min=1)
    return torch.zeros_like(x).index_add(0, index, x[index]) / degree[:, None], torch.bincount(index, x[index, 0].exp())


@TABLE.add(lambda: [(torch.tensor([1, 0, 2]),), (torch.tensor([1, 1, 0]),)])
def one_hot_unknown(labels):
    return F.one_hot(labels, 3) * 2


@TABLE.add(lambda: [(torch.randn(4, 2), torch.tensor([0, 1, 1, 3])), (torch.randn(4, 2), torch.tensor([0, 1, 2, 3]))])
def message_passing(x, index):
    out = torch.zeros(int(index.max()) + 1, 2)
    return out.index_add(0, index, x)


@TABLE.add(
    lambda: [(torch.randn(4, 5), torch.tensor([2, 2, 5, 1])), (torch.randn(4, 5), torch.tensor([3, 2, 5, 1]))],
)
def trims_to_longest(x, lengths):
    return x[:, : lengths.max()] * 2


@TABLE.add(vectors())
def clamps_norm(x):
    norm = x.norm()
    scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    return x * scale


def check(holds, message):
    torch._check_tensor_all(holds, lambda: message)


@TABLE.add(lambda: [(torch.randn(2, 4), torch.tensor([3, 1, 3, 0])), (torch.randn(2, 4), torch.tensor([3, 3, 1, 0]))])
def message_of_a_check(x, ids):
    chosen = ids == 3
    count = chosen.sum()
    check(count * 2 == x.shape[1], f"{count} tokens, {x.shape[1]:>4} features")
    return x.masked_scatter(chosen, x + 1)


@TABLE.add(
    lambda: [
        (torch.tensor([[1, 2], [3, 2]]), torch.randn(2, 2, 5)),
        (torch.tensor([[2, 1], [2, 3]]), torch.randn(2, 2, 5)),
    ]
)
def last_of_chosen_rows(ids, x):
    return x[ids.eq(2), :].view(x.shape[0], -1, x.shape[-1])[:, -1, :]


@TABLE.add(lambda: [(torch.tensor([True, False, True]), torch.randn(3), torch.ones(2))])
def adds_chosen(mask, x, y):
    return y + x[mask]


@TABLE.add(
    lambda: (
        [(torch.tensor([True, False, True]), torch.randn(3), torch.ones(2))] * 2
        + [(torch.tensor([True, False, False]), torch.randn(3), torch.ones(2))]
    )
)
def adds_chosen_or_one(mask, x, y):
    return y + x[mask]


@TABLE.add(lambda: [(torch.tensor([[1, 2, 3]]), torch.ones(6, 2)), (torch.tensor([[1, 3, 2]]), torch.ones(6, 2))])
def positions_of_a_grid(grid, x):
    positions = torch.cat([torch.arange(int(t * h * w)) for t, h, w in grid])
    return x + positions[:, None]


@TABLE.add(lambda: [(torch.randn(4, 6),), (torch.randn(8, 6),)])
def divides_sizes(x):
    chunks = torch.div(x.size(0), 2, rounding_mode="trunc")
    return x.view(chunks, 2, -1) * (chunks - 1)


@TABLE.add(lambda: [(torch.ones(3), torch.ones(3, requires_grad=True))])
def sets_requires_grad(x, w):
    hidden = x[:, None]
    hidden.requires_grad = True
    return hidden * w


@TABLE.add(vectors())
def marks_static(x):
    state = torch.zeros(6)
    torch._dynamo.mark_static_address(state)
    return x + state


@TABLE.add(
    lambda: [
        (torch.arange(8.0), torch.tensor(2), torch.tensor(1)),
        (torch.arange(8.0), torch.tensor(0), torch.tensor(3)),
    ]
)
def pads_by_tensors(x, left, right):
    padded = F.pad(x[None], (left, right), mode="constant")
    return padded[..., : padded.shape[-1] - 1]


GRIDS = [[[1, 2, 3], [2, 1, 2]], [[1, 2, 3], [2, 1, 2]], [[1, 2, 3], [1, 2, 2]], [[1, 2, 5]]]


@TABLE.add(lambda: [(torch.tensor(grid), torch.randn(10, 2)) for grid in GRIDS])
def splits_by_a_grid(grid, x):
    ends = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0, dtype=torch.int32)
    ends = F.pad(ends, (1, 0))
    return torch.cat([part * 2 for part in torch.split(x, (ends[1:] - ends[:-1]).tolist(), dim=0)])


@TABLE.add(lambda: [(torch.tensor(grid), torch.randn(10, 2)) for grid in GRIDS])
def branches_on_sizes_of_a_grid(grid, x):
    return x + 1 if torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).max() > 5 else x - 1


@TABLE.add(lambda: [(torch.tensor(ids), torch.randn(4)) for ids in ([1, 3, 2, 3], [1, 1, 2, 3], [3, 1, 1, 1])])
def begins_at_a_token(ids, x):
    places = (ids == 3).nonzero().flatten().tolist()
    return x[places[0] :] if places else x


@TABLE.add(lambda: [(torch.tensor(mask), torch.randn(4)) for mask in ([[1, 1], [1, 1]], [[1, 1], [0, 1]])])
def branches_on_distinct_lengths(mask, x):
    return x if len(mask.sum(1).unique()) > 1 else x * 2
