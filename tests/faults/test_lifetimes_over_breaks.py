"""Objects lived too long behind a graph break, until the whole function returned; eager frees what its frame drops."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager


class Thing:
    def __init__(self) -> None:
        self.size = 3


class Noisy:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("freed")


@kiln.disable
def opaque(*values: object) -> int:
    return len(values)


def deleted() -> object:
    thing = Thing()
    ref = weakref.ref(thing)
    opaque()
    alive = ref() is not None
    del thing
    opaque()
    return alive, ref() is None


def deleted_without_a_break() -> object:
    thing = Thing()
    ref = weakref.ref(thing)
    del thing
    return ref() is None


def overwritten() -> object:
    thing = Thing()
    ref = weakref.ref(thing)
    opaque()
    thing = opaque(1)  # type: ignore[assignment]
    opaque()
    return ref() is None, thing


def no_longer_read() -> object:
    thing = Thing()
    ref = weakref.ref(thing)
    opaque()
    opaque()
    return ref() is not None


def held_by_a_list() -> object:
    things = [Thing()]
    ref = weakref.ref(things[0])
    opaque()
    alive = ref() is not None
    things.clear()
    opaque()
    return alive, ref() is None


def in_a_callee() -> object:
    def make() -> weakref.ref[Thing]:
        thing = Thing()
        ref = weakref.ref(thing)
        opaque()
        assert ref() is thing
        return ref

    ref = make()
    opaque()
    return ref() is None


def finalizer() -> object:
    log: list[str] = []
    noisy = Noisy(log)
    opaque(noisy)
    log.append("before")
    del noisy
    opaque()
    log.append("after")
    return log


def finalizer_at_the_end() -> object:
    log: list[str] = []

    def inner() -> None:
        noisy = Noisy(log)
        opaque(noisy)
        log.append("inner")

    inner()
    opaque()
    log.append("after")
    return log


def cycle() -> object:
    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    ref = weakref.ref(thing)
    opaque()
    del thing
    gc.collect()
    return ref() is None


def in_a_loop() -> object:
    found = []
    for _ in range(3):
        thing = Thing()
        found.append(weakref.ref(thing))
        opaque()
    del thing
    opaque()
    return [ref() is None for ref in found]


def handled() -> object:
    thing = Thing()
    ref = weakref.ref(thing)
    try:
        opaque()
        raise ValueError
    except ValueError:
        del thing
        opaque()
        return ref() is None


def tensor() -> object:
    x = torch.ones(4) * 2
    ref = weakref.ref(x)
    opaque()
    total = x.sum()
    del x
    opaque()
    return ref() is None, total


def finalizer_behind_a_break() -> object:
    log: list[str] = []
    noisy = Noisy(log)
    opaque(noisy)
    log.append("before")
    del noisy
    log.append("after")
    noisy = Noisy(log)
    opaque(noisy)
    noisy = None  # type: ignore[assignment]
    return [*log, len(log)]


def finalizer_of_what_is_held_elsewhere() -> object:
    log: list[str] = []
    noisy = other = Noisy(log)
    opaque(noisy)
    del noisy
    log.append("after")
    opaque(other)
    return list(log)


def reference_made_behind_a_break() -> object:
    refs: list[weakref.ref[Thing]] = []
    thing = Thing()
    opaque(refs)
    refs.append(weakref.ref(thing))
    alive = refs[-1]() is not None
    del thing
    return alive, refs[-1]() is None


def reference_made_behind_a_break_in_a_callee() -> object:
    def inner(thing: Thing) -> object:
        opaque()
        ref = weakref.ref(thing)
        del thing
        return ref() is None

    return inner(Thing())


def reference_to_a_tensor_made_behind_a_break() -> object:
    y = torch.ones(4) * 2
    opaque()
    ref = weakref.ref(y)
    z = y + 1
    del y
    return ref() is None, z.tolist()


PROGRAMS = [
    value for value in list(globals().values()) if getattr(value, "__annotations__", None) == {"return": "object"}
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_objects_live_as_long_as_in_eager(program: Callable[[], object]) -> None:
    gc.disable()
    try:
        compiled = kiln.compile(program, backend="eager")
        expected = program()
        assert [compiled() for _ in range(3)] == [expected] * 3
    finally:
        gc.enable()


def test_the_memory_of_a_tensor_is_freed_behind_a_break() -> None:
    @kiln.disable
    def alive(ref: weakref.ref[Tensor]) -> bool:
        return ref() is not None

    def program(x: Tensor) -> tuple[bool, bool]:
        y = x + 1
        ref = weakref.ref(y)
        before = alive(ref)
        z = y * 2
        del y
        return before, alive(ref) and bool(z.sum() > 0)

    assert kiln.compile(program)(torch.ones(8)) == program(torch.ones(8)) == (True, False)


def test_a_resumed_part_that_runs_eager_frees_what_it_drops() -> None:
    def program(x: Tensor) -> object:
        watched = Thing()
        called: list[int] = []
        finalizer = weakref.finalize(watched, called.append, 1)
        before = finalizer.alive
        del watched
        return x + len(called), before, finalizer.alive

    compiled = kiln.compile(program, options={"cache": False})
    for _ in range(2):
        assert_like_eager(compiled, program, torch.ones(2))
