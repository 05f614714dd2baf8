"""Worker processes that run their steps in turn.

workers = [BenchWorker(task, folder) for task in tasks]        all start and compile
for worker in workers: worker.next()                      wait for the first finding of each
for worker in workers: worker.next()                      one at a time: the step that is timed
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import final

from kiln_bench.task import Finding, Task

ERROR_LINE = re.compile(r"[\w.]+: |\w*(Error|Exception|Interrupt)$")
"""The line of a traceback that names the error; the text of ours goes on below it."""


@final
class BenchWorker:
    """A process of `kiln_bench.worker` with its own caches. After a failure every step is that failure."""

    def __init__(self, task: Task, caches: Path) -> None:
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "KILN_OPTIONS": f"cache_dir={caches / 'kiln'}",
        }
        command = [sys.executable, "-m", "kiln_bench.worker", json.dumps(task)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._steps = 0
        self._permitted = 0

    def go_on(self) -> None:
        """Let the next step begin; `next` waits for it."""
        if self._permitted < self._steps and self._process.poll() is None:
            assert self._process.stdin is not None
            self._permitted += 1
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def next(self) -> Finding:
        """The finding of the next step, or {"failure": the error, "stderr": all}."""
        self.go_on()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._steps += 1
                finding: Finding = json.loads(line)
                return finding
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read()
        errors = [line for line in text.splitlines() if ERROR_LINE.match(line)] or text.strip().splitlines()
        return {"failure": (errors or [f"exit status {status}"])[-1], "stderr": text}

    def close(self) -> None:
        """End the process, which waits after its last step."""
        if self._errors.closed:
            return
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def cores_of(worker: int, count: int) -> list[int]:
    """`count` cores for a worker, in turn over those that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return [cores[(worker * count + core) % len(cores)] for core in range(count)]
