"""Every kind of step is complete: listed, encodable, and known to C++ as declared."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from kiln.plan.encode import FIELD_WORDS
from kiln.plan.plan import Step
from kiln.plan.program_format import NATIVE_STEPS
from kiln.plan.steps import STEPS
from tests.runtime.samples import add_norm
from tests.runtime.test_plan_text import everything

ROOT = Path(__file__).resolve().parents[2]


def test_the_header_is_what_the_declarations_say() -> None:
    done = subprocess.run([sys.executable, "tools/plan_header.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "csrc/executor/program_format.h is out of date: run python tools/plan_header.py"


def test_every_kind_of_step_is_listed_and_complete() -> None:
    assert {step.__name__ for step in Step.__subclasses__()} == {step.__name__ for step in STEPS}
    for step in STEPS:
        missing = {"text", "python", "native", "run"} - vars(step).keys()
        assert not missing, f"{step.__name__} lacks {missing}"
    assert {type(step) for plan in (everything(), add_norm()) for step in plan.steps} == set(STEPS)


def test_every_field_of_a_native_step_has_an_encoding() -> None:
    kinds = {kind for native in NATIVE_STEPS for _, kind in native.encoded}
    assert kinds == set(FIELD_WORDS)


def test_steps_are_made_of_their_positional_fields() -> None:
    """`Step.renamed` copies these."""
    for kind in STEPS:
        assert [field.name for field in dataclasses.fields(kind)] == list(kind.__match_args__)
