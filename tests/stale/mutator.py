"""A search for stale code: programs are changed in one place after another between calls, and compared with eager.

    python -m tests.sweeps stale --cases 4000 --shard 0/4 --out stale.jsonl

A case is a program and up to six random changes of what it reaches, each undone or kept.
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

import kiln
from tests.stale.mutations import Change, Undo, changes
from tests.stale.programs import PROGRAMS
from tests.sweeps.canonical import canonical, difference
from tests.sweeps.runner import Finding, Note
from tests.sweeps.samples import seed_torch

CHANGES = 6
KEPT = 0.3
"""The share of changes that the next ones come on top of."""
TOTAL = 100_000_000
IMPOSSIBLE = (TypeError, AttributeError, ValueError, RuntimeError, KeyError)
"""What the program's classes raise where a change cannot be made."""


class StaleSweep:
    """Mutations within a process."""

    def total(self) -> int:
        return TOTAL

    def run(self, number: int, note: Note) -> list[Finding]:
        rng = random.Random(number)
        name = list(PROGRAMS)[number % len(PROGRAMS)]
        module = made(name)
        note(name, "")
        compiled = kiln.compile(module.program, backend="eager", options={"cache": False, "variants": 64})
        x = torch.linspace(-2.0, 2.0, 5)
        done: list[str] = []
        found = compare(module.program, compiled, x)
        for change in [] if found else rng.sample(choices := changes(module), min(CHANGES, len(choices))):
            done.append(change.text)
            note(name, "; ".join(done))
            found = try_change(change, rng, done, lambda: compare(module.program, compiled, x))
            if found:
                break
        detail = "; ".join(done)
        kind = "fault" if found and "KILN9" in found else "stale"
        return (
            [Finding(f"{name}: {done[-1] if done else 'nothing'}", kind, f"after {detail}: {found}")] if found else []
        )


def try_change(change: Change, rng: random.Random, done: list[str], compared: Callable[[], str | None]) -> str | None:
    try:
        undo: Undo = change.apply()
    except IMPOSSIBLE:
        done.pop()
        return None
    found = compared()
    if change.library or (not found and rng.random() > KEPT):
        with contextlib.suppress(*IMPOSSIBLE):
            undo()
            done[-1] += " (undone)"
        found = found or compared()
    return found


def made(name: str) -> types.ModuleType:
    module = types.ModuleType(f"stale_{name.replace(' ', '_')}")
    module.__dict__["__name__"] = module.__name__
    sys.modules[module.__name__] = module
    exec(compile(PROGRAMS[name], f"<{name}>", "exec"), vars(module))
    return module


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    seed_torch(0)
    try:
        return canonical(function(x))
    except Exception as error:
        return ["raises", type(error).__name__]


def compare(eager: Callable[..., Any], compiled: Callable[..., Any], x: torch.Tensor) -> str | None:
    """How the compiled program differs, or which fault of the compiler it reports."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        results = outcome(compiled, x), outcome(eager, x)
    faults = [str(item.message) for item in noted if "KILN9" in str(item.message)]
    return faults[0][:300] if faults else difference(results[1], results[0])
