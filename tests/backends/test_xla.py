"""XLA as a backend, by JAX."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.backends.xla import Xla
from tests.backends.models import check_inference_of_any_batch
from tests.backends.operators import taken

pytest.importorskip("jax", reason="the package jax is not installed")
pytestmark = pytest.mark.unrecorded


def test_what_it_takes(golden: Callable[..., None]) -> None:
    golden(taken(Xla()))


def test_inference_of_any_batch() -> None:
    check_inference_of_any_batch("xla")
