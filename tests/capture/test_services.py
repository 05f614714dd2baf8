"""Calls of functions that do not compute, such as Python's library: where they break the graph they run as a whole."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.support.location import Location


def computed(x: Tensor) -> Tensor:
    return x.relu().sin() + 1


def in_a_pool(x: Tensor) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(computed, [x, x + 1]))


def in_a_thread(x: Tensor) -> Any:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(computed(x)))
    thread.start()
    thread.join()
    return results


def in_a_loop(x: Tensor) -> Any:
    async def later(x: Tensor) -> Tensor:
        await asyncio.sleep(0)
        return computed(x)

    async def both() -> Any:
        return await asyncio.gather(later(x), later(x + 1))

    return asyncio.run(both())


def configured(x: Tensor) -> Any:
    return computed(x) * json.loads('{"scale": [2, {"a": 1.5}]}')["scale"][1]["a"]


def profiled(x: Tensor) -> Any:
    with torch.autograd.profiler.profile():
        return computed(x)


def saved(x: Tensor) -> Any:
    file = io.BytesIO()
    torch.save(computed(x), file)
    file.seek(0)
    return torch.load(file) + computed(x)


@pytest.mark.parametrize(
    ("program", "most"),
    [(in_a_pool, 5), (in_a_thread, 3), (in_a_loop, 1), (configured, 1), (profiled, 3), (saved, 4)],
)
def test_a_break_in_a_service_is_a_break_at_its_call(program: Callable[[Tensor], Any], most: int) -> None:
    compiled, x = kiln.compile(program, options={"cache": False}), torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
    report = compiled.report()
    assert len(report.breaks) <= most and report.eager == 0, report
    assert all("test_services.py" in found.where for found in report.breaks), report


@contextlib.contextmanager
def timed() -> Iterator[None]:
    time.sleep(0)
    yield
    time.sleep(0)


def test_what_a_service_calls_back_is_resumed_in_place() -> None:
    def program(x: Tensor) -> Tensor:
        with timed():
            x = computed(x)
        return x * 2

    compiled, x = kiln.compile(program), torch.randn(3)
    torch.testing.assert_close(compiled(x), program(x))
    assert compiled.report().eager == 0
    assert compiled.report().regions == 2


def test_what_is_a_service() -> None:
    assert Location(os.__file__, 1).in_service and Location(json.__file__, 1).in_service
    assert Location(str(torch.serialization.__file__), 1).in_service
    assert not Location(str(torch.nn.__file__), 1).in_service and not Location(__file__, 1).in_service


def test_an_exception_is_logged_while_it_is_handled() -> None:
    log, stream = logging.getLogger("kiln.tests.services"), io.StringIO()
    handler = logging.StreamHandler(stream)

    def program(x: Tensor) -> Tensor:
        try:
            raise KeyError("to be logged")
        except KeyError:
            log.exception("failed")
        return x + 1

    log.addHandler(handler)
    try:
        kiln.compile(program)(torch.ones(2))
    finally:
        log.removeHandler(handler)
    assert "in program" in stream.getvalue() and "KeyError: 'to be logged'" in stream.getvalue()
