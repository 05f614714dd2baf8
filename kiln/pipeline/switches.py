"""What can be switched off: passes, rules of fusion, reuse of memory.

    options={"disable": "cse+memory-reuse"}        switched_off(options) == ("cse", "memory-reuse")

`python -m kiln bisect` turns them to find the one that makes a difference; `numerics` switches off what its contract
does not allow. Names travel in `Target.without`, which every pass sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from kiln.graph.passes.arithmetic import ARITHMETIC
from kiln.graph.passes.pipeline import FORWARD_PASSES, GRAPH_PASSES, JOINT_PASSES
from kiln.graph.passes.view_rules import VIEWS
from kiln.loops.fusion.rules import FUSION_RULES
from kiln.loops.kernel.passes.pipeline import CPP_PASSES, TRITON_PASSES
from kiln.loops.program.passes.pipeline import CPU_PROGRAM_PASSES, GPU_PROGRAM_PASSES
from kiln.support.errors import KilnError
from kiln.support.options import Options
from kiln.support.passes import Named
from kiln.support.target import Target

NEEDED = frozenset(("choose-tiles", "choose-vector", "separate-outputs", "dead-code", "strips-to-runs"))
"""Passes without which later stages do not work."""

OTHERS: Mapping[str, str] = {
    "memory-reuse": "results are written over values that are dead",
    "recompute": "the backward recomputes values instead of saving them",
    "split-step": "a region that holds a backward is lowered in two parts, with recomputation in between",
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
PASSES = frozenset(entry.name for kind, named in KINDS.items() if kind.endswith("pass") for entry in named)
"""The names of all passes: each is a stage of its own in events."""


def _switches() -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, named in KINDS.items():
        for entry in named:
            if entry.name not in NEEDED:
                found.setdefault(entry.name, kind)
    return {**found, **OTHERS}


SWITCHES: Mapping[str, str] = _switches()
"""Each switch, and what it is."""

NUMERICS: Mapping[str, tuple[str, ...]] = {
    "fast": (),
    "rounded": ("fast-math",),
    "strict": (
        "add-embedding", "align-products", "channels-last", "fast-math", "fuse-erf", "one-hot-sums", "online-softmax",
        "pool-channels-last", "unfuse-bias",
    ),
}  # fmt: skip
"""What a contract switches off: other orders of sums, other functions, other algorithms of libraries."""


class UnknownSwitch(KilnError):
    code = "KILN5006"
    what = "option `disable` names `{name}`"
    why = "the switches are {allowed}"
    try_ = ("join several with `+`",)


def switched_off(options: Options) -> tuple[str, ...]:
    """In the order of the alphabet. Raises UnknownSwitch."""
    given = {name for name in options.disable.split("+") if name}
    for name in sorted(given - SWITCHES.keys()):
        raise UnknownSwitch(name=name, allowed=", ".join(SWITCHES))
    return tuple(sorted(given.union(NUMERICS[options.numerics])))


def target_for(options: Options, host: Target) -> Target:
    """`host` with what `options` and torch's settings ask for."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    rounds = options.numerics != "fast"
    return replace(host, deterministic=deterministic, rounds=rounds, without=switched_off(options))
