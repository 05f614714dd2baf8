"""The interpreter that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.codegen_triton.check import Runner
from tests.codegen_triton.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    made = Interpreter()
    yield made
    made.close()


@pytest.fixture
def runner(interpreter: Interpreter) -> Runner:
    return Runner(interpreter)
