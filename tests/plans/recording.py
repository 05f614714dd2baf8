"""Writes every plan that runs in the tests with its first call; `replay.py` runs them all afterwards.

pytest --replay-plans          records, and fails where a plan does not run alike without the compiler
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kiln.plan.encode import encode_program
from kiln.plan.host_operators import NAMESPACE
from kiln.plan.plan import Plan
from kiln.plan.serialize import encode_plan
from kiln.plan.steps.compute import AtenStep
from kiln.runtime.cache.store import content_key
from kiln.runtime.kernels import Libraries
from kiln.runtime.loader import save_bundle
from kiln.support.errors import KilnError
from tests.plans.records import bits, snapshot

LARGEST = 64 << 20
"""Bytes of arguments of the largest call that is kept (BERT-base would have 440 MB)."""


def reads_a_clock(plan: Plan) -> bool:
    """Whether its results differ from call to call."""
    return any(isinstance(step, AtenStep) and step.target.startswith(f"{NAMESPACE}.") for step in plan.steps)


@dataclass
class PlanRecording:
    """An observer of `make_executor`."""

    folder: Path
    known: set[str] = field(default_factory=set)
    plans: int = 0
    too_large: int = 0
    paused: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(
        self,
        plan: Plan,
        libraries: Libraries,
        constants: Sequence[torch.Tensor],
        adapt: Collection[int],
        executor: Any,
    ) -> Any:
        if self.paused:
            return executor
        key = content_key(encode_program(plan, adapt))
        with self.lock:
            self.plans += 1
            if key in self.known or any(kernel.language != "cpp" for kernel in plan.kernels) or reads_a_clock(plan):
                return executor
            self.known.add(key)
        bundle = save_bundle(plan, libraries, dict(zip(plan.constants, constants, strict=True)), adapt=adapt)
        return RecordedExecutor(executor, plan, bundle, self, key)

    def keep(self, key: str, bundle: bytes, call: dict[str, Any]) -> None:
        (self.folder / f"{key}.kiln").write_bytes(bundle)
        torch.save(call, self.folder / f"{key}.call")

    def replay(self) -> tuple[bool, str]:
        """Run all recorded calls in a process without the compiler: whether all agreed, and its output."""
        script = Path(__file__).with_name("replay.py")
        root = str(Path(__file__).resolve().parents[2])
        done = subprocess.run([sys.executable, str(script), root, str(self.folder)], capture_output=True, text=True)
        if done.returncode:
            return False, done.stdout + done.stderr
        counts = json.loads(done.stdout.splitlines()[-1])
        never = len(self.known) - counts["plans"] - self.too_large
        said = f"{counts['plans']} plans ran without the compiler, bit for bit ({self.plans} executors made, "
        return True, said + f"{never} distinct plans never called, {self.too_large} calls too large to keep)"


class RecordedExecutor:
    """Stands for an executor; its first call is recorded."""

    def __init__(self, executor: Any, plan: Plan, bundle: bytes, recording: PlanRecording, key: str) -> None:
        self._executor, self._plan = executor, plan
        self._pending: tuple[bytes, PlanRecording, str] | None = (bundle, recording, key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def __call__(self, *args: Any) -> Any:
        pending, self._pending = self._pending, None
        if pending is None:
            return self._executor(*args)
        bundle, recording, key = pending
        if sum(arg.untyped_storage().nbytes() for arg in args if isinstance(arg, torch.Tensor)) > LARGEST:
            recording.too_large += 1
            return self._executor(*args)
        call: dict[str, Any] = {"before": snapshot(args), "random": torch.get_rng_state(), "error": ""}
        call |= {"threads": torch.get_num_threads(), "plan": encode_plan(self._plan)}
        try:
            results = self._executor(*args)
        except KilnError as error:
            call["error"] = error.code
            recording.keep(key, bundle, call)
            raise
        call["results"] = [bits(result) for result in results]
        call["after"] = [bits(arg) for arg in args]
        recording.keep(key, bundle, call)
        return results
