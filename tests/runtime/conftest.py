"""The kernels of the samples, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.build.cpp_compile import compile_kernels
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.kernels import Libraries
from kiln.support.events import EventSink
from tests.runtime.samples import KERNELS


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    folder: Path = tmp_path_factory.mktemp("cache")
    return compile_kernels(KERNELS, DiskStore(folder), EventSink())
