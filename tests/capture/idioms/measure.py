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
from typing import Any

import torch

import kiln
from kiln.report.report import Report

from . import control, data, libraries, transforms
from .outcome import outcome, same
from .table import BREAKS, Program

TABLES = {"data": data.TABLE, "transforms": transforms.TABLE, "libraries": libraries.TABLE, "control": control.TABLE}


class Timeout(Exception):
    pass


def expired(*_: Any) -> None:
    raise Timeout


def measured(program: Program, **options: Any) -> tuple[str, Report]:
    """One line of results, and the report."""
    compiled = kiln.compile(program.function, options={"cache": False}, **options)
    equal = "equal"
    torch.manual_seed(0)
    for args in program.calls():
        torch.manual_seed(1)
        expected = outcome(program.function, copy.deepcopy(args))
        got = outcome(compiled, copy.deepcopy(args))
        if not same(expected, got):
            equal = f"DIFFERS {expected} {got}"[:400]
    return equal, compiled.report()


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
    lines: list[str] = []
    signal.signal(signal.SIGALRM, expired)
    for kind, program in chosen(words):
        start = time.perf_counter()
        total += 1
        signal.alarm(60)
        try:
            equal, report = measured(program, **options)
        except BaseException as error:
            print(f"{kind:10} {program.name:32} FAILS {type(error).__name__}: {error}"[:300], flush=True)
            if "--trace" in sys.argv:
                traceback.print_exc()
            continue
        finally:
            signal.alarm(0)
        seconds = time.perf_counter() - start
        reasons = [*report.breaks, *report.eager_reasons]
        if reasons:
            lines.append(" ".join([program.name, *dict.fromkeys(reason.code for reason in reasons)]))
        one = report.regions == 1 and not reasons
        clean += one and equal == "equal"
        print(
            f"{kind:10} {program.name:32} {'ok' if one else '--':3} regions {report.regions} compiles {report.compiles}"
            f" eager {report.eager} {equal} {seconds:.1f} s",
            flush=True,
        )
        for reason in {found.text(): found for found in reasons}:
            print(f"               {reason[:260]}")
    if "--write" in sys.argv:
        BREAKS.write_text("\n".join(sorted(lines)) + "\n")
    print(f"{clean} of {total} in one graph and equal")


if __name__ == "__main__":
    main()
