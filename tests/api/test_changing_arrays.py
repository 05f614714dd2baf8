"""NumPy arrays of changing shapes: their sizes become symbols, as those of tensors do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import kiln

ROWS = (5, 20, 14, 8, 23, 17, 11, 2, 30)

PROGRAMS: dict[str, Callable[[np.ndarray], object]] = {
    "as a tensor": lambda a: torch.from_numpy(a).float().sin().numpy(),
    "as a tensor of another dtype": lambda a: torch.as_tensor(a, dtype=torch.float32).mean(0).numpy(),
    "elementwise and reductions": lambda a: (np.sin(a) * 2 + a.mean(axis=0)).sum(1),
    "sizes in arithmetic": lambda a: a / a.shape[0] + a.size * len(a),
    "float32 with a size": lambda a: a.astype(np.float32) * a.shape[0],
    "slices by sizes": lambda a: a[1 : a.shape[0] // 2 + 1] - a[-1],
    "reshaped": lambda a: a.reshape(a.shape[0] * 2, -1).ravel()[:3] + a.reshape(-1, 2)[0, 1],
    "broadcast": lambda a: np.broadcast_to(a[0], a.shape) * np.expand_dims(a, (0, 1)) + np.zeros_like(a),
    "joined": lambda a: np.concatenate([a, a[:1]]) * np.float64(2) + np.stack([a, a]).sum(),
    "indices": lambda a: (a.argmax(), a.argmax(1), a.cumsum(0)),
    "products": lambda a: np.where(a > 0, a, 0.0).T @ a,
    "items": lambda a: float(a.max()) + float(a[0, 0]),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_two_compiles_serve_all_sizes(program: Callable[[np.ndarray], object]) -> None:
    fast = kiln.compile(program, options={"cache": False})
    for rows in ROWS:
        a = np.random.default_rng(rows).normal(size=(rows, 4))
        expected, found = program(a.copy()), fast(a.copy())
        assert type(found) is type(expected)
        both = zip(*[value if isinstance(value, tuple) else (value,) for value in (expected, found)], strict=True)
        for one, other in both:
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert kiln.report_of(fast).compiles == 2


def test_an_empty_array_is_not_served_by_another_variant() -> None:
    fast = kiln.compile(lambda a: np.max(a * 2), options={"cache": False})
    for rows in (3, 4, 5):
        assert fast(np.arange(float(rows))) == 2 * (rows - 1)
    with pytest.raises(ValueError, match="zero-size array"):
        fast(np.zeros(0))
    assert kiln.report_of(fast).eager == 0


def test_squeezed_axes_are_guarded() -> None:
    fast = kiln.compile(lambda a: np.squeeze(a), options={"cache": False})
    for rows in (3, 4, 1, 5):
        assert fast(np.ones((rows, 2))).shape == np.squeeze(np.ones((rows, 2))).shape
