"""What can be switched off: passes, rules of fusion, reuse of memory.

`python -m kiln bisect` turns them to find the one that makes a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from kiln.graph.passes.arithmetic import ARITHMETIC
from kiln.graph.passes.pipeline import FORWARD_PASSES, GRAPH_PASSES, JOINT_PASSES
from kiln.graph.passes.view_rules import VIEWS
from kiln.loops.fusion.rules import FUSION_RULES
from kiln.loops.kernel.passes.pipeline import CPP_PASSES, TRITON_PASSES
from kiln.loops.program.passes.pipeline import CPU_PROGRAM_PASSES, GPU_PROGRAM_PASSES
from kiln.support.errors import KilnError
from kiln.support.passes import Named

NEEDED = frozenset(("choose-tiles", "choose-vector", "separate-outputs", "dead-code", "strips-to-runs"))
"""Passes without which later stages do not work."""

OTHERS: Mapping[str, str] = {
    "memory-reuse": "results are written over values that are dead",
    "recompute": "the backward recomputes values instead of saving them",
    "overlap-collectives": "collectives start early and are waited for late",
    "launch-tables": "launches of one kernel become one",
    "split-step": "a region that holds a backward is lowered in two parts, with recomputation in between",
    "equal-sizes": "sizes that guards make equal have one symbol",
    "repeated-layers": "equal layers are compiled once",
    "compile": "regions are compiled; without, eager runs the torch calls that were captured",
    "capture": "functions are captured; without, they run eager",
}
"""Switches that are neither passes nor rules."""


KINDS: Mapping[str, Sequence[Named]] = {
    "graph pass": (*JOINT_PASSES, *FORWARD_PASSES, *GRAPH_PASSES),
    "rewrite rule": (*ARITHMETIC, *VIEWS),
    "loop pass": (*CPU_PROGRAM_PASSES, *GPU_PROGRAM_PASSES),
    "fusion rule": FUSION_RULES,
    "kernel pass": (*CPP_PASSES, *TRITON_PASSES),
}


def _switches() -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, named in KINDS.items():
        for entry in named:
            if entry.name not in NEEDED:
                found.setdefault(entry.name, kind)
    return {**found, **OTHERS}


SWITCHES: Mapping[str, str] = _switches()
"""Each switch, and what it is."""


class UnknownSwitch(KilnError):
    code = "KILN5006"
    what = "option `disable` names `{name}`"
    why = "the switches are {allowed}"
    try_ = ("join several with `+`",)


def check_switches(names: Set[str]) -> None:
    """Raises UnknownSwitch."""
    for name in sorted(names - SWITCHES.keys()):
        raise UnknownSwitch(name=name, allowed=", ".join(SWITCHES))


def pass_names() -> frozenset[str]:
    """The names of all passes: each is a stage of its own in events."""
    return frozenset(entry.name for kind, named in KINDS.items() if kind.endswith("pass") for entry in named)
