"""Measures the idioms: compiles, breaks, and whether results equal eager's.

python -m tests.capture.idioms.measure [--default] [table ...] [program ...]
"""

from __future__ import annotations

import copy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import kiln
from kiln.report.report import Break, Report

from . import control, data, libraries, transforms
from .outcome import outcome, same
from .table import BREAKS, Program

TABLES = {"data": data.TABLE, "transforms": transforms.TABLE, "libraries": libraries.TABLE, "control": control.TABLE}


class Timeout(Exception):
    pass


def expired(*_: Any) -> None:
    raise Timeout


@dataclass(frozen=True)
class Measured:
    """`equal`, or the first difference; and the report."""

    equal: str
    report: Report

    @property
    def reasons(self) -> list[Break]:
        """What broke or ran eager."""
        return [*self.report.breaks, *self.report.eager_reasons]

    @property
    def codes(self) -> list[str]:
        return list(dict.fromkeys(reason.code for reason in self.reasons))

    @property
    def one_graph(self) -> bool:
        return self.report.regions == 1 and not self.reasons


def measured(program: Program, **options: Any) -> Measured:
    """The calls of a program, compiled and eager."""
    torch.manual_seed(0)
    compiled = kiln.compile(program.function, options={"cache": False}, **options)
    equal = "equal"
    for args in program.calls():
        expected = outcome(program.function, copy.deepcopy(args))
        got = outcome(compiled, copy.deepcopy(args))
        if equal == "equal" and not same(expected, got):
            equal = f"DIFFERS {expected} {got}"[:400]
    return Measured(equal, compiled.report())


def chosen(words: list[str]) -> Iterator[tuple[str, Program]]:
    for name, table in TABLES.items():
        for program in table:
            if not words or name in words or program.name in words:
                yield name, program


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    options = {} if "--default" in sys.argv else {"backend": "eager"}
    warnings.simplefilter("ignore")
    clean = total = 0
    lines = list[str]()
    signal.signal(signal.SIGALRM, expired)
    for kind, program in chosen(words):
        start = time.perf_counter()
        total += 1
        signal.alarm(60)
        try:
            found = measured(program, **options)
        except BaseException as error:
            print(f"{kind:10} {program.name:32} FAILS {type(error).__name__}: {error}"[:300], flush=True)
            if "--trace" in sys.argv:
                traceback.print_exc()
            continue
        finally:
            signal.alarm(0)
        seconds = time.perf_counter() - start
        if found.codes:
            lines.append(" ".join([program.name, *found.codes]))
        clean += found.one_graph and found.equal == "equal"
        report = found.report
        print(
            f"{kind:10} {program.name:32} {'ok' if found.one_graph else '--':3} regions {report.regions}"
            f" compiles {report.compiles} eager {report.eager} {found.equal} {seconds:.1f} s",
            flush=True,
        )
        for text in dict.fromkeys(reason.text() for reason in found.reasons):
            print(f"               {text[:260]}")
    if "--write" in sys.argv:
        BREAKS.write_text("\n".join(sorted(lines)) + "\n")
    print(f"{clean} of {total} in one graph and equal")


if __name__ == "__main__":
    main()
