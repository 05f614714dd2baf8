"""A benchmark that a limit of time ends shows what it has measured."""

from __future__ import annotations

import os
import signal

import pytest

from kiln_bench.main import end_on_sigterm


def test_a_limit_of_time_is_an_interrupt_that_is_remembered() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        ended = end_on_sigterm()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)
