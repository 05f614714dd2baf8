"""Idioms of published models that are one graph, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.faults.outcome import assert_like_eager

X = torch.arange(12.0).reshape(3, 4) - 4


def whole(program: Callable[..., Any], *calls: tuple[Any, ...], compiles: int | None = None, **options: Any) -> None:
    """One graph, as eager for each of the calls."""
    compiled = kiln.compile(program, backend="eager", options={"cache": False, **options})
    for args in calls:
        assert_like_eager(compiled, program, *args)
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons
    assert compiles is None or report.compiles == compiles


LITERALS: dict[str, Callable[[Tensor], Any]] = {
    "numbers": lambda x: torch.tensor([x.max(), 2, True]),
    "rows": lambda x: torch.tensor([[x.max(), 2], (x.min(), 2.5)], dtype=torch.float64),
    "no gradient": lambda x: torch.tensor((x.sum(),), device="cpu").unsqueeze(1) * x,
    "dtypes": lambda x: torch.tensor([x.half().sum(), 2.5, 1]),
    "as_tensor": lambda x: (torch.as_tensor([x.bool().any(), x.bool().all()]), torch.asarray([x[0, 0].byte(), 300])),
    "sizes": lambda x: torch.tensor([x[0, 0], x.shape[0]]),
}


@pytest.mark.parametrize("name", LITERALS)
def test_tensors_as_numbers_of_a_tensor(name: str) -> None:
    whole(LITERALS[name], (X,), (X.clone().requires_grad_(),), (X.long(),))


def test_a_tensor_of_tensors_in_a_dtype_that_cannot_hold_them() -> None:
    program = lambda x: torch.tensor([x.max()], dtype=torch.int64)  # noqa: E731
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X / 0):
        assert_like_eager(compiled, program, x)


def padded(images: Tensor) -> Tensor:
    real = (images == 0.0).sum(dim=-1) != images[0].numel()
    images = images[real].contiguous()
    return images * 2 if real.all() else images + 1


def test_floats_that_mark_padding_choose_a_branch() -> None:
    holes = X.clone()
    holes[1] = 0
    whole(padded, (X,), (holes,), (X,), (holes * 3,), compiles=2)
    whole(lambda x: x + 1 if x.isnan().any() else x - 1, (X,), (X / 0,), compiles=2)


def test_floats_that_vary_choose_none() -> None:
    program = lambda x: x + 1 if (x * 2 == 0).any() else x - 1  # noqa: E731
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert_like_eager(compiled, program, X)
    assert kiln.report_of(compiled).regions == 1 and not kiln.report_of(compiled).breaks


def pieces(x: Tensor, lengths: Tensor) -> Tensor:
    rows = [part.reshape(-1, 2).flatten() for part in x.split(lengths.tolist())]
    longest = max(row.shape[0] for row in rows)
    return torch.stack([torch.nn.functional.pad(row, (0, longest - row.shape[0])) for row in rows])


def found_rows(x: Tensor) -> Tensor:
    rows = (x > 0).nonzero()
    return x.new_zeros(rows.shape[0] * 4).view(-1, 4) + rows.sum()


def longest(x: Tensor, y: Tensor) -> Tensor:
    kept = [x[x > 0], y[y > 0]]
    most = max(part.shape[0] for part in kept)
    out = x.new_zeros(2, most)
    for row, part in zip(out, kept, strict=True):
        row[: part.shape[0]] = part
    return out


def test_sizes_that_data_decide_in_products_and_maxima() -> None:
    whole(pieces, (X, torch.tensor([1, 2])))
    whole(found_rows, (X,), (X - 2,))
    whole(longest, (X, X + 3), (X + 3, X))


def refused_if_compiling(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        x.sum(dim=1)[torch.tensor([3])]  # an IndexError, when it runs
        return x.expand(2, 2)
    x = x + 1 if x.sum() > 0 else x - 1
    return x + 1 if x.sum() > 0 else x - 1


def test_another_answer_that_torch_refuses() -> None:
    """Told that it is compiled, the program makes a call that fails: eager, which is not told, does not."""
    compiled = kiln.compile(refused_if_compiling, backend="eager", options={"cache": False})
    torch.testing.assert_close(compiled(X), refused_if_compiling(X))


class Observer(torch.nn.Module):
    """Begins with the first range that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Buffer(torch.zeros(1))
        self.high = nn.Buffer(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.low.min() > -1e-5 and self.high.max() < 1e-5:
            self.low, self.high = x.min().reshape(1), x.max().reshape(1)
        else:
            self.low, self.high = self.low * 0.9 + x.min() * 0.1, self.high * 0.9 + x.max() * 0.1
        return x.clamp(self.low, self.high)


def test_small_buffers_choose_a_branch() -> None:
    model, own = Observer(), Observer()
    compiled = kiln.compile(model, backend="eager", options={"cache": False})
    for number in range(4):
        torch.testing.assert_close((compiled(X + number), model.low, model.high), (own(X + number), own.low, own.high))
    report = kiln.report_of(compiled)
    assert not report.breaks and report.compiles == 2


def resized(x: Tensor) -> Tensor:
    """The sizes come from a mask of ones by way of an operator of ATen."""
    mask = torch.nn.functional.interpolate(torch.ones(2, 1, 8, 8), size=(4, 4)).long()
    heights, widths = mask[:, 0].sum(dim=1)[:, 0], mask[:, 0].sum(dim=2)[:, 0]
    images = [torch.nn.functional.interpolate(x[None, None], size=(h, w)) for h, w in zip(heights, widths, strict=True)]
    return torch.cat(images)


def chosen_rows(x: Tensor) -> Tensor:
    """Draws as many numbers as there are positions; of those that are not valid there are none."""
    mask = torch.ones(2, 4, dtype=torch.long)
    valid, others = mask.nonzero(), (1 - mask).nonzero()
    rows = valid[:, 0].unique()
    parts = [(valid[valid[:, 0] == row], others[others[:, 0] == row]) for row in rows]
    picked = [own[torch.multinomial(torch.ones(own.size(0)), 4)] for own, rest in parts if rest.size(0) == 0]
    return torch.cat(picked).sum() + x


def test_values_of_constants() -> None:
    whole(resized, (X,))
    whole(chosen_rows, (X,))


class Marked(property):
    """As in `torch.distributions`: a property that knows more."""

    def __init__(self, function: Callable[[Any], Any], note: int = 3) -> None:
        super().__init__(function)
        self.note = note


class Doubled(property):
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return super().__get__(instance, owner) * 2


class Properties:
    factor = 2.0

    @Marked
    def plain(self) -> float:
        return self.factor

    @Doubled
    def doubled(self) -> float:
        return self.factor


def test_subclasses_of_property() -> None:
    held = Properties()
    whole(lambda x: x * held.plain + Properties.plain.note, (X,))  # type: ignore[attr-defined]
    compiled = kiln.compile(lambda x: x * held.doubled, backend="eager", options={"cache": False})
    torch.testing.assert_close(compiled(X), X * 4)


class Kinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made = nn.Buffer(torch.ones(2))
        self.register_buffer("registered", torch.ones(2))
        self.parameter = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, given: Tensor) -> tuple[Tensor, list[bool]]:
        tensors = [self.made, self.registered, self.parameter, x, given, x + 1, given.detach(), nn.Buffer(x + 1)]
        return x + 1, [isinstance(tensor, kind) for tensor in tensors for kind in (nn.Buffer, nn.Parameter, Tensor)]


def test_instances_of_buffers() -> None:
    """Tensors that say so themselves."""
    model, x, given = Kinds(), torch.ones(2), nn.Buffer(torch.ones(2))
    compiled = kiln.compile(model)
    for _ in range(2):
        assert compiled(x, given)[1] == model(x, given)[1]
    assert compiled(given, x)[1] == model(given, x)[1]
