"""Runs recorded plans in a process that has no compiler: `python replay.py <root> <folder>`.

Prints what differs and ends with status 1, or ends with a line of counts as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import torch

from kiln.plan.errors import UnknownOperator
from kiln.plan.plan import Plan
from kiln.plan.serialize import decode_plan
from kiln.plan.steps import AllocateStep, AtenStep, BranchStep
from kiln.runtime.loader import load_bundle
from kiln.support.errors import KilnError
from tests.plans.records import bits, restore

INEXACT = "mkldnn_rnn_layer"
"""A layer of oneDNN rounds otherwise in another process, and leaves bytes of its workspace unwritten."""
PARTLY_WRITTEN = "aten._ctc_loss."
"""Its second result, which its backward reads: nothing is written for places behind the lengths."""
COMPILER = ("kiln.graph", "kiln.loops", "kiln.capture", "kiln.pipeline", "kiln.api", "kiln.backends", "kiln.report")


def unwritten(plan: Plan) -> set[int]:
    """Numbers of the results that may hold memory which nothing has written: what the other side of a branch saves."""
    fresh: set[int] = set()
    for step in plan.steps:
        if isinstance(step, AllocateStep):
            fresh.add(step.out)
        elif isinstance(step, BranchStep):
            hollow = unwritten(step.if_true) | unwritten(step.if_false)
            fresh |= {out for number, out in enumerate(step.outs) if number in hollow}
        elif isinstance(step, AtenStep) and step.target.startswith(PARTLY_WRITTEN):
            fresh |= {slot for slot in step.outs[1:] if slot is not None}
        else:
            fresh -= set(step.reads()) | set(step.writes())
    return {number for number, output in enumerate(plan.outputs) if output.slot in fresh}


def difference(file: Path) -> str:
    """How the call differs from the recorded one; "" where it does not."""
    call: dict[str, Any] = torch.load(file.with_suffix(".call"), weights_only=False)
    bundle, plan = load_bundle(file.read_bytes()), decode_plan(call["plan"])
    try:
        run = bundle.executor()
    except UnknownOperator as error:
        if str(error.details["target"]).startswith(("aten.", "kiln.")):
            raise
        return ""  # only the test has this operator
    args = restore(call["before"])
    torch.set_rng_state(call["random"])
    torch.set_num_threads(call["threads"])
    try:
        results = run(*args)
    except KilnError as error:
        return "" if error.code == call["error"] else f"raised {error}"
    if call["error"]:
        return f"did not raise {call['error']}"
    if INEXACT in str(plan):
        return ""
    hollow = unwritten(plan)
    for kind, found, expected in (("result", results, call["results"]), ("argument", args, call["after"])):
        if len(found) != len(expected):
            return f"{len(found)} {kind}s, recorded were {len(expected)}"
        for number, (value, other) in enumerate(zip(found, expected, strict=True)):
            if bits(value) != other and not (kind == "result" and number in hollow):
                return f"{kind} {number} differs: {bits(value)[:-1]}, recorded {other[:-1]}"
    return ""


def main(folder: Path) -> int:
    files = sorted(folder.glob("*.kiln"))
    bad = {file.name: problem for file in files if (problem := difference(file))}
    for name, problem in bad.items():
        print(f"{name}, plan {load_bundle((folder / name).read_bytes()).manifest['plan']}: {problem}")
    loaded = [name for name in sys.modules if name.startswith(COMPILER)]
    if loaded:
        print(f"the compiler was loaded: {loaded}")
    print(json.dumps({"plans": len(files), "different": len(bad)}))
    return 1 if bad or loaded else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[2])))
