"""Runs the numbered cases of a sweep in child processes, which may crash, and writes what they find as JSON lines.

    python -m tests.sweeps rules --cases 20000 --shard 0/4 --seconds 600 --out found.jsonl --resume

{"case": 17, "subject": "aten.gather.default", "kind": "lost error", "detail": "..."}     a finding
{"case": 18, "subject": "add", "mode": "forward int8", "kind": "native"}                  what is right, if counted
{"position": 500}                                                                         all cases before it are done

A case is a pure function of its number, so a finding is repeated by `--first 17 --cases 1`. A child that dies or is
silent for too long is a finding of kind "crash" or "timeout", and the next child goes on behind it.
`python -m tests.sweeps table found*.jsonl` counts the kinds (`table.py`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from kiln_bench.children import Tell, Work, in_children
from tests.sweeps.table import RIGHT, table

Note = Callable[[str, str], None]
"""Takes the subject and the program that run next; the subject "eager" says that a crash is not ours."""
CASES_OF_A_CHILD = 400
"""After so many cases a fresh process takes over: what earlier cases left behind stays small."""
MOST_CASES = 10_000
"""Cases of a run that names no number."""


@dataclass(frozen=True)
class Finding:
    """A difference between compiled code and eager."""

    subject: str
    """What was tested, such as an operator: findings are counted by it."""
    kind: str
    detail: str
    program: str = ""
    """The program, as small as it could be made."""
    mode: str = ""
    """How the subject was tested, such as "gradient float32"."""


class Sweep(Protocol):
    """A generator of cases, each compared with eager."""

    def total(self) -> int:
        """How many cases there are at most."""

    def run(self, number: int, note: Note) -> list[Finding]:
        """What is wrong in a case; `note` is told what is about to run, so that a crash can be reported."""


class Unusable(BaseException):
    """After this finding the process can do nothing more: the GPU is lost to it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.detail)
        self.finding = finding


class OutOfTime(BaseException):
    """A case took too long; no exception that the compiler would take for a fault of its own."""


@dataclass
class Tally:
    """What the children have found."""

    out: IO[str]
    position: int
    step: int
    cases: int = 0
    current: int | None = None
    noted: tuple[str, str] = ("", "")
    kinds: Counter[str] = field(default_factory=Counter)
    subjects: set[str] = field(default_factory=set)

    def take(self, message: dict[str, Any]) -> None:
        if "begin" in message:
            self.current = message["begin"]
        elif "note" in message:
            self.noted = message["note"], message["text"]
        elif "position" in message:
            self.position, self.current = message["position"], None
            self.cases += 1
        else:
            self.add(message)

    def add(self, finding: dict[str, Any]) -> None:
        print(json.dumps({name: value for name, value in finding.items() if value != ""}), file=self.out, flush=True)
        self.kinds[finding["kind"]] += 1
        self.subjects.add(finding["subject"])

    def crash(self, kind: str, detail: str) -> None:
        """The child died in the current case: go on behind it."""
        assert self.current is not None
        subject, program = self.noted
        if subject != "eager":
            self.add({"case": self.current, "subject": subject, "kind": kind, "detail": detail, "program": program})
        self.position, self.current = self.current + self.step, None

    def faults(self) -> Counter[str]:
        return Counter({kind: count for kind, count in self.kinds.items() if kind not in RIGHT})

    def line(self, name: str) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.faults().most_common()) or "none"
        return f"{name}: {self.cases} cases up to {self.position}, {len(self.subjects)} subjects; findings: {kinds}"


def alarm(*_: object) -> None:
    raise OutOfTime


def run_cases(sweep: Sweep, numbers: range, limit: int, deadline: float, tell: Tell) -> None:
    """In the child: the cases in order, until the time is over."""
    signal.signal(signal.SIGPROF, alarm)
    for number in numbers:
        if time.time() > deadline:
            return
        tell({"begin": number})
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            findings = sweep.run(number, lambda subject, program: tell({"note": subject, "text": program}))
        except OutOfTime:
            findings = [Finding(f"case {number}", "timeout", f"took over {limit} s", innermost_frames())]
        except Unusable as problem:
            tell({"case": number, **asdict(problem.finding)})
            tell({"position": number + numbers.step})
            return
        except Exception:
            findings = [Finding("the sweep", "fault of the sweep", traceback.format_exc()[-1500:])]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        for finding in findings:
            tell({"case": number, **asdict(finding)})
        tell({"position": number + numbers.step})


def innermost_frames() -> str:
    return "".join(traceback.format_exc().splitlines(keepends=True)[-14:])


def run(sweep: Sweep, arguments: argparse.Namespace) -> Tally:
    """The cases of the shard that are left, until the time is over."""
    part, parts = map(int, arguments.shard.split("/"))
    start = arguments.first + part
    if arguments.resume and arguments.out.exists():
        known = lines_of(arguments.out)  # of a run that was killed, no position behind its last finding
        start = max([start, *(line.get("position", line.get("case", 0)) for line in known)])
    total = sweep.total()
    if arguments.first >= total:
        raise SystemExit(f"there are {total} cases: none is numbered {arguments.first}")
    end = min(arguments.first + (arguments.cases or min(total, MOST_CASES)), total)
    deadline = time.time() + arguments.seconds
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a" if arguments.resume else "w") as out:
        tally = Tally(out, start, parts)
        limit, silence = arguments.case_seconds, arguments.silence or arguments.case_seconds * 10.0

        def works() -> Iterator[tuple[str, Work]]:
            while tally.position < end and time.time() < deadline:
                numbers = range(tally.position, min(end, tally.position + CASES_OF_A_CHILD * parts), parts)
                yield "cases", partial(run_cases, sweep, numbers, limit, deadline)

        for told in in_children(works(), 1, silence):
            if told.ended is None:
                tally.take(json.loads(told.line))
                continue
            if tally.current is not None:
                tally.crash("timeout" if told.ended == "timeout" else "crash", f"the process ended: {told.ended}")
            print(json.dumps({"position": tally.position}), file=out, flush=True)
    return tally


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--first", type=int, default=0, help="number of the first case")
    made.add_argument("--cases", type=int, default=0, help="default: all, but at most 10,000")
    made.add_argument("--shard", default="0/1", help="every n-th case: 0/4 to 3/4")
    made.add_argument("--seconds", type=float, default=3600.0, help="for the whole run")
    made.add_argument("--case-seconds", type=int, default=30, help="of processor time, limit of a case")
    made.add_argument("--out", type=Path, default=Path("found.jsonl"))
    made.add_argument("--silence", type=float, default=0.0, help="seconds; default: ten times the limit of a case")
    made.add_argument("--resume", action="store_true", help="go on where the file ends")
    databases = made.add_argument_group("torch's databases")
    made.add_argument("--device", default="cpu", help="of databases and kernels")
    databases.add_argument("--only", default="", help="names with commas between")
    databases.add_argument("--dtypes", default="", help="such as float32,int8; default: all")
    databases.add_argument("--modes", default="", help="such as forward,gradient; see the sweep's own text")
    databases.add_argument("--samples", type=int, default=2, help="of each op and dtype; 0: all")
    databases.add_argument("--reference", action="store_true", help="torch's longer lists: extremes, other strides")
    return made


def main(sweeps: dict[str, Callable[[argparse.Namespace], Sweep]], words: list[str]) -> int:
    if words[:1] == ["table"]:
        lines = [line for path in words[1:] for line in lines_of(Path(path))]
        print("\n".join(table({tuple(line.items()): line for line in lines}.values())))  # a case run twice counts once
        return 0
    if not words or words[0] not in sweeps:
        print(f"usage: python -m tests.sweeps {{{','.join([*sweeps, 'table'])}}} ...", file=sys.stderr)
        return 2
    arguments = parser().parse_args(words[1:])
    tally = run(sweeps[words[0]](arguments), arguments)
    print(tally.line(words[0]), flush=True)
    if tally.kinds.keys() & RIGHT:
        print("\n".join(table(lines_of(arguments.out))))
    return bool(tally.faults())
