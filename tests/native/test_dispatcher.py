"""Dispatcher objects: binding of arguments, entries, misses, lifetimes."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from typing import Any

import pytest
import torch

from kiln.native import _frames
from kiln.runtime.guards.guard import Guard, GuardKind, tensor_expectation
from kiln.runtime.guards.source import LocalSource
from kiln.runtime.guards.tree import build_tree


def no_compile(dispatcher: Any, arguments: dict[str, Any]) -> None:
    return None


def always(callable: Any) -> _frames.Entry:
    return _frames.Entry(None, callable)


def three(a, b=2, /, c=3):
    return ("original", a, b, c)


def everything(a, b=2, *rest, c, d=4, **more):
    return ("original", a, b, rest, c, d, more)


def slots(*args: Any) -> tuple[Any, ...]:
    return args


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1, 2, 3), {}, (1, 2, 3)),
        ((1,), {}, (1, 2, 3)),
        ((1,), {"c": 9}, (1, 2, 9)),
        ((1, 5), {"c": 9}, (1, 5, 9)),
    ],
)
def test_arguments_arrive_as_slots(args, kwargs, expected) -> None:
    dispatcher = _frames.Dispatcher(three, no_compile)
    dispatcher.set_entries([always(slots)])
    assert dispatcher(*args, **kwargs) == expected


def test_keyword_only_and_variable_arguments_come_in_the_order_of_co_varnames() -> None:
    dispatcher = _frames.Dispatcher(everything, no_compile)
    dispatcher.set_entries([always(slots)])
    assert dispatcher(1, c=3) == (1, 2, 3, 4, (), {})
    assert dispatcher(1, 5, 6, 7, c=3, d=8, z=9) == (1, 5, 3, 8, (6, 7), {"z": 9})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3, 4), {}), ((1,), {"a": 2}), ((1,), {"b": 2}), ((1,), {"nope": 2}), ((1, 2, 3), {"c": 4})],
)
def test_a_call_that_does_not_fit_raises_what_the_function_raises(args, kwargs) -> None:
    dispatcher = _frames.Dispatcher(three, no_compile)
    dispatcher.set_entries([always(slots)])
    with pytest.raises(TypeError) as expected:
        three(*args, **kwargs)
    with pytest.raises(TypeError) as got:
        dispatcher(*args, **kwargs)
    assert str(got.value) == str(expected.value)


def test_as_an_attribute_of_a_class_it_is_a_method() -> None:
    class Thing:
        run = _frames.Dispatcher(lambda self, x: (self, x), no_compile)

    thing = Thing()
    assert thing.run(1) == (thing, 1)
    assert Thing.run(thing, x=2) == (thing, 2)


def test_a_miss_sees_the_bound_arguments_and_its_answer_decides() -> None:
    seen = []
    answers: list[Any] = [None, lambda *args: ("other", *args)]

    def miss(dispatcher: Any, arguments: dict[str, Any]) -> Any:
        seen.append(arguments)
        return answers.pop(0)

    dispatcher = _frames.Dispatcher(everything, miss)
    assert dispatcher(1, c=2) == ("original", 1, 2, (), 2, 4, {})
    assert dispatcher(1, c=2) == ("other", 1, 2, 2, 4, (), {})
    assert seen == [{"a": 1, "b": 2, "c": 2, "d": 4, "rest": (), "more": {}}] * 2
    assert dispatcher.misses == 2


def test_entries_are_tried_in_order_and_the_new_one_is_checked() -> None:
    def function(x: torch.Tensor) -> str:
        return "original"

    def miss(dispatcher: Any, arguments: dict[str, Any]) -> Any:
        x = arguments["x"]
        guard = Guard(LocalSource("x"), GuardKind.TENSOR, tensor_expectation(x))
        entry = _frames.Entry(build_tree([guard], function=function), lambda x: str(x.dtype))
        dispatcher.set_entries([*dispatcher.entries, entry])
        return entry

    dispatcher = _frames.Dispatcher(function, miss)
    for _ in range(3):
        for dtype in (torch.float32, torch.int64, torch.bool):
            assert dispatcher(torch.zeros(2, dtype=dtype)) == str(dtype)
    assert dispatcher.misses == 3
    assert [entry.hits for entry in dispatcher.entries] == [3, 3, 3]
    assert dispatcher.stale == 0


def test_guards_that_have_not_held_for_long_are_asked_now_and_then() -> None:
    def function(x: Any) -> str:
        return "original"

    guard = Guard(LocalSource("x"), GuardKind.EQUALS, 1)
    guarded = _frames.Entry(build_tree([guard], function=function), lambda x: "guarded")
    dispatcher = _frames.Dispatcher(function, no_compile)
    dispatcher.set_entries([guarded, always(lambda x: "always")])
    for _ in range(3):
        assert [dispatcher(2) for _ in range(63)] == ["always"] * 63
        assert dispatcher(1) == "guarded"
    assert [dispatcher(2) for _ in range(200)] == ["always"] * 200
    assert "guarded" in [dispatcher(1) for _ in range(16)]
    assert dispatcher(1) == "guarded"
    for _ in range(200):
        dispatcher(2)
    dispatcher.set_entries([guarded])
    assert dispatcher(1) == "guarded"


def test_a_new_entry_that_does_not_hold_runs_the_original() -> None:
    def function(x: Any) -> str:
        return "original"

    guard = Guard(LocalSource("x"), GuardKind.EQUALS, 1)
    entry = _frames.Entry(build_tree([guard], function=function), slots)
    dispatcher = _frames.Dispatcher(function, lambda d, a: entry)
    assert dispatcher(2) == "original"
    assert dispatcher.stale == 1


def test_an_error_of_the_compiler_reaches_the_caller() -> None:
    def miss(dispatcher: Any, arguments: dict[str, Any]) -> Any:
        raise KeyError("broken")

    dispatcher = _frames.Dispatcher(three, miss)
    with pytest.raises(KeyError):
        dispatcher(1)
    assert dispatcher.misses == 1
    with pytest.raises(KeyError):
        dispatcher(1)


def test_inside_a_miss_and_while_disabled_the_originals_run() -> None:
    inner = _frames.Dispatcher(three, no_compile)
    inner.set_entries([always(slots)])

    def miss(dispatcher: Any, arguments: dict[str, Any]) -> Any:
        assert inner(1) == ("original", 1, 2, 3)
        assert dispatcher(1) == ("original", 1, 2, 3)
        return slots

    outer = _frames.Dispatcher(three, miss)
    assert outer(1) == (1, 2, 3)
    assert inner(1) == (1, 2, 3)
    before = _frames.set_enabled(False)
    try:
        assert before is True
        assert inner(1) == ("original", 1, 2, 3)
    finally:
        _frames.set_enabled(before)
    assert inner(1) == (1, 2, 3)


def test_other_threads_run_the_original_while_one_compiles() -> None:
    started, finish = threading.Event(), threading.Event()

    def miss(dispatcher: Any, arguments: dict[str, Any]) -> Any:
        started.set()
        assert finish.wait(10)
        dispatcher.set_entries([always(slots)])
        return slots

    dispatcher = _frames.Dispatcher(three, miss)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(dispatcher(1)))
    thread.start()
    assert started.wait(10)
    assert dispatcher(1) == ("original", 1, 2, 3)
    finish.set()
    thread.join()
    assert results == [(1, 2, 3)]
    assert dispatcher(1) == (1, 2, 3)
    assert dispatcher.misses == 1


def test_entries_replaced_during_a_call_stay_alive() -> None:
    def replace(*args: Any) -> tuple[Any, ...]:
        dispatcher.set_entries([])
        gc.collect()
        return args

    dispatcher = _frames.Dispatcher(three, no_compile)
    dispatcher.set_entries([always(replace)])
    assert dispatcher(1) == (1, 2, 3)
    assert dispatcher(1) == ("original", 1, 2, 3)


def test_nothing_leaks_in_calls() -> None:
    class Argument:
        pass

    argument = Argument()
    dispatcher = _frames.Dispatcher(everything, no_compile)
    dispatcher.set_entries([always(lambda *args: None)])

    before = sys.getrefcount(argument), sys.getrefcount(dispatcher)
    for _ in range(100_000):
        dispatcher(argument, argument, argument, c=argument, e=argument)
    assert (sys.getrefcount(argument), sys.getrefcount(dispatcher)) == before


def test_a_dispatcher_in_a_cycle_with_its_function_is_freed() -> None:
    def build() -> weakref.ref[Any]:
        def function(x: Any) -> Any:
            return dispatcher

        dispatcher = _frames.Dispatcher(function, lambda d, a: dispatcher)
        tree = build_tree([Guard(LocalSource("x"), GuardKind.EQUALS, 1)], function=function)
        dispatcher.set_entries([_frames.Entry(tree, _frames.BoundCall(tree, function), dispatcher)])
        return weakref.ref(dispatcher)

    gone = build()
    gc.collect()
    assert gone() is None


def test_a_tracer_does_not_see_the_compiler() -> None:

    seen = []

    def compiler_part() -> None:
        return None

    def miss(dispatcher: Any, arguments: dict[str, Any]) -> None:
        compiler_part()

    dispatcher = _frames.Dispatcher(three, miss)
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    try:
        dispatcher(1)
    finally:
        sys.setprofile(None)
    assert "three" in seen
    assert "compiler_part" not in seen


def test_threads_calling_while_entries_change_get_right_answers() -> None:
    def function(x: int) -> int:
        return x

    def entry_for(value: int) -> _frames.Entry:
        return _frames.Entry(
            build_tree([Guard(LocalSource("x"), GuardKind.EQUALS, value)], function=function), lambda x: x
        )

    def miss(dispatcher: Any, arguments: dict[str, Any]) -> Any:
        entry = entry_for(arguments["x"])
        dispatcher.set_entries([entry, *dispatcher.entries[:3]])
        return entry

    dispatcher = _frames.Dispatcher(function, miss)
    wrong: list[int] = []
    end = time.monotonic() + 0.5

    def work(offset: int) -> None:
        n = offset
        while time.monotonic() < end:
            n += 1
            if dispatcher(n % 7) != n % 7:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
