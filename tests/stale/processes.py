"""A search for stale code between processes: each case is a fresh process that finds what others left in the cache.

    python -m tests.sweeps processes --cases 1000 --out processes.jsonl

A case forks, changes the text of a program or up to two of the things that it reaches, compiles it with the cache that
all cases of a run share, and compares with eager.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import torch

import kiln
from tests.stale.mutations import changes
from tests.stale.mutator import IMPOSSIBLE, TOTAL, compare, made
from tests.stale.programs import PROGRAMS
from tests.sweeps.runner import Finding, Note

CHANGES = 2
NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*")
TEXTS: tuple[tuple[str, str], ...] = ((" + ", " - "), (" * ", " + "), ("True", "False"), ("F.relu", "F.gelu"))


class ProcessSweep:
    """Mutations between processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self.kept = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = folder or Path(self.kept.name if self.kept is not None else "")

    def total(self) -> int:
        return TOTAL

    def run(self, number: int, note: Note) -> list[Finding]:
        name = list(PROGRAMS)[number % len(PROGRAMS)]
        note(name, "")
        found = in_a_fork(lambda: self.changed(name, random.Random(number), unchanged=number < len(PROGRAMS)))
        if not found:
            return []
        return [Finding(f"{name}: {number}", "fault" if "KILN9" in found else "stale", found)]

    def changed(self, name: str, rng: random.Random, *, unchanged: bool) -> str:
        """How compiled code of the changed program differs from eager, or ''."""
        done = [] if unchanged or rng.random() < 0.5 else [change_text(name, rng)]
        module = made(name)
        if not unchanged and not done:
            done = change_objects(module, rng)
        options: dict[str, object] = {"cache": True, "cache_dir": str(self.folder)}
        compiled = kiln.compile(module.program, options=options)
        found = compare(module.program, compiled, torch.linspace(-2.0, 2.0, 5))
        return f"after {'; '.join(done) or 'nothing'}: {found}" if found else ""


def change_text(name: str, rng: random.Random) -> str:
    """Edit one number or operator of the program, as its author would between two runs."""
    text = PROGRAMS[name]
    edits = [(at.start(), at.group(), str(int(float(at.group())) + 1)) for at in NUMBER.finditer(text)]
    edits += [(at.start(), old, new) for old, new in TEXTS for at in re.finditer(re.escape(old), text)]
    at, old, new = rng.choice(edits)
    PROGRAMS[name] = text[:at] + new + text[at + len(old) :]
    return f"{old.strip()!r} at {at} becomes {new.strip()!r}"


def change_objects(module: types.ModuleType, rng: random.Random) -> list[str]:
    """Change what the module reaches, before anything is compiled."""
    done = []
    choices = [change for change in changes(module) if not change.library]
    for change in rng.sample(choices, min(CHANGES, len(choices))):
        with contextlib.suppress(*IMPOSSIBLE):
            change.apply()
            done.append(change.text)
    return done


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` gives in a process of its own; a program that its change breaks where it is made gives ''."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = ""
        with contextlib.suppress(*IMPOSSIBLE, IndexError, SyntaxError):
            answer = work()
        os.write(write, answer.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return answer or (f"the process ended with {status}" if status else "")
