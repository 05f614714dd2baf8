"""XLA as a backend, by JAX."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln
from kiln.backends.xla import Xla
from tests.backends.models import Mixed
from tests.backends.operators import taken

pytest.importorskip("jax", reason="the package jax is not installed")
pytestmark = pytest.mark.unrecorded


def test_what_it_takes(golden: Callable[..., None]) -> None:
    golden(taken(Xla()))


def test_inference_of_any_batch() -> None:
    model = Mixed().eval()
    compiled = kiln.compile(model, backend="xla")
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = torch.randn(batch, 3, 8, 8)
            torch.testing.assert_close(compiled(x), model(x))
