"""Compare Kiln with eager on torch's own sample database of operators, a shard of it in so many seconds.

    python -m tests.ops.sweep --device cuda --shard 3/15 --seconds 150 --out failures.jsonl

The work is done in a child (`sweep_worker.py`), which goes through the ops of the shard and tells what it does by JSON
lines. Where it dies (a crash, a fault of the GPU), the op it was at is a failure of kind "crash" and a new child goes
on behind it. The order is shuffled by a fixed seed, so that a short run is a fair sample. Each line of the file is a
failure, or of kind "break": the graph breaks of an op, which are no failure. The last line on the terminal counts them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
STARTING = 120.0
"""Seconds until a child must begin its first op."""
GRACE = 20.0
"""Seconds after an op's time limit (which the child enforces) until the child is killed."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--device", default="cpu")
    found.add_argument("--shard", default="0/1", help="which part of the ops, of how many: 0/4 to 3/4 (4/4 is 0/4)")
    found.add_argument("--seconds", type=float, default=150.0, help="for the whole run")
    found.add_argument("--out", type=Path, default=Path("failures.jsonl"))
    found.add_argument("--op-seconds", type=float, default=8.0, help="after these an op gets no further sample")
    found.add_argument("--op-limit", type=float, default=60.0, help="after these an op is a failure")
    found.add_argument("--only", default="", help="names of ops, separated by commas, instead of a shard")
    found.add_argument("--skip", type=int, default=0, help="how many ops of the shard to leave out at the beginning")
    found.add_argument("--no-gradients", action="store_true")
    found.add_argument("--dtypes", default="", help="instead of float32 and bfloat16, with commas between")
    found.add_argument("--samples", type=int, default=0, help="of each dtype, instead of 4 of float32 and 2 of others")
    found.add_argument(
        "--reference", action="store_true", help="torch's longer lists: extremes, other strides, promotion"
    )
    found.add_argument("--inplace", action="store_true", help="the variants that write to their input")
    found.add_argument("--autocast", action="store_true", help="inside of the compiled function, to bfloat16")
    found.add_argument("--dynamic", action="store_true", help="all sizes are symbols")
    return found


@dataclass
class Tally:
    """What the children told."""

    out: IO[str]
    position: int = 0
    """How many ops of the shard are over."""
    total: int = 0
    samples: int = 0
    breaking: int = 0
    current: str = ""
    failures: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)

    def take(self, message: dict[str, Any]) -> None:
        event = message.pop("event")
        if event == "start":
            self.total = message["total"]
        elif event == "op":
            self.current = message["op"]
        elif event == "end":
            self.samples += message["samples"]
            self.position, self.current = self.position + 1, ""
        elif event == "failure":
            self.write(message)

    def write(self, failure: dict[str, Any]) -> None:
        """Append a line to the file at once, so that a killed run leaves its findings."""
        print(json.dumps(failure), file=self.out, flush=True)
        if failure["kind"] == "break":
            self.breaking += 1
        else:
            self.failures[failure["kind"]] += 1
            self.failed.add(failure["op"])

    def line(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.failures.most_common()) or "none"
        return (
            f"sweep: {self.position} of {self.total} ops, {self.samples} samples, {len(self.failed)} ops failed, "
            f"{self.breaking} ops broke the graph; failures: {kinds}"
        )


def command_of(arguments: argparse.Namespace, position: int, deadline: float, channel: int) -> list[str]:
    """How a child is started."""
    words = [sys.executable, "-m", "tests.ops.sweep_worker", f"--device={arguments.device}"]
    words += [f"--shard={arguments.shard}", f"--only={arguments.only}", f"--start={position}"]
    words += [f"--op-seconds={arguments.op_seconds}", f"--op-limit={arguments.op_limit}"]
    words += [f"--deadline={deadline}", f"--channel={channel}"]
    words += [f"--dtypes={arguments.dtypes}", f"--samples={arguments.samples}"]
    words += ["--no-gradients"] * arguments.no_gradients + ["--dynamic"] * arguments.dynamic
    words += ["--reference"] * arguments.reference + ["--inplace"] * arguments.inplace
    words += ["--autocast"] * arguments.autocast
    return words


def lines_of(source: int, deadline: float, limit: float) -> Iterator[dict[str, Any]]:
    """The output lines of a child until it ends, is silent for longer than `limit`, or time runs out."""
    selector = selectors.DefaultSelector()
    selector.register(source, selectors.EVENT_READ)
    rest, silence = b"", STARTING
    while True:
        wait = min(silence, deadline - time.time())
        if wait <= 0 or not selector.select(wait):
            return
        read = os.read(source, 1 << 16)
        if not read:
            return
        *whole, rest = (rest + read).split(b"\n")
        yield from map(json.loads, whole)
        silence = limit


def run_child(arguments: argparse.Namespace, tally: Tally, deadline: float) -> bool:
    """Run one child from where the last one ended; False if nothing is left to do."""
    reading, writing = os.pipe()
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1") | {"PYTHONFAULTHANDLER": "1"}
    before, done = tally.position, False
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command_of(arguments, arguments.skip + before, deadline, writing),
            cwd=ROOT, env=environment, pass_fds=[writing], stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        try:
            for message in lines_of(reading, deadline, arguments.op_limit + GRACE):
                done = done or message["event"] == "done"
                tally.take(message)
        finally:
            os.close(reading)
            ended = child.poll() if not wait_for(child) else child.returncode
            stop(child)
        over = done or time.time() >= deadline
        if not over and (tally.current or tally.position == before):
            said.seek(0)
            ending = f"ended with {ended}" if ended is not None else "was silent too long"
            over = not tally.current  # it did not start, and would not start again
            record_crash(tally, ending, said.read().decode(errors="replace")[-2000:])
    return not over


def wait_for(child: subprocess.Popen[bytes]) -> bool:
    """Whether a child that has closed its channel is over."""
    try:
        child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return False
    return True


def stop(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and its descendants, which are one session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def record_crash(tally: Tally, ending: str, said: str) -> None:
    op = tally.current or "(start)"
    tally.write({"op": op, "kind": "crash", "detail": f"the process {ending}", "said": said})
    tally.position, tally.current = tally.position + 1, ""


def main() -> int:
    arguments = parser().parse_args()
    deadline = time.time() + arguments.seconds
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w") as out:
        tally = Tally(out)
        while run_child(arguments, tally, deadline):
            pass
    print(tally.line(), flush=True)
    return bool(tally.failures)


if __name__ == "__main__":
    sys.exit(main())
