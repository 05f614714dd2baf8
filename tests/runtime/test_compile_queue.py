"""The queue of kernels: order, equal requests, cancelled ones, failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kiln.build.triton_queue import CompileQueue


def test_calls_are_made_in_order_by_few_threads() -> None:
    queue, made, most = CompileQueue(), [], []

    def call(number: int) -> int:
        most.append(queue.threads)
        made.append(number)
        return number * number

    futures = [queue.submit(str(number), lambda number=number: call(number), 1) for number in range(20)]  # type: ignore[misc]
    assert [future.result(10) for future in futures] == [number * number for number in range(20)]
    assert made == list(range(20)) and set(most) == {1}


def test_an_equal_call_is_made_once() -> None:
    queue, gate, made = CompileQueue(), threading.Event(), []

    def call() -> int:
        gate.wait(10)
        made.append(1)
        return 7

    first, second = queue.submit("same", call, 4), queue.submit("same", call, 4)
    assert first is second
    gate.set()
    assert first.result(10) == 7 and made == [1]
    assert queue.submit("same", lambda: 8, 4).result(10) == 8  # a finished request runs again


def test_what_nobody_wants_is_not_made() -> None:
    queue, gate, made = CompileQueue(), threading.Event(), []
    blocking = queue.submit("blocking", lambda: gate.wait(10), 1)
    shared = [queue.submit("shared", lambda: made.append("shared"), 1) for _ in range(2)]
    alone = queue.submit("alone", lambda: made.append("alone"), 1)
    queue.drop(shared[0])
    queue.drop(alone)
    gate.set()
    assert blocking.result(10) and shared[1].result(10) is None
    queue.drop(blocking)
    assert alone.cancelled() and made == ["shared"]


def test_what_fails_is_told_to_who_asks() -> None:
    queue = CompileQueue()
    with pytest.raises(ZeroDivisionError):
        queue.submit("bad", lambda: 1 // 0, 1).result(10)
    assert queue.submit("good", lambda: 1, 1).result(10) == 1


LEAVES = """
import time
from kiln.build.triton_queue import shared_queue
for number in range(3):
    shared_queue().submit(str(number), lambda: time.sleep(30), 1)
"""


def test_a_program_that_ends_does_not_wait() -> None:
    subprocess.run([sys.executable, "-c", LEAVES], cwd=Path(__file__).parents[2], timeout=20, check=True)
