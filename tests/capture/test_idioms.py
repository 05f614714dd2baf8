"""The table of idioms: each program gives what eager gives, with exactly the graph breaks in `idioms/breaks.txt`."""

from __future__ import annotations

import pytest

from .idioms.measure import TABLES, measured
from .idioms.table import Program, known_breaks

BREAKS = known_breaks()
PROGRAMS = [program for table in TABLES.values() for program in table]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_idiom(program: Program) -> None:
    found = measured(program, backend="eager")
    assert found.equal == "equal"
    assert set(found.codes) == set(BREAKS.get(program.name, [])), [reason.text() for reason in found.reasons]


def test_breaks_are_of_programs() -> None:
    assert BREAKS.keys() <= {program.name for program in PROGRAMS}
