"""IREE as a backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.backends.iree import KERNELS
from tests.backends.models import check_inference_of_any_batch
from tests.backends.operators import taken

pytest.importorskip("iree.compiler", reason="the package iree-base-compiler is not installed")
pytest.importorskip("iree.runtime", reason="the package iree-base-runtime is not installed")
pytestmark = pytest.mark.unrecorded


def test_what_it_takes(golden: Callable[..., None]) -> None:
    golden(taken(KERNELS))


def test_inference_of_any_batch() -> None:
    check_inference_of_any_batch("iree")
