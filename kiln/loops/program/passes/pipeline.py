"""The passes over loop programs, in order, with the reason for each order; and their runner.

    program = run_program_passes(program, target, events)

`kiln/support/passes.py` says what a pass is. With a dump, what a pass changed is verified and written.
"""

from __future__ import annotations

from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.passes.join_parts import JoinParts
from kiln.loops.program.passes.materialise_row_terms import MaterialiseRowTerms
from kiln.loops.program.passes.recompute_at_gather import RecomputeAtGather
from kiln.loops.program.passes.shift_variances import ShiftVariances
from kiln.loops.program.passes.sink_column_sums import SinkColumnSums
from kiln.loops.program.passes.split_columns import SplitColumns
from kiln.loops.program.passes.split_index_reductions import SplitIndexReductions
from kiln.loops.program.text import program_text
from kiln.loops.program.verify import verify_program
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.passes import Pass, before, check_order, run_passes
from kiln.support.target import Target

ProgramPass = Pass[LoopProgram, Target]

CPU_PROGRAM_PASSES: tuple[ProgramPass, ...] = (RecomputeAtGather(),)
GPU_PROGRAM_PASSES: tuple[ProgramPass, ...] = (
    JoinParts(), RecomputeAtGather(), ShiftVariances(), SplitColumns(), SplitIndexReductions(), MaterialiseRowTerms(),
    SinkColumnSums(),
)  # fmt: skip

# fmt: off
check_order(
    GPU_PROGRAM_PASSES,
    before("recompute-at-gather",   "split-index-reductions", because="what it computes again is whole"),
    before("shift-variances",       "split-columns",         because="a variance is recognised by its two sums"),
    before("join-parts",            "recompute-at-gather",   because="parts are alike as they are lowered"),
    before("recompute-at-gather",   "split-columns",         because="what it computes again is whole"),
    before("split-columns",         "split-index-reductions", because="parts of columns have units enough"),
    before("recompute-at-gather",   "materialise-row-terms", because="a recomputed look-up may be a row term"),
    before("materialise-row-terms", "sink-column-sums",      because="row terms come before what sinks"),
)
# fmt: on


def run_program_passes(
    program: LoopProgram, target: Target, events: EventSink, dump: Dump | None = None
) -> LoopProgram:
    """The loop program that is scheduled."""
    dumps = dump is not None and dump.root is not None
    return run_passes(
        GPU_PROGRAM_PASSES if target.is_gpu else CPU_PROGRAM_PASSES, program, target, events,
        size=lambda made: len(made.nodes), show=program_text, dump=dump,
        verify=(lambda made, after: verify_program(made)) if dumps else None, without=target.without,
    )  # fmt: skip
