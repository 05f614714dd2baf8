"""Scenarios of the frame hook, as a script without torch or pytest that any CPython can run.

python hook_scenarios.py FOLDER MODULE      runs every scenario with MODULE from FOLDER
python hook_scenarios.py FOLDER MODULE --tests test_scope test_call ...
                                            runs test modules of CPython, every function replaced by a copy
"""

import gc
import importlib
import sys
import threading
import types
import unittest


def replacing(hook, table):
    """A callback that answers from `table` by the function's name."""

    def callback(code, local_values, global_values, closure, function):
        return table.get(code.co_name)

    return callback


class Pushed:
    def __init__(self, hook, callback):
        self.hook, self.callback = hook, callback

    def __enter__(self):
        self.hook.hook_push(self.callback)

    def __exit__(self, *error):
        self.hook.hook_pop()


def identity(code, local_values, global_values, closure, function):
    return code.replace()


def add(a, b=2, *rest, c=3, **more):
    return a, b, rest, c, more


def add_replaced(a, b=2, *rest, c=3, **more):
    total = a + b + c
    first, second, third, fourth = total, total, total, total
    return ("replaced", first, second, third, fourth, rest, more)


def big_replacement():
    """Code for `add` whose frame is larger than a chunk of the data stack."""
    lines = "\n".join(f"    v{n} = a" for n in range(6000))
    space = {}
    exec(f"def add(a, b=2, *rest, c=3, **more):\n{lines}\n    return ('big', v5999, b, rest, c, more)", space)
    return space["add"].__code__


def scenario_code_takes_the_frame_over(hook):
    with Pushed(hook, replacing(hook, {"add": add_replaced.__code__})):
        got = add(1), add(1, 5, 6, c=7, z=8)
    assert got == (("replaced", 6, 6, 6, 6, (), {}), ("replaced", 13, 13, 13, 13, (6,), {"z": 8})), got
    assert add(1) == (1, 2, (), 3, {})


def scenario_a_frame_too_big_for_the_stack(hook):
    code = big_replacement()
    with Pushed(hook, replacing(hook, {"add": code})):
        assert add(1, 5, 6, z=8) == ("big", 1, 5, (6,), 3, {"z": 8})


def scenario_a_big_frame_that_raises(hook):
    lines = "\n".join(f"    v{n} = a" for n in range(6000))
    space = {}
    exec(f"def add(a, b=2, *rest, c=3, **more):\n{lines}\n    raise KeyError(v5999)", space)
    with Pushed(hook, replacing(hook, {"add": space["add"].__code__})):
        try:
            add(1)
        except KeyError as error:
            assert error.args == (1,)
        else:
            raise AssertionError("no error")


def scenario_a_callable_gets_every_slot(hook):
    with Pushed(hook, replacing(hook, {"add": lambda *slots: slots})):
        assert add(1, 5, 6, z=8) == (1, 5, 3, (6,), {"z": 8})


def scenario_a_callable_that_raises(hook):
    def fail(*slots):
        raise KeyError("inside")

    with Pushed(hook, replacing(hook, {"add": fail})):
        for _ in range(100):
            try:
                add(1)
            except KeyError as error:
                assert error.args == ("inside",)
            else:
                raise AssertionError("no error")


def scenario_closures_keep_their_cells(hook):
    def make(value):
        def read(x):
            return value + x

        def write(x):
            nonlocal value
            value = x

        return read, write

    read, write = make(1)
    with Pushed(hook, identity):
        assert read(1) == 2
        write(10)
        assert read(1) == 11
        assert make(5)[0](1) == 6
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

    with Pushed(hook, callback):
        inner(1, 2)
    assert seen == [({"a": 1, "rest": (2,), "k": 1}, True, "free", True)], seen


def scenario_errors_of_the_callback_and_bad_code(hook):
    def broken(code, *frame):
        if code.co_name == "add":
            raise ZeroDivisionError("callback")

    with Pushed(hook, broken):
        try:
            add(1)
            raised = False
        except ZeroDivisionError:
            raised = True
    assert raised
    with Pushed(hook, replacing(hook, {"add": (lambda a: a).__code__})):
        try:
            add(1)
            raised = False
        except ValueError:
            raised = True
    assert raised


def scenario_skip_always_is_remembered(hook):
    asked = []

    def target():
        return 1

    def callback(code, *frame):
        asked.append(code.co_name)
        return hook.SKIP_ALWAYS

    with Pushed(hook, callback):
        assert [target() for _ in range(5)] == [1] * 5
    assert asked.count("target") == 1
    assert hook.code_entries(target.__code__) is hook.SKIP_ALWAYS
    hook.forget_codes()
    assert hook.code_entries(target.__code__) == ()


def scenario_published_entries_are_used(hook):
    asked = []

    def target(x):
        return x

    def other(x):
        return -x

    def callback(code, *frame):
        if code is target.__code__:
            asked.append(code)
            hook.set_code_entries(code, [other.__code__])
        return

    with Pushed(hook, callback):
        got = [target(n) for n in (1, 2, 3)]
    assert got == [1, -2, -3], got
    assert len(asked) == 1
    hook.set_code_entries(target.__code__, [])
    assert target(1) == 1


def scenario_entries_replaced_while_one_runs(hook):
    def target(x):
        return x

    def other(x):
        hook.set_code_entries(target.__code__, [])
        gc.collect()
        return -x

    hook.set_code_entries(
        target.__code__, [types.FunctionType(other.__code__, globals(), "f", None, other.__closure__)]
    )
    with Pushed(hook, lambda *frame: None):
        assert target(1) == -1
        assert target(1) == 1


def scenario_generators_and_recursion_run_as_before(hook):
    def numbers(n):
        yield from range(n)

    def depth(n):
        return n if n == 0 else 1 + depth(n - 1)

    async def nothing():
        return 1

    with Pushed(hook, identity):
        assert list(numbers(3)) == [0, 1, 2]
        assert depth(150) == 150
        try:
            nothing().send(None)
        except StopIteration as stop:
            assert stop.value == 1
        assert sorted([3, 1, 2], key=lambda v: -v) == [3, 2, 1]


def scenario_pushes_nest_and_belong_to_a_thread(hook):
    results = []

    def target():
        return "original"

    def work():
        results.append(target())

    with Pushed(hook, replacing(hook, {"target": lambda: "outer"})):
        assert target() == "outer"
        with Pushed(hook, replacing(hook, {"target": lambda: "inner"})):
            assert target() == "inner"
            assert hook.hook_wanted() == 2
        assert target() == "outer"
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert results == ["original"]
    assert target() == "original"
    assert hook.hook_wanted() == 0
    try:
        hook.hook_pop()
    except RuntimeError:
        return
    raise AssertionError("popped nothing")


def scenario_nothing_leaks(hook):
    value = object()
    code = add_replaced.__code__
    with Pushed(hook, replacing(hook, {"add": (lambda a, b=2, *rest, c=3, **more: a).__code__})):
        add(value)
        before = sys.getrefcount(value), sys.getrefcount(add.__code__)
        for _ in range(20_000):
            add(value, value, value, c=value, z=value)
        assert (sys.getrefcount(value), sys.getrefcount(add.__code__)) == before
    with Pushed(hook, replacing(hook, {"add": lambda *slots: None})):
        before = sys.getrefcount(value), sys.getrefcount(add.__code__)
        for _ in range(20_000):
            add(value, value, value, c=value, z=value)
        assert (sys.getrefcount(value), sys.getrefcount(add.__code__)) == before
    assert code is add_replaced.__code__


def scenario_a_tracer_sees_no_callback(hook):
    seen = []

    def part_of_the_callback():
        return None

    def callback(code, *frame):
        part_of_the_callback()

    def target():
        return 1

    hook.hook_push(callback)
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    target()
    sys.setprofile(None)
    hook.hook_pop()
    assert "target" in seen
    assert "part_of_the_callback" not in seen


def copy_once(hook):
    """A callback that replaces each function, for good, by an identical copy of its code."""

    def callback(code, local_values, global_values, closure, function):
        copy = code.replace()
        hook.set_code_entries(code, [copy])
        hook.set_code_entries(copy, hook.SKIP_ALWAYS)
        return copy

    return callback


def run_tests(hook, names):
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"test.{name}" for name in names])
    threading.setprofile(None)
    with Pushed(hook, copy_once(hook)):
        result = unittest.TextTestRunner(verbosity=0).run(suite)
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
