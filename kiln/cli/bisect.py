"""`python -m kiln bisect script.py args`: where the compiler goes wrong on a program.

The script runs once with KILN_VERIFY=first. The first region that differs from eager is taken apart in this process;
if none does but the script fails, it runs again and again with parts of the compiler switched off. A reproducer
(`kiln_reproducers/*.py`) is taken as it is.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.api import compile
from kiln.debug.bisect import BisectResult, Reproduction, bisect_reproduction, bisect_script
from kiln.pipeline.reproducer import FOLDER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", type=Path, help="a Python program, or a reproducer")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")


def run(given: argparse.Namespace) -> int:
    if given.script.resolve().parent.name == FOLDER:
        return report(of_reproducer(given.script))
    before = reproducers()
    status = run_script(given.script, given.arguments, {"KILN_VERIFY": "first"}, errors=None)
    made = sorted(reproducers() - before)
    if made:
        print(f"reproducer: {made[0]}")
        return report(of_reproducer(made[0]))
    if status == 0:
        print("no region differs from eager, and the script succeeds")
        return 0

    def differs(without: Sequence[str]) -> bool:
        return run_script(given.script, given.arguments, {"KILN_OPTIONS": options_without(without)}) != 0

    return report(bisect_script(differs))


def options_without(switches: Sequence[str]) -> str:
    """The user's KILN_OPTIONS, with these switches off too."""
    parts = [part.strip() for part in os.environ.get("KILN_OPTIONS", "").split(",")]
    own = [part.removeprefix("disable=") for part in parts if part.startswith("disable=")]
    kept = [part for part in parts if part and not part.startswith("disable=")]
    off = [*filter(None, own), *switches]
    return ",".join([*kept, *([f"disable={'+'.join(off)}"] if off else [])])


def run_script(
    script: Path, arguments: Sequence[str], environment: dict[str, str], errors: int | None = subprocess.DEVNULL
) -> int:
    """The exit status of the script in a process of its own, whose results are not shown; `errors`: where they go."""
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=errors, check=False
    )
    return done.returncode


def reproducers() -> set[Path]:
    return set((Path.cwd() / FOLDER).glob("*.py"))


def of_reproducer(script: Path) -> BisectResult | None:
    case = Reproduction.of_script(runpy.run_path(str(script), run_name="reproducer"))
    return bisect_reproduction(case, lambda program, options: compile(program, options=options))


def report(finding: BisectResult | None) -> int:
    print("it does not differ in this process" if finding is None else finding.text())
    return 0 if finding is None else 1
