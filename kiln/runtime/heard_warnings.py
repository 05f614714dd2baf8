"""Warnings that are given while code runs under the compiler: heard whatever the filters say, and given by nobody.

    with hearing() as heard:
        torch.nn.functional.mse_loss(x, x[:1])
    heard     [HeardWarning("Using a target size ...", UserWarning, 1, None)]     the line that made the call gives it

The filters are left as they are: `warnings.catch_warnings` changes their version, with which Python forgets what was
shown once per location.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import final

from kiln.runtime.warning import Filter, fits
from kiln.support.records import dataclass

OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
EVERY: Sequence[Filter] = [("always", None, Warning, None, 0)]
"""Filters that let all pass, and remember none."""


@final
@dataclass(frozen=True, slots=True)
class HeardWarning:
    """A warning and its line: that of code which was called (`file`, `line`, `namespace`), else the one that `level`
    frames of the program outside of the compiler have, 1 being the innermost."""

    text: str
    category: type[Warning]
    level: int
    file: str = ""
    line: int = 0
    namespace: dict[str, object] | None = None


class Hearers(threading.local):
    """Those of this thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[hearing] = []


@final
class Replaced:
    """What `warnings` had before the first of the threads that hear began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.filters: Sequence[Filter] = []
        self.show: Callable[[warnings.WarningMessage], None] = dispatch

    def begin(self) -> None:
        names = vars(warnings)
        with self.lock:
            if not self.count:
                self.filters, self.show = names["filters"], names["_showwarnmsg"]
                names.update(filters=EVERY, _showwarnmsg=dispatch)
            self.count += 1

    def end(self) -> None:
        names = vars(warnings)
        with self.lock:
            self.count -= 1
            if not self.count and names["_showwarnmsg"] is dispatch:
                names.update(filters=self.filters, _showwarnmsg=self.show)


def dispatch(given: warnings.WarningMessage) -> None:
    """To whom hears in this thread; else as the filters say that are put away."""
    if HEARERS.stack:
        HEARERS.stack[-1].hear(given)
        return
    put_away = REPLACED.filters if warnings.filters is EVERY else ()
    text, module = str(given.message), given.filename.removesuffix(".py")  # as `warn_explicit` names a module
    found = next((entry for entry in put_away if fits(entry, text, given.category, module, given.lineno)), None)
    if found is not None and found[0] == "error":
        raise given.message if isinstance(given.message, Warning) else given.category(given.message)
    if found is None or found[0] != "ignore":
        REPLACED.show(given)


HEARERS, REPLACED = Hearers(), Replaced()


@final
class hearing:
    """What is given within is not shown."""

    __slots__ = ("caller", "heard")

    def __init__(self) -> None:
        self.heard: list[HeardWarning] = []
        self.caller = sys._getframe(1)

    def __enter__(self) -> list[HeardWarning]:
        REPLACED.begin()
        HEARERS.stack.append(self)
        return self.heard

    def __exit__(self, *error: object) -> None:
        HEARERS.stack.pop()
        REPLACED.end()

    def hear(self, given: warnings.WarningMessage) -> None:
        self.heard.append(located(given, sys._getframe(2), self.caller))


def warn_like(call: Callable[[], object]) -> None:
    """While warnings are heard: let a call on a tiny tensor give the warning of eager's kernel, as often as eager."""
    if warnings.filters is EVERY:
        call()


def located(given: warnings.WarningMessage, innermost: FrameType, caller: FrameType) -> HeardWarning:
    """A warning with its line. The frames of the compiler between `caller`, which hears, and what it called count as
    one line of the program each; those inside of what it called as none."""
    text, frames = str(given.message), [*outward(innermost)]
    end = next((at for at, frame in enumerate(frames) if frame is caller), len(frames) - 1)
    first = end
    while first > 0 and is_ours(frames[first - 1]):
        first -= 1
    place = next((at for at, frame in enumerate(frames) if is_line(frame, given)), end)
    if place < first:
        found = next((frame for frame in frames[place:first] if not is_ours(frame)), None)
        if found is not None:
            return HeardWarning(
                text, given.category, 0, found.f_code.co_filename, found.f_lineno, found.f_globals
            )  # fmt: skip
        place = first
    return HeardWarning(text, given.category, place - first + 1)


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)


def is_line(frame: FrameType, given: warnings.WarningMessage) -> bool:
    return frame.f_lineno == given.lineno and frame.f_code.co_filename == given.filename
