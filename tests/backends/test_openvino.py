"""OpenVINO as a backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.backends.openvino import KERNELS
from tests.backends.models import check_inference_of_any_batch
from tests.backends.operators import taken

pytest.importorskip("openvino", reason="the package openvino is not installed")
pytestmark = pytest.mark.unrecorded


def test_what_it_takes(golden: Callable[..., None]) -> None:
    golden(taken(KERNELS))


def test_inference_of_any_batch() -> None:
    check_inference_of_any_batch("openvino")
