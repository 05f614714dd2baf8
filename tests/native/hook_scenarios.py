"""Scenarios of the frame hook, as a script without torch or pytest that any CPython can run.

python hook_scenarios.py FOLDER MODULE      runs every scenario with MODULE from FOLDER
python hook_scenarios.py FOLDER MODULE --tests test_scope test_call ...
                                            runs test modules of CPython, every function replaced by a copy
"""

import functools
import importlib
import inspect
import sys
import threading
import types
import unittest


def replacing(table):
    """A callback that answers from `table` by the function's name."""

    def callback(code, local_values, global_values, closure, function):
        return table.get(code.co_name)

    return callback


def copy_of(code, global_values, closure):
    """A function with the same code that gets every slot."""
    flags = code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    rest = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    slots = code.co_argcount + code.co_kwonlyargcount + rest
    copy = code.replace(co_argcount=slots, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags)
    return types.FunctionType(copy, global_values, code.co_name, None, closure)


def copying(hook):
    """A callback that replaces each function by an identical copy, in which functions are replaced, too."""
    copies = set()

    def callback(code, local_values, global_values, closure, function):
        if code in copies:
            return None
        copy = copy_of(code, global_values, closure)
        copies.add(copy.__code__)
        return functools.partial(hook.hook_call, callback, copy)

    return callback


def add(a, b=2, *rest, c=3, **more):
    return a, b, rest, c, more


def scenario_a_callable_gets_every_slot(hook):
    got = hook.hook_call(replacing({"add": lambda *slots: slots}), lambda: add(1, 5, 6, z=8))
    assert got == (1, 5, 3, (6,), {"z": 8})
    assert add(1) == (1, 2, (), 3, {})


def scenario_a_callable_that_raises(hook):
    def fail(*slots):
        raise KeyError("inside")

    def run():
        for _ in range(100):
            try:
                add(1)
            except KeyError as error:
                assert error.args == ("inside",)
            else:
                raise AssertionError("no error")

    hook.hook_call(replacing({"add": fail}), run)


def scenario_closures_keep_their_cells(hook):
    def make(value):
        def read(x):
            return value + x

        def write(x):
            nonlocal value
            value = x

        return read, write

    read, write = make(1)

    def run():
        assert read(1) == 2
        write(10)
        assert read(1) == 11
        assert make(5)[0](1) == 6

    hook.hook_call(copying(hook), run)
    assert read(0) == 10


def scenario_the_callback_sees_the_frame(hook):
    seen = []

    def outer():
        free = "free"

        def inner(a, *rest, k=1):
            return free, a

        return inner

    inner = outer()

    def callback(code, local_values, global_values, closure, function):
        if code.co_name == "inner":
            seen.append((local_values, global_values is globals(), closure[0].cell_contents, function is inner))

    hook.hook_call(callback, inner, 1, 2)
    assert seen == [({"a": 1, "rest": (2,), "k": 1}, True, "free", True)], seen


def scenario_errors_of_the_callback(hook):
    def broken(code, *frame):
        if code.co_name == "add":
            raise ZeroDivisionError("callback")

    try:
        hook.hook_call(broken, add, 1)
    except ZeroDivisionError:
        return
    raise AssertionError("no error")


def scenario_skip_always_is_remembered(hook):
    asked = []

    def target():
        return 1

    def callback(code, *frame):
        asked.append(code.co_name)
        return hook.SKIP_ALWAYS

    for _ in range(5):
        assert hook.hook_call(callback, target) == 1
    assert asked == ["target"]
    hook.forget_codes()
    assert hook.hook_call(callback, target) == 1
    assert asked == ["target", "target"]
    hook.forget_codes()


def scenario_generators_and_recursion_run_as_before(hook):
    def numbers(n):
        yield from range(n)

    def depth(n):
        return n if n == 0 else 1 + depth(n - 1)

    async def nothing():
        return 1

    def run():
        assert list(numbers(3)) == [0, 1, 2]
        assert depth(50) == 50
        try:
            nothing().send(None)
        except StopIteration as stop:
            assert stop.value == 1
        assert sorted([3, 1, 2], key=lambda v: -v) == [3, 2, 1]

    hook.hook_call(copying(hook), run)


def scenario_calls_nest_and_belong_to_a_thread(hook):
    results = []

    def target():
        return "original"

    def work():
        results.append(target())

    def run():
        assert target() == "outer"
        assert hook.hook_call(replacing({"target": lambda: "inner"}), lambda: target()) == "inner"
        assert target() == "outer"
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    hook.hook_call(replacing({"target": lambda: "outer"}), run)
    assert results == ["original"]
    assert target() == "original"


def scenario_nothing_leaks(hook):
    value = object()

    def run():
        add(value)
        before = sys.getrefcount(value), sys.getrefcount(add.__code__)
        for _ in range(20_000):
            add(value, value, value, c=value, z=value)
        assert (sys.getrefcount(value), sys.getrefcount(add.__code__)) == before

    hook.hook_call(replacing({"add": lambda *slots: None}), run)
    hook.hook_call(replacing({"add": lambda a, *slots: a}), run)


def scenario_a_tracer_sees_no_callback(hook):
    seen = []

    def part_of_the_callback():
        return None

    def callback(code, *frame):
        part_of_the_callback()

    def target():
        return 1

    def run():
        sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
        target()
        sys.setprofile(None)

    hook.hook_call(callback, run)
    assert "target" in seen
    assert "part_of_the_callback" not in seen


def run_tests(hook, names):
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"test.{name}" for name in names])
    threading.setprofile(None)
    result = hook.hook_call(copying(hook), unittest.TextTestRunner(verbosity=0).run, suite)
    print(f"ran {result.testsRun}", "failures", [str(test) for test, _ in result.failures + result.errors])


def main():
    sys.path.insert(0, sys.argv[1])
    hook = importlib.import_module(sys.argv[2])
    if "--tests" in sys.argv:
        run_tests(hook, sys.argv[sys.argv.index("--tests") + 1 :])
        return
    scenarios = [value for name, value in globals().items() if name.startswith("scenario_")]
    for scenario in scenarios:
        for _ in range(3):
            scenario(hook)
    print(f"passed {len(scenarios)}")


if __name__ == "__main__":
    main()
