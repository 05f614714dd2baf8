"""Functions of torch that answer with a Python bool: no graph break, whatever the answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from kiln.support.errors import KilnError

Program = Callable[[Tensor, Tensor], object]


def raises_where_equal(a: Tensor, b: Tensor) -> Tensor:
    if torch.equal(a, b):
        raise ValueError("equal")
    return a.sin()


def asserts_close(a: Tensor, b: Tensor) -> Tensor:
    assert not torch.allclose(a, b, atol=1e-3), "close"
    return a * b


PROGRAMS: dict[str, Program] = {
    "equal": lambda a, b: (a + 1 if torch.equal(a, b) else b * 2) + 1,
    "method": lambda a, b: (a + 1 if a.equal(other=b) else b * 2) + 1,
    "as a number": lambda a, b: a * int(torch.equal(a, b)),
    "returned": lambda a, b: (a + 1, torch.equal(a, b)),
    "allclose": lambda a, b: (a + 1, torch.allclose(a, b, 0.1, equal_nan=True)),
    "allclose method": lambda a, b: (a + 1 if a.allclose(b) else b - 1) * 2,
    "is_nonzero": lambda a, b: (a if torch.is_nonzero((a - b).sum()) else b * 2) + 1,
    "in sums": lambda a, b: a * (3 + torch.allclose(a, b) - 2 * (a.sum() > 2).item()) + int((b > 1).any().item()),
    "compared": lambda a, b: (a + 1 if (a > b).any().item() == (b > a).any().item() else a * 2) + 1,
    "in": lambda a, b: a + (2.0 in b),
    "not in": lambda a, b: a + (a[0] not in b),
    "other sizes": lambda a, b: a + torch.equal(a, b[1:]),
    "mixed": lambda a, b: a + torch.equal(a, b.double()),
    "views": lambda a, b: a + torch.equal(a, a[:]) + a.equal(a),
    "raises": raises_where_equal,
    "asserts": asserts_close,
}


def outcome(program: Program, a: Tensor, b: Tensor) -> object:
    try:
        return program(a, b)
    except (ValueError, AssertionError, RuntimeError) as error:
        return type(error), str(error)


ONES, NAN = torch.ones(3), torch.tensor([1.0, torch.nan, 3.0])
PAIRS = (
    (ONES, ONES),
    (ONES, torch.ones(3)),
    (ONES, torch.arange(3.0)),
    (NAN, NAN.clone()),
    (NAN, NAN),
    (ONES, ONES.int()),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers(name: str) -> None:
    program = PROGRAMS[name]
    for first, second in itertools.permutations(PAIRS, 2):
        compiled = kiln.compile(program, options={"cache": False})
        for a, b in (first, second, first):
            assert str(outcome(compiled, a, b)) == str(outcome(program, a, b)), (a, b)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "raises"])
def test_no_break(name: str) -> None:
    compiled = kiln.compile(PROGRAMS[name], fullgraph=True, options={"cache": False})
    for _ in range(2):
        compiled(torch.arange(3.0) + 1, torch.tensor([0.5, 2.0, 0.25]))


def test_the_line_of_the_program_is_told() -> None:
    compiled = kiln.compile(PROGRAMS["equal"], options={"cache": False})
    compiled(torch.ones(2), torch.ones(2))
    assert "test_questions_of_tensors.py" in str(compiled.report()) and "polyfills" not in str(compiled.report())


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return "asked" if func is torch.equal else super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_answers_itself() -> None:
    program: Program = lambda a, b: (torch.equal(a, b), a + 1)  # noqa: E731
    tagged = torch.ones(3).as_subclass(Tagged)
    assert str(kiln.compile(program)(tagged, torch.ones(3))) == str(program(tagged, torch.ones(3)))


def test_quantiles_are_one_graph() -> None:
    """Torch 2.11 asks whether the quantile is in range by `equal`."""
    program: Callable[[Tensor], Tensor] = lambda x: torch.quantile(x, 0.25, dim=1)  # noqa: E731
    x = torch.randn(3, 5)
    torch.testing.assert_close(kiln.compile(program, fullgraph=True)(x), program(x))
    with pytest.raises((RuntimeError, KilnError)):
        kiln.compile(lambda x: torch.quantile(x, 1.25), fullgraph=True)(x)


def test_intermediates_are_no_inference_tensors() -> None:
    program: Callable[[Tensor], object] = lambda x: (x + 1, (x * 2).is_inference(), x[:1].is_inference())  # noqa: E731
    compiled = kiln.compile(program, options={"cache": False})
    x = torch.ones(2)
    with torch.inference_mode():
        inner = torch.ones(2)
        assert str(compiled(inner)) == str(program(inner))
    for given in (x, inner, x):
        assert str(compiled(given)) == str(program(given))
    assert not kiln.explain(program)(x).breaks


def test_no_transform_is_active() -> None:
    asks = torch._C._are_functorch_transforms_active
    program: Callable[[Tensor], Tensor] = lambda x: x + asks()  # noqa: E731
    compiled = kiln.compile(lambda x: (program(x), torch.vmap(program)(x)), fullgraph=True)
    x = torch.zeros(3)
    torch.testing.assert_close(compiled(x), (program(x), torch.vmap(program)(x)))


def taken(x: Tensor, b: Tensor) -> Tensor:
    return x[b] * 2


def written(x: Tensor, b: Tensor) -> Tensor:
    y = x * 2
    y[~b] += 5
    y[b] = torch.arange(3.0)
    return y


def written_in_place(x: Tensor, b: Tensor) -> Tensor:
    x[b] = 7.0
    total = x.sum()
    total[b] = -1
    return total


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [taken, written, written_in_place])
def test_a_truth_value_is_an_index(program: Callable[[Tensor, Tensor], Tensor], dynamic: bool | None) -> None:
    compiled = kiln.compile(program, fullgraph=True, dynamic=dynamic, options={"cache": False})
    for truth in (True, False, True):
        for training in (False, program is not written_in_place):
            x = torch.randn(2, 3, requires_grad=training)
            mine = x.detach().clone().requires_grad_(training)
            expected, got = program(x, torch.tensor(truth)), compiled(mine, torch.tensor(truth))
            torch.testing.assert_close((got, mine), (expected, x))
            if training:
                wanted = torch.autograd.grad(expected.sum(), x)
                torch.testing.assert_close(torch.autograd.grad(got.sum(), mine), wanted)
