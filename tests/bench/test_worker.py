"""What the benchmark's processes measure, and how a run is judged."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kiln.api as api
from kiln.api.arguments import BadArgument
from kiln_bench import exports
from kiln_bench.candidates import CANDIDATES, EXPORTERS, candidate
from kiln_bench.exports import ExportRow, measure_exports, summary
from kiln_bench.main import chosen_rows
from kiln_bench.models import Case
from kiln_bench.results import Result, Score, is_wrong, rows_of
from kiln_bench.suite import load_suite
from kiln_bench.worker import asks_is_compiling, measure_steady, set_up


def asking(x: Tensor) -> Tensor:
    return x + 1 if torch.compiler.is_compiling() else x + 2


def test_a_program_that_asks_is_found() -> None:
    assert asks_is_compiling(Case(asking, (torch.ones(2),), {}, train=False))
    assert not asks_is_compiling(Case(torch.sin, (torch.ones(2),), {}, train=False))


def test_kiln_gives_the_answer_of_the_candidate() -> None:
    for name, expected in (("kiln", 3), ("kiln, False", 3), ("kiln, True", 2)):
        chosen = candidate(name, None)
        compiled = chosen.compile(asking)
        assert compiled(torch.ones(1)) == torch.tensor([float(expected)])
        assert chosen.facts(compiled)["answer"] is (expected == 2)


def test_a_candidate_may_have_a_mode_of_its_own() -> None:
    assert candidate("kiln:reduce-overhead", None).compile(asking)(torch.ones(1)) == torch.tensor([3.0])
    with pytest.raises(BadArgument, match="no-mode"):
        candidate("kiln:no-mode", None).compile(asking)


def test_the_answer_that_auto_chose_is_reported() -> None:
    def breaks_unless_compiling(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0)
        return x + 1

    compiled = api.compile(breaks_unless_compiling)
    compiled(torch.ones(2))
    assert candidate("kiln", None).facts(compiled)["answer"] is True


def test_a_tiny_program_is_set_up_by_every_candidate_but_the_peer() -> None:
    """(The peer takes seconds.)"""
    for name in CANDIDATES.keys() - {"torch.compile"}:
        assert set_up(candidate(name, None), "cpu") > 0


def test_rounds_call_the_candidates_in_random_order() -> None:
    steps = measure_steady({
        "task": "steady", "suite": "micro", "row": "softmax", "train": False, "mode": None, "pairs": 3, "seeds": 1,
        "candidates": ["eager", "kiln"],
    })  # fmt: skip
    assert next(steps) == {}
    times = next(steps)["times"]
    assert {name: len(seconds) for name, seconds in times.items()} == {"eager": 3, "kiln": 3}
    assert next(steps)["errors"]["kiln"]["ratio"] <= 1


def score(ratio: float | None, failure: str = "") -> Score:
    return Score(1.5, 1.4, 1.6, 0.002, error_ratio=ratio, facts={"one_seed": 1.2, "answer": True}, failure=failure)


def test_a_run_is_wrong_above_the_bound_or_if_it_failed() -> None:
    assert not is_wrong(score(1.0)) and not is_wrong(score(None))
    assert is_wrong(score(1.0001)) and is_wrong(score(math.nan)) and is_wrong(score(0.5, "stopped"))


def test_the_table_judges_every_candidate_by_the_same_rule() -> None:
    result = Result("toy", 0.003, {"torch.compile": score(1.002), "kiln": score(0.5)}, asks=True)
    _, peer, ours = rows_of(result)
    assert "2.00" in ours and "0.50 " in ours and "1.20!" in ours and ours.endswith("True")
    assert "1.002!" in peer and "1.20!" in peer


def test_a_whole_step_is_compiled_and_leaves_the_gradients() -> None:
    def case() -> Case:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        made = Case(model, (torch.randn(4, 3),), {}, train=True, labels=torch.tensor([0, 1, 1, 0]))
        made.optimizer = torch.optim.AdamW(model.parameters())
        return made

    eager, ours = case(), case()
    compiled = candidate("kiln", None).compile_case(ours)
    for _ in range(3):
        for mine, expected in zip(ours.run(compiled), eager.run(eager.subject), strict=True):
            torch.testing.assert_close(mine, expected)
    assert api.report_of(compiled).breaks == []


def test_a_model_that_a_suite_does_not_have() -> None:
    rows = load_suite("cpu", train=False).rows
    assert {row.name for row in chosen_rows(rows, "gpt2")} == {"gpt2"}
    assert chosen_rows(rows, "") == list(rows)
    with pytest.raises(SystemExit, match="no model 'gtp2'; it has bert-base, "):
        chosen_rows(rows, "gpt2,gtp2")


def test_programs_and_packages_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Kiln in place of the peer, which takes long."""

    def fail(*given: object) -> object:
        raise ValueError("no program")

    ours = EXPORTERS["kiln"]
    monkeypatch.setattr(exports, "EXPORTERS", {"kiln": ours, "torch": ours})
    case = Case(torch.nn.Linear(4, 2).eval(), (torch.ones(3, 4),), {}, train=False)
    (found,) = measure_exports(case, 2, 3)
    assert {kind: len(times["torch"]) for kind, times in found["times"].items()} == {
        "export": 2,
        "package": 1,
        "call": 3,
    }
    assert max(found["errors"].values()) < 1e-5 and not found["failures"]
    row = ExportRow("linear", found)
    assert [line[28:36].strip() for line in row.lines()] == ["export", "package", "call", "errors"]
    assert len(list(summary([row]))) == 3
    monkeypatch.setattr(exports, "EXPORTERS", {"kiln": ours, "torch": replace(ours, export=fail)})
    (found,) = measure_exports(case, 2, 3)
    assert found["failures"] == {"torch": "ValueError: no program"} and list(found["errors"]) == ["kiln"]
