"""Tasks in forked processes, some at a time: a crash, a hang or a changed class ends with its process.

    for told in in_children(tasks, jobs=2, silence=60.0): ...       what the tasks tell, as it comes

The parent has imported all that the tasks need, so a child begins at once. The next task is taken when one has ended,
and what that one told has been handed out.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import final

from kiln.support.records import dataclass

Tell = Callable[[object], None]
"""Hands a value to the parent, as JSON."""
Work = Callable[[Tell], None]
AT_EXIT = 0.2
"""Seconds in which the process ends once it has closed its channel."""


@final
@dataclass(slots=True)
class Child:
    """A process that runs one task; `rest` is the beginning of a line, `heard` when it last told something."""

    name: str
    process: int
    channel: int
    heard: float
    rest: bytes = b""


@final
@dataclass(frozen=True, slots=True)
class Told:
    """A line that the task `name` told, or, with `ended`, how its process ended: "" is well."""

    name: str
    line: str = ""
    ended: str | None = None


def in_children(
    tasks: Iterable[tuple[str, Work]], jobs: int, silence: float, processor_seconds: int = 0
) -> Iterator[Told]:
    """Run the tasks, `jobs` at a time; one ends that is silent for longer, or takes more processor time (0: any)."""
    waiting, running = iter(tasks), list[Child]()
    exhausted = False
    while running or not exhausted:
        while len(running) < jobs and not exhausted:
            task = next(waiting, None)
            if task is None:
                exhausted = True
            else:
                running.append(started(*task, processor_seconds))
        yield from progress(running, silence)


def progress(running: list[Child], silence: float) -> Iterator[Told]:
    """What the children tell in a second; those that have ended are taken out."""
    ready, _, _ = select.select([child.channel for child in running], [], [], 1.0)
    for child in list(running):
        is_ready = child.channel in ready
        read = os.read(child.channel, 1 << 16) if is_ready else b""
        if read:
            child.heard = time.monotonic()
        *lines, child.rest = (child.rest + read).split(b"\n")
        yield from [Told(child.name, line.decode()) for line in lines]
        late = time.monotonic() > child.heard + silence
        if late or (is_ready and not read):
            running.remove(child)
            yield Told(child.name, ended=end(child, late))


def started(name: str, work: Work, processor_seconds: int) -> Child:
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return Child(name, process, reading, time.monotonic())
    status = 1
    try:
        os.setsid()
        if processor_seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds + 1))
        os.close(reading)
        work(partial(write_line, writing))
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def write_line(channel: int, value: object) -> None:
    os.write(channel, (json.dumps(value) + "\n").encode())


def end(child: Child, late: bool) -> str:
    """How the process ended; what it has started ends with it."""
    os.close(child.channel)
    ended, status = os.waitpid(child.process, os.WNOHANG)
    if not ended and not late:
        time.sleep(AT_EXIT)
        ended, status = os.waitpid(child.process, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child.process, signal.SIGKILL)
    if not ended:
        os.waitpid(child.process, 0)
    if not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return "timeout"
    return f"crash, status {status}" if status else ""
