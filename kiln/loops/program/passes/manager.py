"""Passes over loop programs: what they are handed, and the runner (`kiln/support/passes.py` has what all IRs share)."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.text import program_text
from kiln.loops.program.verify import verify_program
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.passes import Pass, run_passes
from kiln.support.target import Target

ProgramPass = Pass[LoopProgram, Target]


def run_program_passes(
    passes: Sequence[ProgramPass], program: LoopProgram, target: Target, events: EventSink, dump: Dump | None = None
) -> LoopProgram:
    """Run `passes` in order. With a `dump`, what a pass changed is verified and written."""
    dumps = dump is not None and dump.root is not None

    def verify(changed: LoopProgram, after: str) -> None:
        verify_program(changed)

    return run_passes(
        passes, program, target, events,
        size=lambda made: len(made.nodes), verify=verify if dumps else None, show=program_text, dump=dump,
    )  # fmt: skip
