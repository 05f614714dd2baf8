"""Listeners on events: the log of KILN_LOG, and a progress bar for long compiles."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from kiln.support.events import Event

PATIENCE_SECONDS = 2.0


def log_stages(stages: frozenset[str]) -> Callable[[Event], None]:
    """Print the events of `stages` ("all": of every stage) on standard error, one line each."""

    def listen(event: Event) -> None:
        if "all" not in stages and event.stage not in stages and event.kind not in stages:
            return
        data = " ".join(f"{name}={value}" for name, value in event.data.items())
        took = f" {event.seconds * 1e3:.1f} ms" if event.kind == "stage" else ""
        print(f"kiln [{event.stage or event.kind}] {event.kind}{took} {data}".rstrip(), file=sys.stderr)

    return listen


class ProgressBar:
    """Follows the stages of a compile; appears only on a terminal, and only after two seconds."""

    def __init__(self, title: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.title, self.clock = title, clock
        self.start = clock()
        self.bar: Any = None
        self.visible = sys.stderr.isatty()

    def __call__(self, event: Event) -> None:
        if not self.visible or event.kind != "stage" or self.clock() - self.start < PATIENCE_SECONDS:
            return
        if self.bar is None:
            self.bar = tqdm(desc=f"kiln {self.title}", bar_format="{desc} {elapsed} {postfix}", file=sys.stderr)
        self.bar.set_postfix_str(event.stage)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
