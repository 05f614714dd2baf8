"""Errors and results of built-in types in the interpreter that were others than Python's; most were found by CPython's
own tests, where eager hid them: a test that the interpreter saw failing ran in Python."""

from __future__ import annotations

import collections
import copy
import math
import operator
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import kiln

# mypy: disallow_untyped_defs = False, check_untyped_defs = False
# ruff: noqa


def error(f, *a, **k):
    try:
        return repr(f(*a, **k))
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def list_init() -> object:
    a = [1, 2, 3]
    a.__init__()
    b = [1]
    b.__init__([4, 5])
    s = {1, 2}
    s.__init__({3})
    t = {1}
    t.__init__()
    return a, b, s, t, error({1}.__init__, {1}, 2), error([1].__init__, 1, 2), error(frozenset([1]).__init__)


def ordered() -> object:
    od = OrderedDict(a=1)
    x = od.setdefault("g", default=9), od.setdefault("h"), od.setdefault("i", 3)
    m = [
        type(v).__name__
        for v in (
            od | {"z": 1},
            {"z": 1} | od,
            od | od,
            defaultdict(int) | {1: 2},
            {1: 2} | defaultdict(int),
            {1: 2} | {3: 4},
        )
    ]
    d = {1: 2} | defaultdict(int, {3: 4})
    return x, m, d, d.default_factory, od.pop("q", default=3), od.pop("a")


def set_of_sets() -> object:
    s = {frozenset({1}), frozenset({2}), 3}
    found = [{1} in s, {5} in s]
    s.remove({1})
    s.discard({2})
    s.discard({9})
    return found, s, error(s.remove, {7}), error(s.remove, [1])


class P:
    def __init__(self):
        self._x = 5
        self.log = []

    @property
    def x(self):
        return self._x

    @x.setter
    def x(self, value):
        self.log.append("set")
        self._x = value

    @x.deleter
    def x(self):
        self.log.append("del")
        del self._x


def deleted_property() -> object:
    p = P()
    p.x = 3
    del p.x
    return p.log, hasattr(p, "_x")


def float_like() -> object:
    class F:
        def __init__(self, v):
            self.v = v

        def __float__(self):
            return self.v

    return math.floor(F(2.5)), math.ceil(F(2.5)), error(math.floor, "x")


def group_fields() -> object:
    g = ExceptionGroup("m", [ValueError(1)])
    return error(setattr, g, "message", 3), error(setattr, g, "exceptions", []), g.message


def aliases() -> object:
    a = list[int]
    return (
        a.append is list.append,
        a.__origin__,
        dict[str, int].fromkeys([1]),
        error(isinstance, [], list[int]),
        error(issubclass, list, list[int]),
        isinstance(3, int | str),
    )


def syntax_error() -> object:
    try:
        compile("x = (\n", "f.py", "exec")
    except SyntaxError as e:
        a = e.lineno, e.filename, e.msg
    try:
        eval("1 +")
    except SyntaxError as e:
        return a, e.lineno, e.text


def filters() -> object:
    return [
        error(filter, lambda x: x, 3),
        error(map, len, 3),
        error(zip, [1], 3),
        error(next, filter(range(6), range(6))),
        error(next, map(3, [1])),
        error(list, iterable=[1]),
        error(tuple, sequence=()),
        error(dict, 3),
        error(dict, [1]),
        error(dict, [(1, 2, 3)]),
        error(enumerate, 3),
        error(sorted, 3),
        error(reversed, 3),
        error(iter, 3),
        error(next, 3),
    ]


def indices() -> object:
    return (
        error(lambda: (1, 2)["a"]),
        error(lambda: [1]["a"]),
        error(lambda: (1,)[1]),
        error(lambda: "a"["b"]),
        error(lambda: range(3)["a"]),
    )


def caller() -> object:
    class A:
        def foo(self, *a, **k):
            return a, k

        def bar(self, f=42):
            return f

    return (
        operator.methodcaller("bar", f=5)(A()),
        operator.methodcaller("foo", 1, name=2)(A()),
        operator.methodcaller("foo", 1, a=2)(A()),
    )


class CNew:
    def __new__(cls, foo):
        self = object.__new__(cls)
        self.foo = foo
        return self


class CSlots:
    __slots__ = ["foo", "bar"]


class CGet:
    def __getattribute__(self, name):
        if name.startswith("__reduce"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)


class CReduce:
    def __init__(self, v):
        self.v = v

    def __reduce__(self):
        return CReduce, (self.v + 1,)


class CState:
    def __init__(self, v):
        self.v = v

    def __getstate__(self):
        return {"v": self.v + 1}


class CSetState:
    def __init__(self, v):
        self.v = v

    def __setstate__(self, state):
        self.v = ("set", state)


def copies() -> object:
    x = CNew(42)
    s = CSlots()
    s.foo = [42]
    c = copy.copy(s)
    d = copy.deepcopy(s)
    r = (
        copy.copy(CReduce(3)).v,
        copy.deepcopy(CReduce(3)).v,
        copy.copy(CState(3)).v,
        copy.deepcopy(CSetState([3])).v,
        copy.copy(CSetState(1)).v,
    )
    memo = {}
    l = [1, [2]]
    m = copy.deepcopy(l, memo)
    return (
        error(copy.copy, x),
        error(copy.deepcopy, x),
        c.foo is s.foo,
        d.foo == s.foo and d.foo is not s.foo,
        error(copy.copy, CGet())[:20],
        r,
        m,
        memo[id(l)] is m,
    )


def bad_results() -> object:
    class A:
        def __str__(self):
            return 1

        def __repr__(self):
            return 2

        def __int__(self):
            return "x"

        def __hash__(self):
            return "y"

        def __len__(self):
            return "z"

        def __bytes__(self):
            return 3

        def __format__(self, s):
            return 4

        def __index__(self):
            return "w"

        def __float__(self):
            return 5

        def __complex__(self):
            return 6

        def __contains__(self, x):
            return [1]

        def __iter__(self):
            return 3

    a = A()
    return (
        [
            error(f, a)
            for f in (str, repr, int, hash, len, bytes, format, float, complex, list, operator.index, bool, bin, ascii)
        ],
        error(lambda: f"{a}"),
        3 in a,
    )


def many() -> object:
    return error(vars, 42), error(type.__getattribute__, list, type), error(object.__getattribute__, 3, 4)


def unpacking() -> object:
    class A:
        pass

    def one(x):
        a, b = x

    def two(x):
        a, *b = x

    return error(one, A()), error(one, 3), error(one, [1]), error(one, [1, 2, 3]), error(two, 3), error(two, [])


def subclass_propagation() -> object:
    class A:
        pass

    class B(A):
        pass

    class C(B):
        pass

    d = C()
    A.__hash__ = lambda self: 42
    x = hash(d)
    B.__hash__ = lambda self: 144
    y = hash(d)
    del B.__hash__
    z = hash(d)
    A.__getattribute__ = lambda self, name: name
    w = d.foo
    return x, y, z, w


def matching() -> object:
    class Class:
        __match_args__ = ("a", "a")
        a = None

    class Bad:
        __match_args__ = "XYZ"

    class Odd:
        __match_args__ = (None,)

    def one(x):
        match x:
            case Class(y, a=z):
                return 1

    def two(x):
        match x:
            case Bad(y):
                return 1

    def three(x):
        match x:
            case Odd(y):
                return 1

    def four(x):
        match x:
            case Class(a, b, c):
                return 1

    def five(x):
        match x:
            case int(a, b):
                return 1

    return error(one, Class()), error(two, Bad()), error(three, Odd()), error(four, Class()), error(five, 3)


def sequences() -> object:
    return (
        error(lambda: [1] < (1,)),
        error(lambda: {} < {}),
        error(lambda: 3 < "a"),
        error(lambda: None < 1),
        error(lambda: {1} < [1]),
        error(lambda: 1j < 2j),
        [1] == (1,),
    )


def proxies() -> object:
    d = {"a": 1}
    v = types.MappingProxyType(d)
    c = v.copy()
    v2 = v | {"b": 2}
    v3 = {"b": 2} | v
    d["a"] = 70
    return (
        c,
        v2,
        v3,
        v["a"],
        type(c).__name__,
        error(lambda: v | 3),
        error(v.__ior__, {}),
        error(hash, v),
        v == d,
        len(v),
        list(reversed(v)),
    )


def named_property() -> object:
    class A:
        class B:
            x = property()

    b = A.B()
    return error(getattr, b, "x"), error(setattr, b, "x", 1), error(delattr, b, "x")


def endless() -> object:
    def numbers():
        n = 0
        while True:
            yield n
            n += 1

    def two(items):
        a, b = items

    items = numbers()
    return error(two, items), next(items)


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__annotations__", 0) == {"return": "object"}]
AS_MODELLED = [program for program in PROGRAMS if program not in (aliases, copies, named_property, proxies)]
"""Without a break."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_built_in_types_are_as_in_python(program: Callable[[], Any]) -> None:
    expected = repr(program())
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert [repr(compiled()) for _ in range(2)] == [expected] * 2
    reasons = [entry.code for entry in kiln.report_of(compiled).eager_reasons]
    assert not {"KILN9000", "KILN1102"} & set(reasons) or program is aliases
    assert program not in AS_MODELLED or not kiln.report_of(compiled).breaks
