"""The passes over kernels, in order, and why in this order."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.passes.choose_lanes import ChooseLanes
from kiln.loops.kernel.passes.choose_tiles import ChooseTiles
from kiln.loops.kernel.passes.choose_vector import ChooseVector
from kiln.loops.kernel.passes.drop_roundings import DropRoundings
from kiln.loops.kernel.passes.fast_math import FastMath
from kiln.loops.kernel.passes.fuse_erf import FuseErf
from kiln.loops.kernel.passes.hoist_loads import HoistLoads
from kiln.loops.kernel.passes.index_tests import IndexTests
from kiln.loops.kernel.passes.loop_rows import LoopRows
from kiln.loops.kernel.passes.move_bits import MoveBits
from kiln.loops.kernel.passes.online_softmax import OnlineSoftmax
from kiln.loops.kernel.passes.own_loops import OwnLoops
from kiln.loops.kernel.passes.round_halves import RoundHalves
from kiln.loops.kernel.passes.strips_to_runs import StripsToRuns
from kiln.loops.kernel.text import mapped_kernel_text
from kiln.loops.kernel.verify import verify_mapped_kernel
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.passes import Pass, before, check_order, run_passes
from kiln.support.target import Target

KernelPass = Pass[MappedKernel, Target]

CPP_PASSES: tuple[KernelPass, ...] = (
    RoundHalves(), FuseErf(), IndexTests(), MoveBits(), DropRoundings(), ChooseLanes(), StripsToRuns(), ChooseVector(),
)  # fmt: skip

TRITON_PASSES: tuple[KernelPass, ...] = (
    RoundHalves(), LoopRows(), OwnLoops(), ChooseTiles(), OnlineSoftmax(), FastMath(), HoistLoads(),
)  # fmt: skip

# fmt: off
check_order(
    CPP_PASSES,
    before("round-halves",   "fuse-erf",       because="a rounded erf is not fused"),
    before("index-tests",    "choose-lanes",   because="a copy between the cuts of tests has lanes of its own width"),
    before("move-bits",      "drop-roundings", because="a number whose rounding is dropped is computed in float32"),
    before("round-halves",   "drop-roundings", because="the last rounding is the store's"),
    before("drop-roundings", "choose-lanes",   because="it counts the ops that are computed"),
    before("choose-lanes",   "strips-to-runs", because="as many rows of a run as lanes are transposed together"),
    before("strips-to-runs", "choose-vector",  because="a run is the vectorised axis of its phases"),
)
check_order(
    TRITON_PASSES,
    before("round-halves",   "loop-rows",      because="what follows counts the ops that are computed"),
    before("loop-rows",      "choose-tiles",   because="it decides which axes are units"),
    before("own-loops",      "choose-tiles",   because="axes that occur together become one dimension of a block"),
    before("choose-tiles",   "online-softmax", because="only rows that go through a loop are worth it"),
    before("online-softmax", "fast-math",      because="it looks for exact exponentials"),
    before("choose-tiles",   "hoist-loads",    because="the row itself is loaded early only if no loop loads it"),
    before("online-softmax", "hoist-loads",    because="it takes phases out, which would leave their loads behind"),
)
# fmt: on


def run_kernel_passes(
    kernel: KernelIR,
    target: Target,
    events: EventSink,
    dump: Dump | None = None,
    passes: Sequence[KernelPass] | None = None,
) -> MappedKernel:
    """`kernel` as it is printed for `target`. With a `dump`, what a pass changed is verified and written."""
    if passes is None:
        passes = TRITON_PASSES if target.is_gpu else CPP_PASSES
    dumps = dump is not None and dump.root is not None
    return run_passes(
        passes, MappedKernel(kernel), target, events,
        size=lambda made: sum(len(phase.body.ops) for phase in made.kernel.phases), show=mapped_kernel_text, dump=dump,
        verify=(lambda made, after: verify_mapped_kernel(made)) if dumps else None, without=target.without,
    )  # fmt: skip
