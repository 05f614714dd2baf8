"""Logging and cached functions: messages after the region, in order; cached results reused."""

from __future__ import annotations

import functools
import logging

import torch

LOGGER = logging.getLogger("kiln.test")


def test_messages_are_logged_in_order_at_each_call(lab, caplog):
    def f(x):
        LOGGER.warning("first %s", x.shape[0])
        LOGGER.info("second", extra={})
        return x + 1

    def g(x):
        LOGGER.warning("first %s", x.shape[0])
        y = x * 2
        LOGGER.error("last %d%%", 5)
        return y

    with caplog.at_level(logging.INFO):
        compiled = lab.compile(g)
        for _ in range(2):
            compiled(torch.ones(3))
        assert [record.getMessage() for record in caplog.records] == ["first 3", "last 5%"] * 2
        lab.compile(f)(torch.ones(3))
    assert lab.breaks() == []


class Once(logging.Logger):
    @functools.lru_cache(None)  # noqa: B019
    def once(self, message):
        self.warning(message)


ONCE = Once("kiln.once")


def test_a_message_that_is_logged_once(same, lab, caplog):
    ONCE.parent = logging.getLogger()

    def f(x):
        ONCE.once("only now")
        return x + 1

    x = torch.ones(3)
    compiled = lab.compile(f)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            compiled(x)
    assert [record.getMessage() for record in caplog.records] == ["only now"]
    assert lab.breaks() == []


CALLS = []


@functools.lru_cache
def table(size):
    return [i * 2 for i in range(size)]


@functools.lru_cache
def scaled(x, factor):
    return x * factor


@functools.lru_cache
def doubled(size):
    CALLS.append(size)
    return size * 2


def test_a_cached_function_of_constants_is_called_once(same):
    CALLS.clear()
    same(lambda x: x * doubled(4) + doubled(4), torch.ones(3))
    assert CALLS == [4]


def test_what_could_be_changed_is_not_taken_from_the_cache(lab):
    compiled = lab.compile(lambda x: x * sum(table(4)))
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 12.0))
    assert lab.breaks() == []


def test_a_cached_function_of_tensors_is_inlined_if_the_frame_made_them(lab):
    compiled = lab.compile(lambda x: scaled(x + 1, 3.0) + 1)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x), (x + 1) * 3 + 1)
    assert lab.breaks() == [] and scaled.cache_info().currsize == 0
