"""In-place writes: only what is written is touched, and every reader sees the version that it would in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from kiln.plan.plan import Plan
from kiln.plan.steps import AllocateStep, CopyStep
from tests.loops.compiled_plans import compiled_plans

Tensor = torch.Tensor
Program = Callable[..., Any]


def setitem(k: Tensor, v: Tensor) -> Tensor:
    k[:, :, 5] = v[:, :, 0]
    return k


def two_versions(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    before = k.sum()
    k[:, 1] = v[:, 1] * before
    k[:, 2:4].mul_(2)
    return before, k.sum(1)


def nested_views(k: Tensor, v: Tensor) -> Tensor:
    k[1:][:, :, 3].copy_(v[1:, :, 0])
    return k.mean()


def reads_a_shifted_part(k: Tensor, v: Tensor) -> None:
    k[:, :, 1:] = k[:, :, :-1] * 2


def swaps_halves(k: Tensor, v: Tensor) -> None:
    first = k[:, :, :4] + 0
    k[:, :, :4] = k[:, :, 4:8]
    k[:, :, 4:8] = first


def old_value_is_used_later(k: Tensor, v: Tensor) -> Tensor:
    doubled = k * 2
    k[:, :, 0] = v[:, :, 0]
    return doubled + k


def old_view_is_used_later(k: Tensor, v: Tensor) -> Tensor:
    row = k[:, :, 0].clone()
    k[:, :, 0] = v[:, :, 0]
    return row + k[:, :, 0]


def index_copy(k: Tensor, v: Tensor) -> Tensor:
    return k.index_copy_(2, torch.tensor([3]), v[:, :, :1])


def index_add(k: Tensor, v: Tensor) -> Tensor:
    k.index_add_(2, torch.tensor([3, 3, 1]), v[:, :, :3])
    return k + 1


def index_put(k: Tensor, v: Tensor) -> None:
    k[:, torch.tensor([0, 2])] = v[:, :2]


def index_put_in_a_view(k: Tensor, v: Tensor) -> None:
    k[1][torch.tensor([0, 2])] = v[0, :2]


def index_put_of_itself(k: Tensor, v: Tensor) -> None:
    k[:, torch.tensor([0, 2])] = k[:, torch.tensor([2, 1])] + 1


def copies_itself(k: Tensor, v: Tensor) -> None:
    k.index_copy_(1, torch.tensor([2, 1, 0, 3]), k * 1.5)


def scatter(k: Tensor, v: Tensor) -> Tensor:
    k.scatter_(2, torch.zeros(2, 4, 1, 3, dtype=torch.int64), v[:, :, :1])
    k.scatter_add_(2, torch.ones(2, 4, 1, 3, dtype=torch.int64), v[:, :, 1:2])
    return k * 1


def flat(k: Tensor, v: Tensor) -> None:
    k.view(-1)[3:7] = v.reshape(-1)[:4]
    k.view(-1, 3)[torch.tensor([5])] = 1.0


def diagonal(k: Tensor, v: Tensor) -> None:
    k.diagonal(0, 1, 2).copy_(v[:, :, 0].sum(1, keepdim=True).transpose(1, 2))


def narrow(k: Tensor, v: Tensor) -> Tensor:
    k.narrow(2, 2, 1).copy_(v[:, :, :1])
    return k


def whole(k: Tensor, v: Tensor) -> Tensor:
    k.mul_(2).add_(1)
    return k


def whole_with_readers(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    first = k.exp()
    k.mul_(2)
    return first, k - 1


def overwritten(k: Tensor, v: Tensor) -> Tensor:
    total = k.sum()
    k.copy_(v.sum())
    return total


def reduced_then_overwritten(k: Tensor, v: Tensor) -> None:
    k.sub_(k.mean((1, 2), keepdim=True))


def twice_as_different_parts(k: Tensor, v: Tensor) -> None:
    for step in range(6):
        k[:, :, step] = k[:, :, step] + k[:, :, step + 1]


def built_up(k: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros(6, 3)
    for step in range(6):
        out[step] = v[0, 0, 0] * step
    return out


def scattered_twice(k: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros(9, 3)
    out.index_add_(0, torch.tensor([1, 1, 8, 0]), v[0, :, 0])
    total = out.sum()
    out.index_add_(0, torch.tensor([1, 1, 8, 0]), v[1, :, 0])
    return out * total


IN_PLACE: tuple[Program, ...] = (
    setitem, two_versions, nested_views, index_copy, index_add, index_put, index_put_in_a_view, scatter, flat, diagonal,
    narrow, whole, twice_as_different_parts,
)  # fmt: skip
WITH_A_COPY: tuple[Program, ...] = (
    reads_a_shifted_part, swaps_halves, old_value_is_used_later, old_view_is_used_later, index_put_of_itself,
    copies_itself, whole_with_readers, overwritten, reduced_then_overwritten, built_up, scattered_twice,
)  # fmt: skip


def arguments(layout: str) -> tuple[Tensor, Tensor]:
    """A tensor of [2, 4, 8, 3] to write to, contiguous or part of a larger one, and a value of the same size."""
    values = torch.arange(2.0 * 4 * 8 * 3).reshape(2, 4, 8, 3) / 7
    if layout == "contiguous":
        return values.clone(), values.flip(2) + 1
    room = torch.full((3, 4, 8, 5), -1.0)
    part = room[1:, :, :, 1:4]
    part.copy_(values)
    return part, values.flip(2) + 1


@pytest.mark.parametrize("layout", ["contiguous", "part"])
@pytest.mark.parametrize("program", [*IN_PLACE, *WITH_A_COPY], ids=lambda program: program.__name__)
def test_equals_eager(program: Program, layout: str) -> None:
    if layout == "part" and program is flat:
        pytest.skip("eager has no flat view of it")
    (k, v), (k_eager, v_eager) = arguments(layout), arguments(layout)
    result, expected = kiln.compile(program)(k, v), program(k_eager, v_eager)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(k, k_eager)
    if layout == "part":
        assert k._base is not None and k_eager._base is not None
        torch.testing.assert_close(k._base, k_eager._base)


def part_of_an_argument(k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    part = k[-1]
    part.scatter_(0, torch.zeros(1, 1, 1, dtype=torch.int64), 1.0)
    copied = part.clone()
    return copied, copied.view(-1)


def part_of_a_result(k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    y = k * 2
    part = y[-1]
    part.scatter_(0, torch.zeros(1, 1, 1, dtype=torch.int64), 1.0)
    copied = part.clone()
    return y, copied, copied.view(-1)


@pytest.mark.parametrize("program", [part_of_an_argument, part_of_a_result], ids=lambda program: program.__name__)
def test_copies_of_updated_parts_share_no_memory(program: Program) -> None:
    k, v = arguments("contiguous")
    *others, copied, flat = kiln.compile(program)(k, v)
    assert flat.data_ptr() == copied.data_ptr()
    memory = [other.untyped_storage().data_ptr() for other in (k, v, *others)]
    assert copied.untyped_storage().data_ptr() not in memory


def written_like(plan: Plan, sizes: tuple[int, ...]) -> int:
    """Copies into arguments, and buffers as large as one of them."""
    fresh = [step.spec.sizes for step in plan.steps if isinstance(step, AllocateStep)]
    return sum(isinstance(step, CopyStep) for step in plan.steps) + fresh.count(sizes)


@pytest.mark.parametrize("program", IN_PLACE, ids=lambda program: program.__name__)
def test_nothing_is_copied(program: Program) -> None:
    k, v = arguments("contiguous")
    if program in (index_add, scatter):
        pytest.skip("its result is another tensor of that size")
    (plan,) = compiled_plans(program, k, v)
    assert written_like(plan, (2, 4, 8, 3)) == 0


def test_optimizer_state_is_updated_in_place() -> None:
    """As an optimizer writes: each value is computed once, in a single kernel, in the memory that it is written to."""

    def step(p: Tensor, m: Tensor, g: Tensor) -> None:
        m.mul_(0.9).add_(g, alpha=0.1)
        p.sub_(m * 0.01)

    given = [torch.rand(64, 64) for _ in range(3)]
    (plan,) = compiled_plans(step, *given)
    assert written_like(plan, (64, 64)) == 0
    assert len(plan.kernels) == 1
