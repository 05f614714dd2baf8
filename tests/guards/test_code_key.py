"""The digest of a function's code reads each resume function once, however many paths lead to it."""

from __future__ import annotations

import math
from types import CodeType, FunctionType
from weakref import WeakKeyDictionary

import pytest
import torch

from kiln.native._frames import Dispatcher
from kiln.runtime.guards import reference
from kiln.runtime.guards.reference import code_key


def entry() -> object:
    return "next", "next"


def chain(depth: int) -> list[Dispatcher]:
    """Resume functions, each of which names the next one twice."""
    found: list[Dispatcher] = []
    following: object = "the last"
    for number in range(depth):
        code = entry.__code__.replace(co_consts=(None, following, following, number))
        following = Dispatcher(FunctionType(code, globals()), lambda dispatcher, values: None)
        found.append(following)
    return found


def count_read(depth: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many code objects the keys of all functions of a chain read together."""
    read, content = 0, reference._content

    def counted(value: object, digests: reference.CodeDigests) -> tuple[object, ...]:
        nonlocal read
        read += isinstance(value, CodeType)
        return content(value, digests)

    with monkeypatch.context() as patch:
        patch.setattr(reference, "_content", counted)
        digests: reference.CodeDigests = WeakKeyDictionary()
        for dispatcher in chain(depth):
            code_key(dispatcher.function.__code__, digests)
    return read


def test_the_cost_is_linear_in_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = count_read(10, monkeypatch), count_read(40, monkeypatch)
    assert small <= 20 and large <= 80


def test_the_key_tells_the_code_behind_a_dispatcher() -> None:
    last, before = chain(2)
    digests: reference.CodeDigests = WeakKeyDictionary()
    key = code_key(before.function.__code__, digests)
    assert key == code_key(chain(2)[1].function.__code__)
    last.function.__code__ = last.function.__code__.replace(co_consts=(None, "another", "another", 0))
    assert code_key(before.function.__code__, digests) != key


def test_constants_of_code_are_known_by_their_path() -> None:
    constants = (math.sin, math.cos, torch.sin, torch.cos)
    keys = {code_key(entry.__code__.replace(co_consts=(constant,))) for constant in constants}
    assert len(keys) == 4
