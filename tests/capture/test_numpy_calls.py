"""Functions of NumPy that the region calls, results as long as data decide, and writes to arrays from outside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kiln
from tests.capture.idioms.outcome import same

SHAPED = (
    "np.argsort(a, axis=1)", "a[:, 0].argsort()[::-1]", "np.take_along_axis(a, np.argsort(-a, 1)[:, :2], 1)",
    "np.histogram(a, bins=5)", "np.histogram(a[0], bins=3, range=(-1, 1))", "np.interp(0.3, [0, 1], a[0, :2])",
    "np.allclose(a, a + 1e-12)", "np.array_equal(a, a * 2)", "np.count_nonzero(a > 0)", "np.isclose(a, 0) * 1",
    "np.nanmean(np.where(a > 0, a, np.nan))", "np.nanmax(a, axis=0)", "np.median(a, axis=(0, 1))",
    "np.percentile(a, [5, 95], method='nearest')", "np.cov(a.T)", "np.corrcoef(a[:, 0], a[:, 1])[0, 1]",
    "np.linalg.svd(a, full_matrices=False).S", "np.abs(np.fft.rfft(a, axis=1))", "np.fft.fftshift(a)",
    "np.searchsorted(np.cumsum(abs(a[0])), 0.5)", "np.digitize(a, a[0].copy() * 0 + 1)", "np.sum(a, where=a > 0)",
    "np.unravel_index(np.argmax(a), a.shape)", "np.average(a, axis=0, weights=abs(a[:, 0]))", "np.cbrt(a)",
    "(a * 9).astype(int) // 2, (a * 9).astype(int) % -3", "np.std(a, ddof=1, mean=a.mean())",
    "np.diag(a[:3, :3]), np.diag(a[0]), a.diagonal(1), np.diagonal(a, 0, 1, 0)", "np.trapezoid(a[0], a[1])",
    "a.astype(np.float32, copy=False), a.astype('uint8', copy=False)",
)  # fmt: skip
OPEN = (
    "np.unique(k)", "np.unique(k, return_counts=True)", "np.unique(a > 0, return_inverse=True)[1]",
    "np.unique(k, return_index=True, return_inverse=True, return_counts=True)", "np.setdiff1d(np.arange(9), k)",
    "np.intersect1d(k, [1, 2])", "np.union1d(k, k + 1)", "np.where(k == 1)[0]", "np.nonzero(a > 0)",
    "np.flatnonzero(a > 0)", "np.argwhere(a > 0)", "a[a > 0]", "a[k == 1]", "a[k == 1, 0] * 2", "a[k == 1][:, 1].sum()",
    "len(np.where(k == 1)[0])", "np.where(k == 1)[0].size", "np.bincount(k)", "np.bincount(k, minlength=9)",
    "np.bincount(k, weights=a[:, 0])", "np.bincount(k[k > 0], None, 4)", "np.bincount(k, minlength=8).reshape(2, 4)",
    "np.sort(a[k == 1], axis=0)", "np.unique(k) * 2 + 1", "a[np.unique(k)]", "a[np.where(k == 1)[0]].mean(0)",
    "a[np.argmax(k)], a[np.argmax(k), 1], a[:, np.argmin(a[0])]", "a[np.argsort(-a[:, 0])[0]]",
    "a[: k.argmax()].sum(0)", "a[-1 - k.argmax()]", "np.unique(k)[0], int(np.where(k == k[0])[0][-1])",
    "np.concatenate([k[k > 1], k[k <= 1]])", "a[k == 99].sum()", "k.nonzero()[0]", "a[:, a[0] > 0]",
)  # fmt: skip


def arguments(rows: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(rows)
    return draw.normal(size=(rows, 4)), draw.integers(0, 4, rows)


@pytest.mark.parametrize("text", [*SHAPED, *OPEN])
def test_one_graph(text: str) -> None:
    function: Callable[..., Any] = eval(f"lambda a, k: ({text})", {"np": np})
    compiled = kiln.compile(function, options={"cache": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (5, 5, 7, 11):
            assert same(function(*arguments(rows)), compiled(*arguments(rows))), rows
    report = compiled.report()
    assert not [*report.breaks, *report.eager_reasons] and report.compiles <= 2


def test_errors_and_warnings_are_those_of_numpy() -> None:
    compiled = kiln.compile(lambda k: np.bincount(k), options={"cache": False})
    assert compiled(np.array([1, 2])).tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="negative elements"):
        compiled(np.array([1, -2]))

    def mean(a: Any) -> Any:
        return a[a > 0].mean(), np.max(a[a > 1], initial=0)

    selected = kiln.compile(mean, options={"cache": False})
    assert selected(np.array([1.0, 2.0])) == (1.5, 2.0)
    with pytest.warns(RuntimeWarning, match="Mean of empty slice"):
        assert np.isnan(selected(np.array([-1.0, -2.0]))[0])
    with pytest.raises(ValueError, match="zero-size"):
        kiln.compile(lambda a: np.max(a[a > 1]), options={"cache": False})(np.zeros(3))


def test_rules_for_bins_break_the_graph() -> None:
    def f(a: Any) -> Any:
        return np.histogram(a, bins="sqrt")[0], np.histogram(a[:, 0], "auto")[1], np.unique(a > 0, True, True)

    compiled = kiln.compile(f, options={"cache": False})
    for rows in (3, 30, 40, 90):
        assert same(str(f(arguments(rows)[0])), str(compiled(arguments(rows)[0])))
    assert compiled.report().breaks


def greedy_matching(costs: Any) -> list[tuple[int, int]]:
    costs, pairs = costs.copy(), []
    for _ in range(3):
        i, j = np.unravel_index(np.argmin(costs), costs.shape)
        pairs.append((int(i), int(j)))
        costs[i, :] = np.inf
        costs[:, j] = np.inf
    return pairs


def test_places_that_data_decide() -> None:
    compiled = kiln.compile(greedy_matching, options={"cache": False})
    for rows in (4, 4, 6, 9):
        assert greedy_matching(arguments(rows)[0]) == compiled(arguments(rows)[0])
    assert not compiled.report().breaks and compiled.report().compiles == 2

    picked = kiln.compile(lambda a, k: a[k.sum()], options={"cache": False})
    assert picked(np.arange(3), np.array([1, 1])) == 2
    with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 3"):
        picked(np.arange(3), np.array([1, 8]))


def test_a_selection_is_another_array() -> None:
    def f(a: Any) -> Any:
        found = np.unique(a)
        kept = a[a > 1]
        found[0] = 9
        kept += 1
        return found, kept, a

    compiled = kiln.compile(f, fullgraph=True, options={"cache": False})
    for numbers in ([1, 2, 2], [1, 3, 2], [3, 2, 1, 0]):
        assert same(f(np.array(numbers)), compiled(np.array(numbers)))


class Evaluator:
    def __init__(self) -> None:
        self.matrix, self.seen = np.zeros((3, 3)), 0

    def add(self, target: torch.Tensor, guess: torch.Tensor) -> None:
        t, p = target.numpy(), guess.numpy()
        known = (t >= 0) & (t < 3)
        self.matrix += np.bincount(3 * t[known].astype(int) + p[known], minlength=9).reshape(3, 3)
        self.seen += len(t)

    def score(self) -> Any:
        return np.diag(self.matrix) / (self.matrix.sum(0) + self.matrix.sum(1) - np.diag(self.matrix) + 1e-9)


def test_a_confusion_matrix_of_an_object_is_added_to() -> None:
    def step(evaluator: Evaluator, target: torch.Tensor, guess: torch.Tensor) -> Any:
        evaluator.add(target, guess)
        return evaluator.score()

    compiled, own, eager = kiln.compile(step, options={"cache": False}), Evaluator(), Evaluator()
    matrix = own.matrix
    for rows in (6, 9, 12):
        given = torch.arange(rows) % 4, torch.arange(rows) % 3
        assert same(step(eager, *given), compiled(own, *given))
    assert own.matrix is matrix and np.array_equal(matrix, eager.matrix) and own.seen == eager.seen
    assert not compiled.report().breaks and compiled.report().compiles == 2


def test_an_array_from_outside_that_shares_memory() -> None:
    def f(a: Any, b: Any) -> Any:
        a[0] = 7
        return b + 1

    def shared(first: int, second: int) -> tuple[Any, Any]:
        memory = np.zeros(6)
        return memory[first : first + 3], memory[second : second + 3]

    one = np.zeros(3)
    for calls in ([(np.zeros(3), np.zeros(3)), (one, one), shared(1, 0)], [shared(1, 0), (np.zeros(3), np.zeros(3))]):
        compiled = kiln.compile(f, options={"cache": False})
        for a, b in calls:
            expected = f(a, b)
            a[0] = 0
            assert same(expected, compiled(a, b)) and a[0] == 7
            a[0] = 0

    def with_tensor(a: Any, x: torch.Tensor) -> Any:
        a += 1
        return x * 2

    compiled = kiln.compile(with_tensor, options={"cache": False})
    assert compiled(np.zeros(3), torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]
    memory = np.zeros(3)
    assert compiled(memory, torch.from_numpy(memory)).tolist() == [2, 2, 2]
