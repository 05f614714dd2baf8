"""BenchWorker processes that wait for their turn.

workers = [BenchWorker(task, folder) for task in tasks]        all start, compile and say so
for worker in workers: worker.next()                      wait for what each found first
for worker in workers: worker.next()                      one at a time: the step that uses the clock
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, final


@final
class BenchWorker:
    """A process of `kiln.cli.bench.worker`; its caches lie in `caches`. After a failure each step is that failure."""

    def __init__(self, task: dict[str, Any], caches: Path) -> None:
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "KILN_OPTIONS": f"cache_dir={caches / 'kiln'}",
        }
        command = [sys.executable, "-m", "kiln.cli.bench.worker", json.dumps(task)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._steps = 0
        self._told = 0

    def go_on(self) -> None:
        """Let the next step begin; `next` waits for its end."""
        if self._told < self._steps and self._process.poll() is None:
            assert self._process.stdin is not None
            self._told += 1
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """What the next step finds: its JSON object, or {"failure": last line, "stderr": all}."""
        self.go_on()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._steps += 1
                return dict(json.loads(line))
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read()
        last = text.strip().splitlines()[-1:] or [f"exit status {status}"]
        return {"failure": last[0], "stderr": text}

    def close(self) -> None:
        """End the process, which waits after its last step; once."""
        if self._errors.closed:
            return
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def cores_of(place: int, count: int) -> list[int]:
    """`count` cores for the worker at `place`, in turn over those this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return [cores[(place * count + one) % len(cores)] for one in range(count)]
