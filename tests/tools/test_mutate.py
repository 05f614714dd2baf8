"""tools/mutate: what is changed, which tests are chosen, and that the written lists fit the sources."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools.mutate.call_map import RecordedTest, read_calls, write_calls
from tools.mutate.copy_of_tree import TreeCopy, Verdict, named
from tools.mutate.journal import add_line, control_of, failed_unchanged, read_journals, table
from tools.mutate.mutants import Mutant, cpp_mutants, python_mutants
from tools.mutate.processes import Deadline, in_processes
from tools.mutate.sample import all_mutants, argued_survivors, known_mutants, sampled, sources
from tools.mutate.selection import Calls, words_of

ROOT = Path(__file__).resolve().parents[2]

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
    assert (by_kind["row"], by_kind["guard"], by_kind["connective"]) == (None, "first", "Thing.is_small")


def test_what_is_changed_in_cpp() -> None:
    source = b'#if A < B\nbool f(std::vector<int> v) {  // 1 < 2\n  if (v.size() < g("a == b")) return true;\n}\n'
    assert sorted(f"{m.old} => {m.new}" for m in cpp_mutants(source, "csrc/f.cpp")) == [
        " <  =>  <= ", 'if (v.size() < g("a == b")) => if (!(v.size() < g("a == b")))', "true => false",
    ]  # fmt: skip


def recorded(test: str, seconds: float, *calls: str) -> RecordedTest:
    return RecordedTest(test, seconds, calls)


def mutant_in(function: str | None, path: str = "kiln/plan/a.py") -> Mutant:
    return Mutant(path, 7, function, "bound", "<", "<=", 0, 1, "f: if a < b:")


X, Y = "tests/x.py", "tests/y.py"
RECORDED = [
    recorded(f"{X}::slow", 5.0, "plan/a.py:f"), recorded(f"{X}::quick", 0.1, "plan/a.py:f"),
    recorded(f"{Y}::other", 0.5, "plan/a.py:f", "plan/a.py:T.g"), recorded(f"{Y}::far", 0.1, "plan/b.py:f"),
    recorded("tests/runtime/test_a.py::a", 0.1),
]  # fmt: skip


def test_the_cheapest_tests_of_each_file_are_chosen() -> None:
    calls = Calls(RECORDED)
    assert calls.of(mutant_in("f"), 1.0) == [f"{X}::quick", f"{Y}::other"]
    assert calls.of(mutant_in("f"), 9.0) == [f"{X}::quick", f"{X}::slow", f"{Y}::other"]
    assert calls.of(mutant_in("T.g"), 9.0) == [f"{Y}::other"]
    assert calls.of(mutant_in(None), 0.6) == [f"{X}::quick", f"{Y}::other"]
    assert calls.of(mutant_in("f", "kiln/plan/none.py"), 9.0) == []
    assert calls.of(mutant_in(None, "csrc/executor/run.cpp"), 9.0) == ["tests/runtime/test_a.py::a"]


def test_tests_that_name_the_function_or_a_text_of_the_row_come_first() -> None:
    others = [RecordedTest(f"{X}::test_{number}", 0.01, ("a.py:made",)) for number in range(30)]
    named = [RecordedTest(f"{Y}::test_values[{name}]", 0.5, ("a.py:made", "b.py:f")) for name in ("exp", "rad2deg")]
    row = Mutant("kiln/a.py", 1, None, "constant", "1", "2", 0, 1, 'TABLE["rad2deg.default"] = 1')
    assert f"{Y}::test_values[rad2deg]" in Calls([*others, *named]).of(row, 1.6)
    assert words_of(mutant_in("Emit._to_copy")) == {"emit", "copy"}


def test_recorded_calls_come_back_from_their_file(tmp_path: Path) -> None:
    write_calls(tmp_path / "calls.gz", RECORDED)
    assert [set(test.calls) for test in read_calls(tmp_path / "calls.gz")] == [set(test.calls) for test in RECORDED]
    assert [test.name for test in read_calls(tmp_path / "calls.gz")] == [test.name for test in RECORDED]


def test_a_sample_is_even_over_folders_by_lines() -> None:
    mutants = [*all_mutants(ROOT, "kiln/plan/"), *all_mutants(ROOT, "kiln/loops/fusion/")]
    sample = sampled(ROOT, mutants, 100, seed=3)
    assert sample[:20] == sampled(ROOT, mutants, 20, seed=3) != sampled(ROOT, mutants, 20, seed=4)
    counts = Counter([mutant.path.rpartition("/")[0] for mutant in sample])
    lines: Counter[str] = Counter()
    for path in sources(ROOT):
        lines[str(path.parent.relative_to(ROOT))] += path.read_bytes().count(b"\n")
    total = sum(lines[folder] for folder in counts)
    assert all(abs(count - 100 * lines[folder] / total) < 2 for folder, count in counts.items())


def test_processes_share_the_work_until_the_deadline(tmp_path: Path) -> None:
    def do(place: Path, number: int) -> None:
        add_line(place, f"mutant {number}", Verdict("caught", "tests/x.py"), 0.1, number)

    in_processes(2, 5, lambda process: tmp_path / "journal", do, Deadline(1.0))
    assert sorted(read_journals([tmp_path / "journal"])) == [f"mutant {number}" for number in range(5)]
    in_processes(2, 5, lambda process: tmp_path / "late", do, Deadline(0.0))
    assert read_journals([tmp_path / "late"]) == {}


def test_the_table_names_survivors_and_failed_controls(tmp_path: Path) -> None:
    journal, mutant = tmp_path / "journal", mutant_in("f")
    for key, verdict in {
        "kiln/a/b.py one": Verdict("caught", X), "kiln/a/b.py two": Verdict("survived"),
        "kiln/a/b.py three": Verdict("survived"), control_of(mutant): Verdict("caught", f"{X}::shaky"),
        "csrc/a/b.cpp": Verdict("broken"), "csrc/a/c.cpp": Verdict("timeout"),
    }.items():  # fmt: skip
        add_line(journal, key, verdict, 1.0, 7)
    add_line(journal, "kiln/a/b.py deleted since", Verdict("survived"), 1.0, 7)
    lines = read_journals([journal])
    text, survivors = table(lines, {"kiln/a/b.py three": "equal"}, lines.keys() - {"kiln/a/b.py deleted since"})
    assert survivors == 1 and text.splitlines()[-1] == "  kiln/a/b.py two (line 7)"
    assert "caught: 50.0% of 4; 66.7% of the 3 that differ" in text and "1 runs without a change, 1 failed" in text
    assert failed_unchanged(read_journals([journal])) == {f"{X}::shaky"}


def test_a_copy_takes_a_change_and_puts_everything_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, text in {"kiln/build/a.py": "x = 1\n", "build/temp/b.o": "", ".git/c": "", "setup.py": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    copy = TreeCopy(root, tmp_path / "around")
    file = copy.folder / "kiln/build/a.py"
    assert file.exists() and not (copy.folder / "build").exists() and not (copy.folder / ".git").exists()
    before = file.stat().st_mtime_ns
    with copy.mutated(Mutant("kiln/build/a.py", 1, None, "constant", "1", "2", 4, 5, ": x = 1")):
        assert file.read_text() == "x = 2\n" and (root / "kiln/build/a.py").read_text() == "x = 1\n"
    assert file.read_text() == "x = 1\n" and file.stat().st_mtime_ns == before


def test_the_failed_test_is_found_in_the_output() -> None:
    tests = ["tests/x.py::f[a]", "tests/x.py::f[a < b]", "tests/x.py::f"]
    assert named("tests/x.py::f[a < b] - ValueError: a", tests) == tests[1]
    assert named("tests/x.py::f FAILED", tests) == tests[2]
    assert named("tests/y.py - ImportError", tests) == "tests/y.py"


def test_known_mutants_stand_in_the_sources() -> None:
    assert len({mutant.key for mutant in known_mutants(ROOT)}) >= 11
    functions = {mutant.function for mutant in known_mutants(ROOT) if mutant.path.startswith("kiln/plan/arena")}
    assert functions and None not in functions


@pytest.mark.slow
def test_argued_survivors_stand_in_the_sources() -> None:
    keys = {mutant.key for mutant in [*all_mutants(ROOT), *known_mutants(ROOT)]}
    assert [key for key in argued_survivors() if key not in keys] == []


def test_every_mutant_of_a_module_parses() -> None:
    source = (ROOT / "kiln/loops/fusion/take_over.py").read_bytes()
    for mutant in all_mutants(ROOT, "kiln/loops/fusion/take_over.py"):
        ast.parse(mutant.applied(source))
