"""`python -m kiln run script.py`: a program unchanged, with `torch.compile` meaning Kiln.

python -m kiln run train.py --steps 100               reports on standard error when the program ends
python -m kiln run --report kiln.json train.py        a line there, the reports in the file
python -m kiln run -m package.train --steps 100
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import kiln.api as api
from kiln.report import Report

SCHEMA = 1  # the form of the JSON
MAX_SHOWN = 5
"""Reports that are shown in full: those that took longest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the reports to FILE, as JSON")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, by its import path")
    parser.add_argument("program", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program gets as sys.argv[1:]")


def run(arguments: argparse.Namespace) -> int:
    if missing := missing_program(arguments):
        print(f"kiln run: {missing}", file=sys.stderr)
        return 2
    reports = api.keep_reports()
    restore = api.replace_torch_compile()
    sys.argv = [arguments.program, *arguments.arguments]
    try:
        if arguments.module:
            runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(arguments.program))
            runpy.run_path(arguments.program, run_name="__main__")
    finally:
        restore()
        print(summary(reports, full=arguments.report is None), file=sys.stderr)
        if arguments.report is not None:
            data = {"schema": SCHEMA, "reports": [json.loads(report.to_json()) for report in reports]}
            arguments.report.write_text(json.dumps(data, indent=1))
    return 0


def missing_program(arguments: argparse.Namespace) -> str:
    """Why there is nothing to run; `""` if there is."""
    name: str = arguments.program
    if not arguments.module:
        return "" if os.path.exists(name) else f"there is no file {name}"
    package, _, _ = name.partition(".")  # looking for what is in it would run it
    return "" if importlib.util.find_spec(package) is not None else f"there is no module {package}"


def summary(reports: Sequence[Report], *, full: bool) -> str:
    """The sums over all reports, and the longest ones."""
    used = [report for report in reports if report.compiles or report.loaded or report.eager]
    compiles, loaded, eager = (
        sum(getattr(report, name) for report in used) for name in ("compiles", "loaded", "eager")
    )
    seconds = sum(report.total_seconds for report in used)
    first = (
        f"kiln run: {len(used)} compiled functions, {compiles} compiles, {loaded} loaded, {eager} eager; "
        f"{seconds:.2f} s of compiling"
    )
    longest = sorted(used, key=lambda report: -report.total_seconds)[: MAX_SHOWN if full else 0]
    more = [f"... and {len(used) - len(longest)} more (--report FILE)"] if full and len(used) > len(longest) else []
    return "\n".join([first, *(report.text() for report in longest), *more])
