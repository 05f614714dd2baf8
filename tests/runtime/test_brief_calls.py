"""The interpreter lock is released for a call unless it is over too soon for that to pay.

Other threads get no turn while this one computes, as the interval of switching is long: only where a call releases the
lock.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import kiln


@contextmanager
def turns_of_another_thread() -> Iterator[Callable[[], int]]:
    turns, stop = [0], threading.Event()

    def take_turns() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    other = threading.Thread(target=take_turns)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    other.start()
    try:
        yield lambda: turns[0]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()


def shift(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) + 1


def turns_during(size: int, calls: int, grad: bool = False) -> int:
    compiled = kiln.compile(shift, dynamic=False, options={"speed_check": False})
    x = torch.zeros(size, requires_grad=grad)
    compiled(x)
    with turns_of_another_thread() as turns:
        before = turns()
        for _ in range(calls):
            compiled(x)
        return turns() - before


def test_a_long_call_releases_the_lock() -> None:
    assert turns_during(1 << 24, 1) > 0
    assert turns_during(1 << 24, 1, grad=True) > 0


def test_a_brief_call_keeps_the_lock() -> None:
    # A call that releases the lock gives a turn or more each time. Some come from elsewhere: 59 were seen.
    assert turns_during(64, 200) < 100
    assert turns_during(64, 200, grad=True) < 100


def test_small_results_may_be_freed_on_any_thread() -> None:
    compiled = kiln.compile(shift, dynamic=False, options={"speed_check": False})
    sizes = [1, 16, 17, 1000, 2048, 2049]
    kept = [(size, compiled(torch.full((size,), float(size % 7)))) for size in sizes for _ in range(40)]
    for size, result in kept:
        assert result.data_ptr() % 64 == 0
        torch.testing.assert_close(result, shift(torch.full((size,), float(size % 7))))
    drop = threading.Thread(target=kept.clear)
    drop.start()
    drop.join()
    x = torch.ones(16)
    first = compiled(x)
    address = first.data_ptr()
    del first
    assert compiled(x).data_ptr() == address  # the block that was freed last
