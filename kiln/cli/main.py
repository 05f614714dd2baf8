"""The command line: `python -m kiln COMMAND`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from kiln.cli import bisect, run
from kiln_bench import demo
from kiln_bench import main as bench

COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]] = {
    "bisect": (
        "find the part of the compiler that makes a program differ from eager",
        bisect.add_arguments,
        bisect.run,
    ),
    "demo": ("compile and run BERT-base, against eager and float64", demo.add_arguments, demo.run),
    "run": ("run a program in which torch.compile means Kiln", run.add_arguments, run.run),
    "bench": ("measure a suite against eager and torch.compile", bench.add_arguments, bench.run),
}
"""Command -> purpose, arguments, function."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kiln", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (purpose, add_arguments, _) in COMMANDS.items():
        add_arguments(commands.add_parser(name, help=purpose, description=purpose))
    given = parser.parse_args(arguments)
    return COMMANDS[given.command][2](given)
