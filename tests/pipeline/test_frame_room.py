"""Frames above `with_frame_room` stay in one chunk of CPython's frames, however deep they are."""

import resource
import sys

import pytest

from kiln.support.frame_room import with_frame_room

CALLS = 2_000


def leaf() -> None:
    pass


def calls_at(depth: int) -> int:
    """Page faults of calls that begin `depth` frames above here."""
    if depth:
        return calls_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def in_python_frames(depth: int) -> int:
    return calls_at(depth)


def test_no_depth_maps_memory_in_each_call() -> None:
    in_room = with_frame_room(in_python_frames)
    assert max(in_room(depth) for depth in range(0, 400, 1)) < CALLS // 2
    assert in_room.__name__ == "in_python_frames"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="CPython keeps a chunk")
def test_without_room_a_depth_does() -> None:
    assert max(in_python_frames(depth) for depth in range(0, 400, 1)) > CALLS // 2
