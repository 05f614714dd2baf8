"""Listeners to events: the log of KILN_LOG, and a progress bar for long compiles."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import final

from tqdm import tqdm

from kiln.support.events import Event

PATIENCE_SECONDS = 2.0
REDRAW_SECONDS = 0.1


def log_stages(stages: frozenset[str]) -> Callable[[Event], None]:
    """Print the events of `stages` ("all": of every stage) on standard error, one line each."""

    def listen(event: Event) -> None:
        if event.kind == "begin" or stages.isdisjoint(("all", event.stage, event.kind)):
            return
        data = " ".join(f"{name}={value}" for name, value in event.data.items())
        took = f" {event.seconds * 1e3:.1f} ms" if event.kind == "stage" else ""
        print(f"kiln [{event.stage or event.kind}] {event.kind}{took} {data}".rstrip(), file=sys.stderr)

    return listen


@final
class ProgressBar:
    """Shows the stage of a compile, on a terminal only and after two seconds.

    A separate thread draws it, because there are no events while g++ runs.
    """

    def __init__(self, title: str, patience: float = PATIENCE_SECONDS) -> None:
        self.title, self.patience = title, patience
        self.start = time.time()
        self.stage = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, name="kiln progress", daemon=True)
            self._thread.start()

    def __call__(self, event: Event) -> None:
        self.stage = event.stage

    def close(self) -> None:
        """Remove it from the terminal."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        if self._done.wait(self.patience):
            return
        with tqdm(
            desc=f"kiln {self.title}", bar_format="{desc} {elapsed}{postfix}", file=sys.stderr, leave=False
        ) as bar:
            bar.start_t = self.start
            while not self._done.wait(REDRAW_SECONDS):
                bar.set_postfix_str(self.stage)
