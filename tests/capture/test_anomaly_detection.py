"""Anomaly detection raises for NaN in a compiled step as in eager, and turning it off costs no graph break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kiln

pytestmark = pytest.mark.filterwarnings("ignore")


def step(x: Tensor, w: Tensor) -> Tensor:
    loss = (torch.sqrt(w * 0) * 0 + w).sum() * x.mean()
    loss.backward()
    return loss.detach()


def guarded_step(x: Tensor, w: Tensor, debug: bool) -> Tensor:
    with torch.autograd.set_detect_anomaly(debug):
        return step(x, w)


def weight() -> Tensor:
    return torch.ones(3, requires_grad=True)


def test_a_whole_step_under_anomaly_detection_raises() -> None:
    compiled = kiln.compile(step, options={"cache": False})
    for _ in range(2):
        assert compiled(torch.ones(2), weight()) == 3
        with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="SqrtBackward0"):
            compiled(torch.ones(2), weight())
    assert compiled.report().compiles == 1
    first = kiln.compile(step, options={"cache": False})
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="SqrtBackward0"):
        first(torch.ones(2), weight())
    first(torch.ones(2), weight())
    assert first.report().compiles == 1


def test_it_is_turned_on_inside() -> None:
    compiled = kiln.compile(guarded_step, options={"cache": False})
    for debug in (True, True):
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            compiled(torch.ones(2), weight(), debug)
        assert not torch.is_anomaly_enabled()


def test_it_stays_off() -> None:
    compiled = kiln.compile(guarded_step, fullgraph=True, options={"cache": False})
    for rows in (2, 3, 4):
        assert compiled(torch.ones(rows), weight(), False) == 3
    assert compiled.report().compiles == 2

    def asked(x: Tensor) -> tuple[Tensor, bool, bool]:
        return x + 1, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    reader = kiln.compile(asked, options={"cache": False})
    assert reader(torch.ones(2))[1:] == (False, True)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert reader(torch.ones(2))[1:] == (True, False)
