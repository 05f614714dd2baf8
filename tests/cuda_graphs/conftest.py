"""One thread: results of a replay are compared to the bit."""

from __future__ import annotations

import pytest
import torch

from tests.cuda_graphs.null_device import NullDevice


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def device() -> NullDevice:
    return NullDevice()
