"""Programs of the Python language that had another outcome than in eager: lost errors, errors without their fields,
classes and objects that were kept or freed at another time. Most were found by CPython's own tests."""

from __future__ import annotations

import array
import builtins
import collections
import dataclasses
import gc
import inspect
import io
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import kiln

# mypy: disallow_untyped_defs = False, check_untyped_defs = False
# ruff: noqa


@kiln.disable
def opaque(*values: object) -> int:
    return len(values)


def made_named_tuple_alias() -> object:
    Group = collections.namedtuple("Group", "key group")
    A = Group[int]
    a = A(1, [2])
    return a[0], A.__origin__ is Group, a.group


def alias_of_made_class() -> object:
    class Box:
        def __class_getitem__(cls, item):
            return types.GenericAlias(cls, item)

        def __init__(self, x):
            self.x = x

    return Box[int](3).x


def module_of_type_call() -> object:
    A = type("A", (), {"x": 1})
    opaque()
    return A.__module__, A.__name__, type("B", (), {"__module__": 42}).__module__


def setattr_bytes() -> object:
    class A:
        pass

    a = A()
    try:
        setattr(a, b"x", 1)
    except TypeError as e:
        found = str(e)
    try:
        getattr(a, 3)
    except TypeError as e:
        return found, str(e)


def names_of_class() -> object:
    class X:
        pass

    X.__name__ = "Y"
    X.__qualname__ = "a.b"
    found = []
    for name, value in (("__name__", 42), ("__name__", "A\0B"), ("__qualname__", 3)):
        try:
            setattr(X, name, value)
        except (TypeError, ValueError) as e:
            found.append(type(e).__name__ + str(e))
    try:
        del X.__qualname__
    except TypeError as e:
        found.append(str(e))
    try:
        del X.__name__
    except TypeError as e:
        found.append(str(e))
    try:
        type.__dict__["__qualname__"].__set__(int, "x")
    except TypeError as e:
        found.append(str(e))
    return X.__name__, X.__qualname__, found


def dead_proxy() -> object:
    class A:
        pass

    a = A()
    p = weakref.proxy(a)
    a.x = 3
    before = p.x
    del a
    opaque()
    try:
        return before, p.x
    except ReferenceError as e:
        return before, str(e)


def metadata() -> object:
    import dataclasses

    class Space(collections.UserDict):
        pass

    @dataclasses.dataclass
    class C:
        i: int = dataclasses.field(default=3, metadata=Space(a=2))

    return dataclasses.fields(C)[0].metadata["a"]


def frames_of_traceback() -> object:
    def inner():
        raise ValueError(3)

    try:
        inner()
    except ValueError as e:
        tb = e.__traceback__
        return [f.f_code.co_name for f, _ in traceback.walk_tb(tb)], len(traceback.extract_tb(tb))


def mro_conflict() -> object:
    class A:
        pass

    class B:
        pass

    class C(A, B):
        pass

    class D(A, B):
        pass

    class E(C, D):
        pass

    try:
        C.__bases__ = (B, A)
    except TypeError as e:
        return str(e)[:30]
    return "none"


def subclasses() -> object:
    class P:
        pass

    class Q(P):
        pass

    n = len(P.__subclasses__())
    del Q
    gc.collect()
    return n, len(P.__subclasses__())


def free_after_iterating() -> object:
    class A(bytes):
        def __del__(self):
            nonlocal done
            done = True
            try:
                next(it)
            except StopIteration:
                pass

    done = False
    it = iter(A())
    try:
        next(it)
    except StopIteration:
        pass
    opaque()
    return done


def obscure_super() -> object:
    class C:
        def f(self):
            super()
            del self

        def f2(x):
            del x
            super()

    out = []
    for f in (C().f, C().f2):
        try:
            f()
        except RuntimeError as e:
            out.append(str(e))

    def g(x):
        super()

    try:
        g(3)
    except RuntimeError as e:
        out.append(str(e))

    class X:
        def f(x):
            nonlocal __class__
            del __class__
            super()

    try:
        X().f()
    except RuntimeError as e:
        out.append(str(e))
    return out


def name_suggestions() -> object:
    class A:
        blech = 1

    try:
        A().bluch
    except AttributeError as e:
        a = (str(e), e.name, type(e.obj).__name__)
    abc = 1
    try:
        abd
    except NameError as e:
        return a, str(e), e.name, abc


def proxy_of_dict() -> object:
    d = {"a": 1}
    p = types.MappingProxyType(d)
    d["b"] = 2
    found = [
        p["b"],
        len(p),
        list(p),
        "a" in p,
        p.get("c", 5),
        dict(p),
        repr(p),
        p == {"a": 1, "b": 2},
        list(p.items()),
        type(p).__name__,
    ]
    try:
        p["x"] = 3
    except TypeError as e:
        found.append(str(e))
    try:
        del p["x"]
    except TypeError as e:
        found.append(str(e))
    opaque()
    opaque()
    found.append(dict(p))
    found.append(p | {"z": 1})
    try:
        types.MappingProxyType([1])
    except TypeError as e:
        found.append(str(e))
    return found


def a_dataclass() -> object:
    import dataclasses

    @dataclasses.dataclass
    class P:
        x: int
        y: int = 3
        z: list = dataclasses.field(default_factory=list)

    p = P(1)
    return p, p == P(1), P.__doc__, dataclasses.asdict(p), P.__match_args__, dataclasses.replace(p, x=5)


def signature() -> object:
    import inspect

    def f(a, b=3, *c, d, **e):
        pass

    return str(inspect.signature(f)), list(inspect.signature(f).parameters)


def wrong_arguments() -> object:
    found = []

    def ask(f, *a, **k):
        try:
            f(*a, **k)
        except Exception as e:
            found.append(type(e).__name__ + str(e))
        else:
            found.append("none")

    ask({}.keys, 1)
    ask({}.clear, 1)
    ask({}.copy, 1)
    ask(min, 1, 2, keystone=int)
    ask(collections.deque().rotate, 1, 2)
    ask(collections.deque, 1, 2, 3)
    ask(collections.deque().reverse, 42)
    ask(collections.deque().count)
    ask({}.update, 1, 2)
    ask(collections.defaultdict, 1)
    ask(collections.deque, [1], -1)
    ask(dict, 1, 2)
    ask({1}.add)
    ask({1}.pop, 1)
    ask(filter, int)
    ask({}.values, x=3)
    ask(collections.deque().rotate, "x")
    ask(collections.deque().rotate, 1.5)
    ask(zip, [1], strct=1)
    ask(max)
    ask(max, 1)
    return found


def replaced_builtin() -> object:
    with mock.patch("builtins.int") as fake:
        fake.return_value = 5
        opaque()
        return int("3"), isinstance(int, mock.MagicMock)


def replaced_builtin_function() -> object:
    with mock.patch("builtins.max", lambda *numbers: 10):
        opaque()
        return max(2, 3)


STREAM = io.StringIO()
WRITE = STREAM.write


class Keys(dict):
    def __iter__(self):
        return iter(["nothing"])

    def keys(self):
        return ["no"]

    def __len__(self):
        return 77

    def __contains__(self, key):
        return True


KEYS = Keys(a=1, b=2)


def bound_outside() -> object:
    def use(write, append, leave):
        write("a")
        append(3)
        leave()

    stream, numbers, lock = io.StringIO(), array.array("i"), threading.Lock()
    lock.acquire()
    opaque()
    use(stream.write, numbers.append, lock.release)
    return stream.getvalue(), list(numbers), lock.locked()


def written() -> object:
    STREAM.seek(0)
    STREAM.truncate()
    WRITE("a")
    return STREAM.getvalue()


def overriding_dict() -> object:
    d = KEYS
    d["c"] = 3
    x = dict.pop(d, "c")
    opaque()
    dict.__setitem__(d, "z", 5)
    return x, dict.pop(d, "z"), dict.__len__(d), len(d), list(dict.items(d)), list(d)


def zero_step() -> object:
    try:
        [1, 2][::0]
    except ValueError as e:
        return str(e)


def line_tracing() -> object:
    seen = []

    def inner(x):
        y = x + 1
        return y

    def trace(frame, event, arg):
        if frame.f_code.co_name == "inner":
            seen.append((event, frame.f_lineno - frame.f_code.co_firstlineno))
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        inner(1)
    finally:
        sys.settrace(old)
    return seen


def huge_number(n=1 << 3000) -> object:
    return (n + 1) % 7, opaque(), n >> 2999


huge_number.__annotations__ = {"return": "object"}


class Slotted:
    __slots__ = ("foo", "bar")


SLOTTED = Slotted()
SLOTTED.foo = 1


def empty_slot() -> object:
    return hasattr(SLOTTED, "bar"), hasattr(SLOTTED, "foo"), getattr(SLOTTED, "bar", 5)


def deleted_variable_of_a_closure() -> object:
    x = 1

    def read():
        try:
            return x
        except NameError as error:
            return str(error)

    opaque(read)
    before = read()
    del x
    opaque(read)
    after = read()
    x = 3
    opaque(read)
    return before, after, read()


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__annotations__", 0) == {"return": "object"}]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_outcome_is_that_of_eager(program: Callable[[], Any]) -> None:
    expected = program()
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert [repr(compiled()) for _ in range(2)] == [repr(expected)] * 2
    reasons = [entry.code for entry in kiln.report_of(compiled).eager_reasons]
    assert "KILN9000" not in reasons and "KILN1102" not in reasons


def test_a_number_computed_in_front_is_known_behind_a_break() -> None:
    def program(n: int) -> object:
        bits = n.bit_length() + 1
        opaque()
        return bits, n

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for n in (5, 6, 7, 100, 1000):
        assert compiled(n) == program(n)


def test_a_dataclass_is_made_without_a_break() -> None:
    compiled = kiln.compile(a_dataclass, backend="eager", fullgraph=True)
    assert repr(compiled()) == repr(a_dataclass())
