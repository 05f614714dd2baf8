"""The table of idioms: each program gives what eager gives, with no graph breaks but those in `idioms/breaks.txt`."""

from __future__ import annotations

import copy

import pytest
import torch

import kiln

from .idioms import control, data, libraries, transforms
from .idioms.outcome import outcome, same
from .idioms.table import Program, known_breaks

BREAKS = known_breaks()
PROGRAMS = [program for table in (data, transforms, libraries, control) for program in table.TABLE]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_idiom(program: Program) -> None:
    torch.manual_seed(0)
    compiled = kiln.compile(program.function, backend="eager", options={"cache": False})
    for args in program.calls():
        expected = outcome(program.function, copy.deepcopy(args))
        got = outcome(compiled, copy.deepcopy(args))
        assert same(expected, got), (expected, got)
    report = compiled.report()
    reasons = [*report.breaks, *report.eager_reasons]
    known = set(BREAKS.get(program.name, []))
    assert {reason.code for reason in reasons} <= known, [reason.text() for reason in reasons]
