"""Probes of Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.codegen_triton.interpreter import PROBE, Interpreter, Job


def test_a_kernel_that_the_interpreter_cannot_run_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Interpreter()
    monkeypatch.setattr(made, "_loops", False)
    with pytest.raises(pytest.skip.Exception, match="loops over sizes"):
        made.run(Job(PROBE, 1, (torch.zeros(1),), (9,)))


def test_other_kernels_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Interpreter()
    monkeypatch.setattr(made, "_loops", False)
    monkeypatch.setattr(made, "_launch", lambda job: 7)
    source = "for i in range(4):\n    x = tl.arange(0, XBLOCK)\nfor i in tl.range(0, 200, XBLOCK):\n"
    assert made.run(Job(replace(PROBE, source=source), 1, (), ())) == 7


def test_loops_over_sizes(interpreter: Interpreter) -> None:
    """The probe is repeatable, and the worker survives it."""
    assert interpreter.loops_over_sizes is interpreter.loops_over_sizes
