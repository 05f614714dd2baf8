"""Tasks in forked processes, some at a time: a crash, a hang or a changed class ends with its process.

    for line in in_children(tasks, jobs=2, seconds=60): ...       what the tasks told, as it comes

The parent has imported all that the tasks need, so a child begins at once.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import final

from kiln.support.records import dataclass

WAITING = 10
"""A child that does not end is killed after so many times its processor time."""


@final
@dataclass(slots=True)
class Child:
    """A process that runs one task; `rest` is the beginning of a line."""

    name: str
    process: int
    channel: int
    deadline: float
    rest: bytes = b""


@final
@dataclass(frozen=True, slots=True)
class Told:
    """A line that the task `name` told, or, with `ended`, how its process ended: "" is well."""

    name: str
    line: str = ""
    ended: str | None = None


def in_children(
    tasks: Iterable[tuple[str, Callable[[], Iterable[object]]]], jobs: int, seconds: float
) -> Iterator[Told]:
    """Run the tasks, `jobs` at a time, each for at most `seconds` of processor time; tell what they yield as JSON."""
    waiting, running = iter(tasks), list[Child]()
    exhausted = False
    while running or not exhausted:
        while len(running) < jobs and not exhausted:
            task = next(waiting, None)
            if task is None:
                exhausted = True
            else:
                running.append(started(*task, seconds))
        yield from progress(running)


def progress(running: list[Child]) -> Iterator[Told]:
    """What the children tell in a second; those that have ended are taken out."""
    ready, _, _ = select.select([child.channel for child in running], [], [], 1.0)
    for child in list(running):
        late = time.monotonic() > child.deadline
        read = b"" if late or child.channel not in ready else os.read(child.channel, 1 << 16)
        *lines, child.rest = (child.rest + read).split(b"\n")
        yield from [Told(child.name, line.decode()) for line in lines]
        if late or (child.channel in ready and not read):
            running.remove(child)
            yield Told(child.name, ended=end(child, late))


def started(name: str, task: Callable[[], Iterable[object]], seconds: float) -> Child:
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return Child(name, process, reading, time.monotonic() + WAITING * seconds)
    status = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
        os.close(reading)
        for found in task():
            os.write(writing, (json.dumps(found) + "\n").encode())
        status = 0
    finally:
        os._exit(status)


def end(child: Child, late: bool) -> str:
    os.close(child.channel)
    if late:
        os.killpg(child.process, signal.SIGKILL)
    _, status = os.waitpid(child.process, 0)
    if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return "timeout"
    return f"crash, status {status}" if status else ""
