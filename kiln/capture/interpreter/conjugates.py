"""Conjugates that the region computes at once, where eager has lazy views: what of that a program would see.

x[::2].conj().stride()      (2,) in eager, whose conjugate is a view of `x`; the region's has no gaps
"""

from __future__ import annotations

from kiln.capture.interpreter.core import CaptureState
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.mode import Conjugate

LAYOUT = ("stride", "storage_offset", "is_contiguous")
"""Methods whose answers tell the layout."""


def is_conjugate(s: CaptureState, fake: FakeTensor, of_other_layout: bool = False) -> bool:
    found = [made for made in s.recorder.conjugates if made.made is fake.storage_view.storage]
    return any(not (of_other_layout and made.same_layout) for made in found)


def is_seen_as_view(made: Conjugate, outputs: list[FakeTensor]) -> str:
    """Why it matters that eager's conjugate is a view, which is computed when it is read."""
    if made.is_changed():
        return "its result is a lazy view of its argument, and one of them is changed"
    leaves = any(fake.storage_view.storage is made.made for fake in outputs if not fake.is_outer)
    return "its result is a lazy view of its argument, and leaves the region" if leaves else ""
