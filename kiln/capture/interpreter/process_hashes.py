"""Hashes and orders of sets that are read while tracing, and that another process does not have.

list({"b", "a"})       the order depends on the hashes of texts, which each process draws anew
hash(int)              an address
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.variables.hashed_key import HashedKey
from kiln.runtime.guards import process
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import ModuleGlobalSource


def guard_hashes(s: CaptureState, values: Iterable[object]) -> None:
    """Guard that the hashes of the values are those of this process, unless they are in every process."""
    for name in sorted({name for value in values for name in varying(value)}):
        s.guard(ModuleGlobalSource(process.__name__, name), GuardKind.EQUALS, getattr(process, name))


def varying(value: object) -> Iterator[str]:
    """What a hash depends on, by its name in `process`. A `HashedKey` was computed from hashes that are guarded."""
    if isinstance(value, tuple | frozenset):
        for item in value:
            yield from varying(item)
    elif isinstance(value, str | bytes):
        yield "TEXT_HASHES"
    elif not isinstance(value, int | float | complex | HashedKey):
        yield "ADDRESSES"
