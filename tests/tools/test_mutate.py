"""tools/mutate: what is changed, which tests are chosen, and that the written lists fit the sources."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tools.mutate.__main__ import all_mutants, arguments_of_survivors, known_mutants
from tools.mutate.mutants import Mutant, cpp_mutants, python_mutants
from tools.mutate.selection import Calls

PYTHON = b'''\
"""A docstring with 1 < 2."""

LIMIT: int = 8
RULES = RuleSet(Rule("a", 1), Rule("b", x * 2))


def first(values: Sequence[int], most: int = 3) -> int:
    if len(values) > most:
        raise TooMany(f"{len(values)} > {most}")
    check(values)
    return min(value for value in values if value != 0) + 1


class Thing:
    def text(self) -> str:
        return "x" * 3

    def is_small(self) -> bool:
        return self.size < LIMIT and not self.big
'''
EXPECTED = """\
constant LIMIT: int = 8 | 8 => 9
row RULES = RuleSet(Rule("a", 1), Rule("b", x * 2)) | Rule("a", 1), =>\x20
constant RULES = RuleSet(Rule("a", 1), Rule("b", x * 2)) | 1 => 2
constant RULES = RuleSet(Rule("a", 1), Rule("b", x * 2)) | 2 => 3
constant def first(values: Sequence[int], most: int = 3) -> int: | 3 => 4
guard if len(values) > most: | len(values) > most => False
bound if len(values) > most: | > => >=
statement check(values) | check(values) => pass
operator return min(value for value in values if value != 0) + 1 | + => -
function return min(value for value in values if value != 0) + 1 | min => max
filter return min(value for value in values if value != 0) + 1 | value != 0 => True
bound return min(value for value in values if value != 0) + 1 | != => ==
constant return min(value for value in values if value != 0) + 1 | 0 => 1
constant return min(value for value in values if value != 0) + 1 | 1 => 2
part return self.size < LIMIT and not self.big | self.size < LIMIT => True
part return self.size < LIMIT and not self.big | not self.big => True
connective return self.size < LIMIT and not self.big | and => or
bound return self.size < LIMIT and not self.big | < => <="""


def written(mutant: Mutant) -> str:
    return f"{mutant.kind} {mutant.context.partition(': ')[2]} | {mutant.old} => {mutant.new}"


def test_what_is_changed_in_python() -> None:
    found = list(python_mutants(PYTHON, "kiln/example.py"))
    assert sorted(map(written, found)) == sorted(EXPECTED.splitlines())
    for mutant in found:
        ast.parse(mutant.applied(PYTHON))
    assert len({mutant.applied(PYTHON) for mutant in found}) == len(found)
    by_kind = {mutant.kind: mutant.function for mutant in found}
    assert (by_kind["row"], by_kind["guard"], by_kind["connective"]) == (None, 7, 18)


def test_what_is_changed_in_cpp() -> None:
    source = b'#if A < B\nbool f(std::vector<int> v) {  // 1 < 2\n  if (v.size() < g("a == b")) return true;\n}\n'
    assert sorted(f"{m.old} => {m.new}" for m in cpp_mutants(source, "csrc/f.cpp")) == [
        " <  =>  <= ", 'if (v.size() < g("a == b")) => if (!(v.size() < g("a == b")))', "true => false",
    ]  # fmt: skip


def recorded(test: str, seconds: float, *calls: str, passed: bool = True) -> str:
    return json.dumps({"test": test, "seconds": seconds, "calls": calls, "passed": passed})


def mutant_in(function: int | None, path: str = "kiln/plan/a.py") -> Mutant:
    return Mutant(path, 7, function, "bound", "<", "<=", 0, 1, "f: if a < b:")


def test_the_cheapest_tests_of_each_file_are_chosen() -> None:
    x, y = "tests/x.py", "tests/y.py"
    calls = Calls([
        recorded(f"{x}::slow", 5.0, "plan/a.py:7"), recorded(f"{x}::quick", 0.1, "plan/a.py:7"),
        recorded(f"{y}::other", 0.5, "plan/a.py:7", "plan/a.py:30"), recorded(f"{y}::far", 0.1, "plan/b.py:1"),
        recorded(f"{y}::wrong", 0.1, "plan/a.py:7", passed=False),
    ])  # fmt: skip
    assert calls.of(mutant_in(7), 1.0) == ["tests/x.py::quick", "tests/y.py::other"]
    assert calls.of(mutant_in(7), 9.0) == ["tests/x.py::quick", "tests/x.py::slow", "tests/y.py::other"]
    assert calls.of(mutant_in(None), 0.6) == ["tests/x.py::quick", "tests/y.py::other"]
    assert calls.of(mutant_in(99, "kiln/plan/none.py"), 9.0) == []
    assert calls.of(mutant_in(None, "csrc/executor/run.cpp"), 9.0) == ["tests/runtime"]


def test_known_mutants_stand_in_the_sources() -> None:
    assert len({mutant.key for mutant in known_mutants()}) >= 11


@pytest.mark.slow
def test_argued_survivors_stand_in_the_sources() -> None:
    keys = {mutant.key for mutant in [*all_mutants(), *known_mutants()]}
    assert [key for key in arguments_of_survivors() if key not in keys] == []


def test_every_mutant_of_a_module_parses() -> None:
    root = Path(__file__).resolve().parents[2]
    source = (root / "kiln/loops/fusion/take_over.py").read_bytes()
    for mutant in all_mutants("kiln/loops/fusion/take_over.py"):
        ast.parse(mutant.applied(source))
