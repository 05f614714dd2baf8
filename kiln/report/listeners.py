"""Listeners to events: the log of KILN_LOG, and a progress bar for long compiles.

KILN_LOG=recompiles      kiln [compile] recompile function=f reason=n is 4, and was 3 (read at model.py:7, in f) ...
KILN_LOG=lowering,eager  the events of a stage, and a kind of event
KILN_LOG=cse             the time and the changes of a pass
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import final

from tqdm import tqdm

from kiln.support.errors import KilnError
from kiln.support.events import Event

PATIENCE_SECONDS = 2.0  # shorter compiles show no bar
REDRAW_SECONDS = 0.1


STAGES = frozenset((
    "backend", "backward", "capture", "compile", "encode", "guards", "joint", "kernels", "load", "loop_passes",
    "lowering", "offload", "partition", "passes", "plan", "repeated layers", "replay", "save", "schedule", "trace",
    "verify", "warm",
))  # fmt: skip
KINDS = frozenset((
    "captured", "compile", "compiled_cubins", "compiled_kernels", "differs", "eager", "fault", "forget_breaks", "fused",
    "graph_break", "graph_dropped", "graph_recorded", "graph_refused", "guards", "kernel", "kernels",
    "launches", "library_calls", "loaded", "not_fused", "not_saved", "note", "pass", "realise", "recompile",
    "region", "saved", "skipped_frame", "stage", "traffic", "variant_missing", "variant_unreadable", "verified",
))  # fmt: skip
SHORTHANDS = {
    "recompiles": ("recompile",),
    "breaks": ("graph_break", "skipped_frame", "eager"),
    "cache": ("warm", "save"),
}


class UnknownLog(KilnError):
    code = "KILN5007"
    what = "KILN_LOG names `{name}`, which is no stage, pass or kind of event"
    why = "the names are all, {known}"
    try_ = ("KILN_LOG=recompiles,breaks,cache",)


def log_names(text: str, passes: frozenset[str]) -> frozenset[str]:
    """The stages, `passes` and kinds of events that KILN_LOG asks for. Raises UnknownLog."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = STAGES | KINDS | SHORTHANDS.keys() | passes
    for name in names:
        if name != "all" and name not in known:
            raise UnknownLog(name=name, known=", ".join(sorted(known)))
    return frozenset(part for name in names for part in SHORTHANDS.get(name, (name,)))


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
