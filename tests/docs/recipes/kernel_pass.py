"""x * 2 becomes x + x in C++ kernels."""

RECIPE = "A kernel pass"
EDITS = [
    (
        "kiln/loops/kernel/passes/double.py",
        "",
        '''"""x * 2 becomes x + x."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import BodyOp, Compute, Const, LoopBody
from kiln.loops.kernel.kernel import Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.passes.fuse_erf import with_live_body
from kiln.support.records import dataclass
from kiln.support.target import Target


@final
@dataclass(frozen=True, slots=True)
class DoubleByAddition:
    name: str = "double-by-addition"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        phases = tuple([rewritten(phase) for phase in mapped.kernel.phases])
        changes = sum(new is not old for new, old in zip(phases, mapped.kernel.phases, strict=True))
        return (replace(mapped, kernel=replace(mapped.kernel, phases=phases)), changes) if changes else (mapped, 0)


def rewritten(phase: Phase) -> Phase:
    ops = tuple([doubled(op, phase.body.ops) for op in phase.body.ops])
    return phase if ops == phase.body.ops else with_live_body(phase, LoopBody(ops, phase.body.results))


def doubled(op: BodyOp, ops: tuple[BodyOp, ...]) -> BodyOp:
    if isinstance(op, Compute) and op.op.name == "mul":
        left, right = op.operands
        factor = ops[right]
        if isinstance(factor, Const) and factor.value == 2:
            return Compute(PRIMS["add"], (left, left), op.dtype)
    return op
''',
    ),
    (
        "kiln/loops/kernel/passes/pipeline.py",
        "from kiln.loops.kernel.passes.drop_roundings import",
        "from kiln.loops.kernel.passes.double import DoubleByAddition\n"
        "from kiln.loops.kernel.passes.drop_roundings import",
    ),
    (
        "kiln/loops/kernel/passes/pipeline.py",
        "MoveBits(), DropRoundings(),",
        "MoveBits(), DoubleByAddition(), DropRoundings(),",
    ),
    (
        "kiln/loops/kernel/passes/pipeline.py",
        "check_order(\n    CPP_PASSES,\n",
        'check_order(\n    CPP_PASSES,\n    before("fuse-erf", "double-by-addition", because="toys come last"),\n',
    ),
]


def check() -> None:
    import torch

    import kiln
    from tests.docs.dumped import dumped

    compiled = kiln.compile(lambda x: x * 2, fullgraph=True)
    x = torch.randn(100)
    torch.testing.assert_close(compiled(x), x * 2)
    assert "v0 + v0" in dumped("kernels")
