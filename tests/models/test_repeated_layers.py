"""The models of the suite `cpu`: repeating equal blocks gives the texts of interpreting all of them."""

from __future__ import annotations

import pytest
import torch

from kiln.capture.interpreter.repeated_layers.repeat import call_repeatable
from kiln.capture.interpreter.variables import module
from kiln_bench.models import build
from kiln_bench.suite import SuiteRow
from kiln_bench.tiny import rows, tiny
from tests.capture.conftest import Lab
from tests.capture.test_repeated_layers import interpreted
from tests.capture.texts import texts

pytestmark = pytest.mark.models
RUNS = [
    pytest.param(row, train, id=f"{row.title}-{'train' if train else 'infer'}")
    for train in (False, True)
    for row in rows(train)
]


@pytest.mark.parametrize(("row", "train"), RUNS)
def test_equal_texts(row: SuiteRow, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for call in (call_repeatable, interpreted):
        monkeypatch.setattr(module, "call_repeatable", call)
        case, lab = build(tiny(row), train=train, seed=0), Lab()
        forward = lab.compile(type(case.model).forward)
        with torch.set_grad_enabled(train):
            forward(case.model, *case.args, **case.kwargs)
        assert lab.skipped() == []
        steps = sum(capture.steps for capture in lab.captures)
        found.append((texts(lab.captures), steps, steps + sum(capture.repeated_steps for capture in lab.captures)))
    assert found[0][0] == found[1][0]
    assert found[0][1] <= found[1][1]
    # The first block may take some more opcodes than the others, since shared state is read once.
    assert found[1][1] <= found[0][2] <= found[1][1] * 1.1
