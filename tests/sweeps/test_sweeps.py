"""The sweeps themselves, and a short run of each."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.sweeps.canonical import canonical, difference
from tests.sweeps.cpython import CPythonSweep
from tests.sweeps.modules import ModuleSweep, OptimizerSweep
from tests.sweeps.operators import OperatorSweep
from tests.sweeps.python_programs import PythonSweep, check
from tests.sweeps.rules import RuleSweep
from tests.sweeps.runner import Finding, Note, Sweep, lines_of, parser, run
from tests.sweeps.shrink import Block, Statement, shrunk, text_of
from tests.sweeps.table import table
from tests.sweeps.tensor_programs import SHARED, GraphSweep, KernelSweep
from tests.sweeps.trial import Compile, Trial, error_outcome, leave, outcome

LEAF = Statement("x = 1")


def test_a_program_shrinks_to_what_fails() -> None:
    program: Block = (
        LEAF,
        Statement("for i in y:", (LEAF, Statement("if i:", (Statement("bad"), LEAF), (Statement("else:", (LEAF,)),)))),
        LEAF,
    )
    least = shrunk(program, lambda block: "bad" in text_of(block) and "for" in text_of(block))
    assert text_of(least) == "for i in y:\n    bad\n"


def test_what_differs() -> None:
    items = [1]
    assert difference(canonical([items, items]), canonical([items, items])) is None
    assert difference(canonical([items, items]), canonical([items, [1]])) is not None
    assert difference(canonical({1: 2, 3: 4}), canonical({3: 4, 1: 2})) is not None
    assert difference(canonical(1), canonical(True)) is not None


def test_a_program_that_does_not_end_is_left_out() -> None:
    """Also if another error takes the place of the one that stops it."""
    endless = "def f(*args):\n    try:\n        while True: pass\n    finally:\n        del args[0].missing\n"
    assert check(endless) is None


class Counting:
    """Cases of which one is wrong, one raises and one kills its process."""

    def total(self) -> int:
        return 12

    def run(self, number: int, note: Note) -> list[Finding]:
        note("it", f"program {number}")
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 6:
            raise ValueError("the sweep is wrong")
        return [Finding("it", "values", "differs")] if number == 2 else []


def arguments(tmp_path: Path, *words: str) -> argparse.Namespace:
    return parser().parse_args([f"--out={tmp_path / 'found'}", *words])


def test_a_crash_is_a_finding_and_the_rest_is_run(tmp_path: Path) -> None:
    tally = run(Counting(), arguments(tmp_path))
    assert dict(tally.kinds) == {"values": 1, "crash": 1, "fault of the sweep": 1}
    assert tally.position == 12
    crash = next(line for line in lines_of(tmp_path / "found") if line.get("kind") == "crash")
    assert (crash["case"], crash["program"]) == (4, "program 4")


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    assert run(Counting(), arguments(tmp_path, "--cases=3")).cases == 3
    tally = run(Counting(), arguments(tmp_path, "--resume"))
    assert (tally.position, dict(tally.kinds)) == (12, {"crash": 1, "fault of the sweep": 1})


def test_a_run_that_was_killed_goes_on_at_its_last_finding(tmp_path: Path) -> None:
    (tmp_path / "found").write_text('{"case": 7, "subject": "it", "kind": "values"}\n')
    assert run(Counting(), arguments(tmp_path, "--resume")).cases == 5


def test_shards_are_disjoint(tmp_path: Path) -> None:
    assert [run(Counting(), arguments(tmp_path, f"--shard={n}/2")).cases for n in range(2)] == [5, 6]


def test_a_first_case_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there are 12 cases"):
        run(Counting(), arguments(tmp_path, "--first=12"))


def findings(sweep: Sweep, numbers: range) -> list[Finding]:
    return [finding for number in numbers for finding in sweep.run(number, lambda subject, program: None)]


def test_random_python() -> None:
    assert findings(PythonSweep(), range(100)) == []


def test_changed_arguments_of_rules() -> None:
    found = findings(RuleSweep(("gather", "masked_fill", "nn.functional.pad")), range(3))
    assert [finding for finding in found if finding.kind != "refused"] == []


def test_random_tensors_as_graphs() -> None:
    assert findings(GraphSweep(), range(100)) == []
    assert findings(GraphSweep(shared=True), range(2 * len(SHARED))) == []


def databases(tmp_path: Path, *words: str) -> argparse.Namespace:
    return arguments(tmp_path, "--samples=1", *words)


def test_operators(tmp_path: Path) -> None:
    words = ("--only=abs,index_select", "--dtypes=float32,int8", "--modes=forward,gradient,second,inplace,errors")
    sweep = OperatorSweep(databases(tmp_path, *words))
    found = findings(sweep, range(sweep.total()))
    assert {finding.kind for finding in found} == {"native"}
    modes = {finding.mode for finding in found}
    assert modes == {f"{mode} float32" for mode in ("forward", "gradient", "second", "inplace")} | {
        "forward int8", "inplace int8", "errors"
    }  # fmt: skip


def test_modules_and_optimizers(tmp_path: Path) -> None:
    modules = ModuleSweep(databases(tmp_path, "--only=Softplus"))
    assert {finding.kind for finding in findings(modules, range(2))} == {"native"}
    optimizers = OptimizerSweep(databases(tmp_path, "--only=ASGD"))
    assert {finding.kind for finding in findings(optimizers, range(1))} <= {"native", "fallback"}


def test_tests_of_python(tmp_path: Path) -> None:
    pytest.importorskip("test.test_bool", reason="some systems package the tests of CPython apart")
    sweep = CPythonSweep(arguments(tmp_path, "--only=test_bool"))
    found = findings(sweep, range(min(sweep.total(), 4)))
    assert len(found) == 4 and {finding.kind for finding in found} <= {"native", "resumed", "fallback"}


def test_outcomes() -> None:
    def run(wrap: Compile, start: int) -> object:
        return wrap(lambda x: x + 1)(torch.ones(2))

    def wrong(wrap: Compile, start: int) -> object:
        return run(wrap, start) if wrap is leave else torch.zeros(2)

    def loses(wrap: Compile, start: int) -> object:
        return run(wrap, start) if wrap is not leave else [].pop()

    def raises(wrap: Compile, start: int) -> object:
        return run(wrap, start) if wrap is leave else [].pop()

    def kinds(program: Callable[[Compile, int], object]) -> list[str]:
        return [finding.kind for finding in outcome(Trial("it", "", "", "cpu", program), ignore)]

    assert [kinds(program) for program in (run, wrong, raises, loses)] == [
        ["native"],
        ["values"],
        ["error"],
        ["skipped"],
    ]
    assert [found.kind for found in error_outcome(Trial("it", "", "", "cpu", loses), IndexError, ignore)] == [
        "lost error"
    ]


def ignore(subject: str, program: str) -> None:
    """In place of a note to the parent."""


def test_the_table_of_outcomes() -> None:
    lines = [
        {"kind": kind, "subject": "add", "mode": "forward int8"} for kind in ("native", "native", "values", "skipped")
    ]
    header, forward, everything, fault = table([*lines, {"position": 3}])
    assert header.split() == [
        "right",
        "native",
        "resumed",
        "fallback",
        "metadata",
        "wrong",
        "error",
        "lost",
        "internal",
        "crash",
        "of",
    ]
    assert (
        forward.split()[:3] == ["forward", "66.67%", "66.67%"] and forward.split()[-1] == everything.split()[-1] == "3"
    )
    assert fault.startswith("values add [forward int8]")


@pytest.mark.slow
def test_random_tensors_as_kernels() -> None:
    assert findings(KernelSweep(), range(100)) == []
    assert findings(KernelSweep(shared=True), range(100)) == []


@pytest.mark.slow
def test_more_random_python() -> None:
    assert findings(PythonSweep(), range(100, 1000)) == []
