"""Changes between two calls are noticed: a table of programs and changes, with eager's results.

A case gets `compile` (the dispatcher, or nothing for eager), calls its program before and after a change, and returns
all results. What a guard may look at is all that Python lets a program change.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

CASES: list[Callable[[Any], list[Any]]] = []


def case(function: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    CASES.append(function)
    return function


def ones() -> torch.Tensor:
    return torch.ones(3)


# ---- containers


@case
def set_gets_another_item(compile):
    allowed = {1, 2}
    f = compile(lambda x: x + 1 if 2 in allowed else x - 1)
    results = [f(ones())]
    allowed.remove(2)
    allowed.add(3)
    return [*results, f(ones())]


@case
def set_of_strings_as_argument(compile):
    f = compile(lambda x, names: x * (2 if "a" in names else 3))
    return [f(ones(), {"a", "b"}), f(ones(), {"c", "b"}), f(ones(), {"b", "a"})]


@case
def frozenset_of_tuples(compile):
    f = compile(lambda x, pairs: x * sum(a * b for a, b in pairs))
    return [f(ones(), frozenset({(1, 2)})), f(ones(), frozenset({(1, 3)}))]


@case
def set_of_objects(compile):
    class Token:
        pass

    a, b = Token(), Token()
    f = compile(lambda x, tokens, one: x + 1 if one in tokens else x - 1)
    return [f(ones(), {a}, a), f(ones(), {b}, a), f(ones(), {a}, b)]


@case
def frozenset_of_classes(compile):
    f = compile(lambda x, classes: x + 1 if int in classes else x - 1)
    return [f(ones(), frozenset({int})), f(ones(), frozenset({str}))]


@case
def set_item_of_another_type(compile):
    f = compile(lambda x, one: x + sum(one))
    return [f(torch.ones(3, dtype=torch.int64), {1}), f(torch.ones(3, dtype=torch.int64), {1.0})]


@case
def set_operations_on_outside_sets(compile):
    f = compile(lambda x, a, b: x + len(a & b) * 10 + len(a | b))
    return [f(ones(), {1, 2}, {2, 3}), f(ones(), {1, 2}, {3, 4}), f(ones(), {1, 2}, {1, 2})]


@case
def dict_order(compile):
    def f(x, d):
        for name, value in d.items():
            x = x * 2 + value if name == "a" else x + value
        return x

    f = compile(f)
    return [f(ones(), {"a": 1, "b": 2}), f(ones(), {"b": 2, "a": 1})]


@case
def ordered_dict_moved_to_end(compile):
    table = collections.OrderedDict(a=1, b=2)
    f = compile(lambda x: x * 10 + next(iter(table.values())))
    results = [f(ones())]
    table.move_to_end("a")
    return [*results, f(ones())]


@case
def dict_keys_that_are_objects(compile):
    class Key:
        pass

    a, b = Key(), Key()
    table = {a: 1, b: 2}
    f = compile(lambda x, key: x + table[key])
    results = [f(ones(), a), f(ones(), b)]
    table[a] = 5
    return [*results, f(ones(), a)]


@case
def dict_key_one_and_true(compile):
    def f(x, d):
        for key in d:
            x = x + 5 if key is True else x + 7
        return x

    f = compile(f)
    return [f(ones(), {1: 0}), f(ones(), {True: 0})]


@case
def dict_gets_the_key_that_was_missing(compile):
    config = {}
    f = compile(lambda x: x + config.get("n", 1))
    results = [f(ones())]
    config["n"] = 5
    return [*results, f(ones())]


@case
def default_dict_factory(compile):
    f = compile(lambda x, d: x + d["missing"])
    a, b = collections.defaultdict(lambda: 1), collections.defaultdict(lambda: 2)
    return [f(ones(), a), f(ones(), b), len(a), len(b)]


@case
def list_item_replaced(compile):
    items = [1, [2, 3]]
    f = compile(lambda x: x * items[0] + items[1][1])
    results = [f(ones())]
    items[1][1] = 7
    return [*results, f(ones())]


@case
def list_gets_longer(compile):
    items = [1, 2]
    f = compile(lambda x: x * sum(items))
    results = [f(ones())]
    items.append(3)
    return [*results, f(ones())]


@case
def tuple_of_another_length(compile):
    f = compile(lambda x, t: x + len(t))
    return [f(ones(), (1, 2)), f(ones(), (1, 2, 3))]


@case
def list_for_tuple(compile):
    f = compile(lambda x, t: x + 1 if isinstance(t, tuple) else x - 1)
    return [f(ones(), (1,)), f(ones(), [1])]


@case
def deque_contents(compile):
    queue = collections.deque([1, 2])
    f = compile(lambda x: x + queue[0])
    results = [f(ones())]
    queue.rotate(1)
    return [*results, f(ones())]


@case
def mutated_lists_become_one(compile):
    def f(x, a, b):
        a.append(x)
        b.append(x + 1)
        return len(a), len(b)

    f = compile(f)
    a, b, c = [], [], []
    return [f(ones(), a, b), a, b, f(ones(), c, c), c]


@case
def list_and_nested_list_become_one(compile):
    def f(x, a, holder):
        a.append(x)
        holder["list"].append(x + 1)
        return x * len(a)

    f = compile(f)
    a, b, c = [], [], []
    return [f(ones(), a, {"list": b}), a, b, f(ones(), c, {"list": c}), c]


@case
def mutated_dicts_become_one(compile):
    def f(x, a, b):
        a["k"] = x
        b["k"] = x + 1
        return a["k"]

    f = compile(f)
    a = {}
    return [f(ones(), {}, {}), f(ones(), a, a)]


@case
def mutated_objects_become_one(compile):
    class Box:
        def __init__(self):
            self.value = 0

    def f(x, a, b):
        a.value = 1
        b.value = 2
        return x * a.value

    f = compile(f)
    box = Box()
    return [f(ones(), Box(), Box()), f(ones(), box, box)]


@case
def written_object_becomes_read_object(compile):
    class Box:
        def __init__(self):
            self.value = 5

    def f(x, a, b):
        a.value = 1
        return x * b.value

    f = compile(f)
    box = Box()
    return [f(ones(), Box(), Box()), f(ones(), box, box)]


@case
def written_list_becomes_read_list(compile):
    def f(x, a, b):
        a[0] = 3
        return x * b[0]

    f = compile(f)
    c = [7]
    return [f(ones(), [1], [2]), f(ones(), c, c)]


@case
def mutated_tensors_become_one(compile):
    def f(a, b):
        a.add_(1)
        b.mul_(3)
        return a + b

    f = compile(f)
    c = ones()
    return [f(ones(), ones()), f(c, c)]


@case
def same_list_becomes_two(compile):
    def f(x, a, b):
        a.append(1)
        return x * len(b)

    f = compile(f)
    c = []
    return [f(ones(), c, c), f(ones(), [], [])]


# ---- functions, cells, globals


def counter():
    value = 1

    def bump(by):
        nonlocal value
        value = value + by

    def read():
        return value

    return bump, read


@case
def cell_of_two_closures(compile):
    bump, read = counter()

    def f(x):
        bump(2)
        return x * read()

    f = compile(f)
    return [f(ones()), f(ones()), read()]


@case
def cells_of_two_closures_come_apart(compile):
    def f(x, bump, read):
        bump(2)
        return x * read()

    f = compile(f)
    (bump, read), (other, _) = counter(), counter()
    results = [f(ones(), bump, read), f(ones(), other, read)]
    read.__closure__[0].cell_contents = 1  # as `other`'s was when the first variant was made
    return [*results, f(ones(), counter()[0], read), f(ones(), bump, read), read()]


@case
def read_cells_of_two_closures_come_apart(compile):
    def make(n):
        return (lambda x: x * n), (lambda x: x + n)

    f = compile(lambda x, g, h: g(h(x)))
    (g, h), (_, other) = make(2), make(3)
    return [f(ones(), g, h), f(ones(), g, other)]


@case
def compared_objects_become_one(compile):
    f = compile(lambda x, a, b: x + 1 if a is b else x - 1)
    a = [1]
    return [f(ones(), [1], [1]), f(ones(), a, a), f(ones(), [1], [1])]


@case
def objects_as_keys(compile):
    class Token:
        pass

    f = compile(lambda x, a, b: x * len({a, b}) + {a: 1, b: 2}[a])
    a = Token()
    return [f(ones(), Token(), Token()), f(ones(), a, a), f(ones(), Token(), a)]


@case
def set_order(compile):
    def f(x, items):
        for item in items:
            x = x * 2 + item
        return x

    f = compile(f)
    return [f(ones(), {8, 0}), f(ones(), {0, 8}), f(ones(), {8, 0})]


@case
def cells_of_two_closures_become_one(compile):
    def f(x, bump, read):
        bump(2)
        return x * read()

    f = compile(f)
    (bump, read), (other, _) = counter(), counter()
    return [f(ones(), other, read), f(ones(), bump, read), read()]


@case
def own_cell_and_that_of_a_callee(compile):
    scale = 2

    def set_scale(to):
        nonlocal scale
        scale = to

    def f(x):
        set_scale(scale + 1)
        return x * scale

    f = compile(f)
    return [f(ones()), f(ones()), scale]


@case
def closure_over_another_value(compile):
    def make(n):
        return lambda x: x * n

    f = compile(lambda x, g: g(x))
    return [f(ones(), make(2)), f(ones(), make(3))]


@case
def default_argument_replaced(compile):
    def scaled(x, by=2, *, plus=1):
        return x * by + plus

    f = compile(lambda x: scaled(x))
    results = [f(ones())]
    scaled.__defaults__ = (5,)
    results.append(f(ones()))
    scaled.__kwdefaults__ = {"plus": 9}
    return [*results, f(ones())]


@case
def default_argument_that_is_mutated(compile):
    def collected(x, seen=[]):  # noqa: B006
        seen.append(1)
        return x * len(seen)

    f = compile(lambda x: collected(x))
    return [f(ones()) for _ in range(4)]


@case
def own_default_replaced(compile):
    def scaled(x, by=2):
        return x * by

    f = compile(scaled)
    results = [f(ones())]
    scaled.__defaults__ = (5,)
    return [*results, f(ones())]


@case
def code_replaced(compile):
    def inner(x):
        return x + 1

    def other(x):
        return x - 1

    f = compile(lambda x: inner(x))
    results = [f(ones())]
    inner.__code__ = other.__code__
    return [*results, f(ones())]


@case
def attribute_of_a_function(compile):
    def inner(x):
        return x + inner.bias

    inner.bias = 1
    f = compile(lambda x: inner(x))
    results = [f(ones())]
    inner.bias = 4
    return [*results, f(ones())]


def in_namespace(source: str) -> dict[str, Any]:
    """Globals of a fresh module, which a case may change."""
    space: dict[str, Any] = {"torch": torch, "__name__": "tests_changes_of_a_namespace"}
    exec(source, space)
    return space


@case
def builtin_shadowed_by_a_global(compile):
    space = in_namespace("def f(x, t): return x * len(t)")
    f = compile(space["f"])
    results = [f(ones(), [1, 2])]
    space["len"] = lambda t: 10
    results.append(f(ones(), [1, 2]))
    del space["len"]
    return [*results, f(ones(), [1, 2])]


@case
def global_replaced(compile):
    space = in_namespace("def g(x): return x + 1\nN = 2\ndef f(x): return g(x) * N")
    f = compile(space["f"])
    results = [f(ones())]
    space["N"] = 3
    results.append(f(ones()))
    space["g"] = in_namespace("def g(x): return x - 5")["g"]
    return [*results, f(ones())]


@case
def global_that_is_written(compile):
    space = in_namespace("N = 1\ndef f(x):\n global N\n N += 1\n return x * N")
    f = compile(space["f"])
    return [f(ones()), f(ones()), space["N"]]


@case
def global_deleted(compile):
    space = in_namespace("N = 1\ndef f(x):\n try:\n  return x * N\n except NameError:\n  return x - 1")
    f = compile(space["f"])
    results = [f(ones())]
    del space["N"]
    return [*results, f(ones())]


@case
def partial_contents(compile):
    f = compile(lambda x, g: g(x))
    make = functools.partial
    return [
        *(f(ones(), make(torch.add, alpha=2, other=ones())), f(ones(), make(torch.add, alpha=3, other=ones()))),
        *(f(ones(), make(torch.mul, ones())), f(ones(), make(torch.sub, 3 * ones()))),
        *(f(ones(), make(make(torch.sub, alpha=2), 3 * ones())), f(ones(), make(make(torch.sub, alpha=4), ones()))),
    ]


@case
def bound_method_of_another_object(compile):
    class Scale:
        def __init__(self, n):
            self.n = n

        def run(self, x):
            return x * self.n

    f = compile(lambda x, method: method(x))
    return [f(ones(), Scale(2).run), f(ones(), Scale(3).run)]


@case
def bound_method_of_another_class(compile):
    class A:
        def run(self, x):
            return x * 2

    class B(A):
        def run(self, x):
            return x * 3

    f = compile(lambda x, method: method(x))
    return [f(ones(), A().run), f(ones(), B().run), f(ones(), types.MethodType(A.run, B()))]


# ---- classes


@case
def static_method_replaced(compile):
    class A:
        @staticmethod
        def scale(x):
            return x * 2

    f = compile(lambda x, a: a.scale(x))
    results = [f(ones(), A())]
    A.scale = staticmethod(lambda x: x * 5)
    return [*results, f(ones(), A())]


@case
def static_method_replaced_read_from_the_class(compile):
    class A:
        @staticmethod
        def scale(x):
            return x * 2

    f = compile(lambda x: A.scale(x))
    results = [f(ones())]
    A.scale = staticmethod(lambda x: x * 5)
    return [*results, f(ones())]


@case
def class_method_replaced(compile):
    class A:
        n = 2

        @classmethod
        def scale(cls, x):
            return x * cls.n

    f = compile(lambda x, a: a.scale(x))
    results = [f(ones(), A())]
    A.n = 4
    results.append(f(ones(), A()))
    A.scale = classmethod(lambda cls, x: x - cls.n)
    return [*results, f(ones(), A())]


@case
def class_method_replaced_read_from_the_class(compile):
    class A:
        @classmethod
        def scale(cls, x):
            return x * 2

    f = compile(lambda x: A.scale(x))
    results = [f(ones())]
    A.scale = classmethod(lambda cls, x: x * 7)
    return [*results, f(ones())]


@case
def method_of_a_base_replaced(compile):
    class A:
        def run(self, x):
            return x * 2

    class B(A):
        def run(self, x):
            return super().run(x) + 1

    f = compile(lambda x, b: b.run(x))
    results = [f(ones(), B())]
    A.run = lambda self, x: x * 9
    return [*results, f(ones(), B())]


@case
def attribute_of_a_base_read_through_super(compile):
    class A:
        n = 2

        @property
        def twice(self):
            return self.n * 2

        @classmethod
        def made(cls):
            return 1

    class B(A):
        def run(self, x):
            return x * super().n + super().twice + super().made()

    f = compile(lambda x, b: b.run(x))
    results = [f(ones(), B())]
    A.n = 3
    results.append(f(ones(), B()))
    A.twice = property(lambda self: 100)
    results.append(f(ones(), B()))
    A.made = classmethod(lambda cls: 50)
    return [*results, f(ones(), B())]


@case
def base_between_gets_the_method(compile):
    class A:
        def run(self, x):
            return x * 2

    class M(A):
        pass

    class B(M):
        def run(self, x):
            return super().run(x)

    f = compile(lambda x, b: b.run(x))
    results = [f(ones(), B())]
    M.run = lambda self, x: x * 9
    return [*results, f(ones(), B())]


@case
def property_replaced(compile):
    class A:
        @property
        def n(self):
            return 2

    f = compile(lambda x, a: x * a.n)
    results = [f(ones(), A())]
    A.n = property(lambda self: 7)
    results.append(f(ones(), A()))
    A.n = 11
    return [*results, f(ones(), A())]


@case
def class_attribute_shadowed_by_the_instance(compile):
    class A:
        n = 2

        def run(self, x):
            return x * self.n

    a = A()
    f = compile(lambda x: a.run(x))
    results = [f(ones())]
    a.n = 5
    results.append(f(ones()))
    a.run = lambda x: x - 1
    return [*results, f(ones())]


@case
def class_attribute_turns_into_a_data_descriptor(compile):
    class A:
        pass

    a = A()
    a.n = 2
    f = compile(lambda x: x * a.n)
    results = [f(ones())]
    A.n = property(lambda self: 9)
    return [*results, f(ones())]


@case
def special_method_replaced(compile):
    class A:
        def __call__(self, x):
            return x + 1

        def __len__(self):
            return 2

    a = A()
    f = compile(lambda x: a(x) * len(a))
    results = [f(ones())]
    A.__call__ = lambda self, x: x + 10
    results.append(f(ones()))
    A.__len__ = lambda self: 5
    return [*results, f(ones())]


@case
def getattr_replaced(compile):
    class A:
        def __getattr__(self, name):
            return 2

    a = A()
    f = compile(lambda x: x * a.missing)
    results = [f(ones())]
    A.__getattr__ = lambda self, name: 6
    results.append(f(ones()))
    a.missing = 8
    return [*results, f(ones())]


@case
def getattr_appears(compile):
    class A:
        pass

    a = A()
    f = compile(lambda x: x * getattr(a, "missing", 1))
    results = [f(ones())]
    A.__getattr__ = lambda self, name: 6
    return [*results, f(ones())]


@case
def getattribute_appears(compile):
    class A:
        n = 1

    a = A()
    f = compile(lambda x: x * a.n)
    results = [f(ones())]
    A.__getattribute__ = lambda self, name: 6
    return [*results, f(ones())]


@case
def setattr_appears(compile):
    class A:
        pass

    a = A()

    def f(x):
        a.n = 2
        return x * a.n

    f = compile(f)
    results = [f(ones())]
    A.__setattr__ = lambda self, name, value: object.__setattr__(self, name, value + 1)
    return [*results, f(ones()), a.n]


@case
def class_of_an_object_replaced(compile):
    class A:
        n = 2

    class B:
        n = 3

    a = A()
    f = compile(lambda x: x * a.n)
    results = [f(ones())]
    a.__class__ = B
    return [*results, f(ones())]


@case
def bases_replaced(compile):
    class A:
        n = 2

    class B:
        n = 3

    class C(A):
        pass

    c = C()
    f = compile(lambda x: x * c.n)
    results = [f(ones())]
    C.__bases__ = (B,)
    return [*results, f(ones())]


@case
def init_replaced(compile):
    class A:
        def __init__(self, n):
            self.n = n

    f = compile(lambda x: x * A(2).n)
    results = [f(ones())]

    def init(self, n):
        self.n = n + 1

    A.__init__ = init
    return [*results, f(ones())]


@case
def descriptor_with_state(compile):
    class Field:
        def __init__(self, n):
            self.n = n

        def __get__(self, instance, owner):
            return self.n

    class A:
        n = Field(2)

    f = compile(lambda x, a: x * a.n)
    results = [f(ones(), A())]
    A.__dict__["n"].n = 5
    return [*results, f(ones(), A())]


@case
def slot_value(compile):
    class A:
        __slots__ = ("n",)

        def __init__(self, n):
            self.n = n

    f = compile(lambda x, a: x * a.n)
    a = A(2)
    results = [f(ones(), a), f(ones(), A(3))]
    a.n = 4
    return [*results, f(ones(), a)]


@case
def isinstance_of_a_subclass(compile):
    class A:
        pass

    class B(A):
        pass

    f = compile(lambda x, a: x + 1 if type(a) is A else x - 1 if isinstance(a, A) else x)
    return [f(ones(), A()), f(ones(), B()), f(ones(), 3)]


# ---- modules


class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        return x * self.n


@case
def forward_replaced_on_the_instance(compile):
    model = Scale(2)
    f = compile(lambda x: model(x))
    results = [f(ones())]
    model.forward = lambda x: x - 1
    results.append(f(ones()))
    model.forward = types.MethodType(lambda self, x: x * self.n * 10, model)
    return [*results, f(ones())]


@case
def forward_of_the_instance_deleted(compile):
    model = Scale(2)
    model.forward = lambda x: x - 1
    f = compile(lambda x: model(x))
    results = [f(ones())]
    del model.forward
    return [*results, f(ones())]


@case
def forward_replaced_on_the_class(compile):
    class Own(Scale):
        pass

    model = Own(2)
    f = compile(lambda x: model(x))
    results = [f(ones())]
    Own.forward = lambda self, x: x - self.n
    return [*results, f(ones())]


@case
def submodule_and_order_of_a_sequential(compile):
    model = nn.Sequential(Scale(2), Scale(3))
    f = compile(lambda x: model(x) + 1)
    results = [f(ones())]
    model[0].forward = lambda x: x + 100
    results.append(f(ones()))
    model.append(Scale(7))
    results.append(f(ones()))
    model[1] = nn.Identity()
    return [*results, f(ones())]


@case
def parameter_becomes_a_plain_attribute(compile):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(ones())

        def forward(self, x):
            return x * self.w

    model = Own()
    f = compile(lambda x: model(x))
    results = [f(ones())]
    model.w.data = model.w.data * 3
    results.append(f(ones()))
    del model.w
    model.w = 5
    return [*results, f(ones())]


@case
def training_flag_and_buffer(compile):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.0))
    f = compile(lambda x: model(x))
    x = torch.arange(6.0).reshape(2, 3)
    results = [f(x)]
    model.eval()
    results.append(f(x))
    model[0].running_mean = torch.full((3,), 4.0)
    return [*results, f(x), model[0].running_var]


@case
def extra_attribute_shadows_a_submodule(compile):
    model = nn.Sequential()
    model.inner = Scale(2)
    f = compile(lambda x: model.inner(x))
    results = [f(ones())]
    model.__dict__["inner"] = Scale(9)
    return [*results, f(ones())]


# ---- arguments


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    size: int = 2
    names: tuple = ("a",)


Pair = collections.namedtuple("Pair", "left right")


@case
def enum_argument(compile):
    f = compile(lambda x, c: x + 1 if c is Color.RED else x * c.value)
    return [f(ones(), Color.RED), f(ones(), Color.BLUE)]


@case
def dataclass_argument(compile):
    f = compile(lambda x, c: x * c.size + len(c.names))
    config = Config()
    results = [f(ones(), config), f(ones(), Config(3)), f(ones(), Config(2, ("a", "b")))]
    config.size = 9
    return [*results, f(ones(), config)]


@case
def named_tuple_argument(compile):
    f = compile(lambda x, p: x * p.left + p[1])
    Other = collections.namedtuple("Other", "right left")
    return [f(ones(), Pair(2, 3)), f(ones(), Pair(4, 5)), f(ones(), Pair(ones(), 5)), f(ones(), Other(2, 3))]


@case
def dtype_and_device_arguments(compile):
    f = compile(lambda x, dtype, device: x.to(device=device, dtype=dtype) + 1)
    double, device = torch.float64, torch.device("cpu")
    return [f(ones(), double, device), f(ones(), torch.int64, device), f(ones(), double, "cpu")]


@case
def device_of_another_index(compile):
    f = compile(lambda x, d: x + 1 if d.index is None else x + d.index)
    return [f(ones(), torch.device("cuda")), f(ones(), torch.device("cuda:3")), f(ones(), torch.device("cpu", 0))]


@case
def parameter_for_a_tensor(compile):
    f = compile(lambda x: x + 1 if isinstance(x, nn.Parameter) else x - 1)
    return [f(ones()), f(nn.Parameter(ones())), f(ones())]


class Marked(torch.Tensor):
    pass


@case
def tensor_subclass(compile):
    f = compile(lambda x: (x + 1 if type(x) is torch.Tensor else x - 1).as_subclass(torch.Tensor))
    return [f(ones()), f(ones().as_subclass(Marked)), f(ones())]


@case
def numpy_scalars_and_arrays(compile):
    f = compile(lambda x, n: x * n)
    return [
        *(f(ones(), np.float64(2)), f(ones(), np.float64(3)), f(ones(), np.int64(4)), f(ones(), np.int64(5))),
        *(f(ones(), np.float32(1.5)), f(ones(), 2.0), f(ones(), np.bool_(True))),
    ]


@case
def int_float_and_bool(compile):
    f = compile(lambda x, n: x * n if n else x - 1)
    x = torch.ones(3, dtype=torch.int64)
    return [f(x, 1), f(x, 1.0), f(x, True), f(x, False), f(x, 0.0), f(x, -0.0), f(x, 2**40)]


@case
def nan_and_signed_zero(compile):
    f = compile(lambda x, n: torch.copysign(x, torch.tensor(n)))
    return [f(ones(), 0.0), f(ones(), -0.0), f(ones(), 1.0), f(ones(), -1.0)]


@case
def string_none_and_bytes(compile):
    f = compile(lambda x, n: x + 1 if n is None else x + len(n))
    return [f(ones(), None), f(ones(), "abc"), f(ones(), b"ab"), f(ones(), "abcd")]


@case
def slice_and_range_arguments(compile):
    f = compile(lambda x, s, r: x[s].sum() + len(r))
    return [f(ones(), slice(1), range(2)), f(ones(), slice(2), range(2)), f(ones(), slice(2), range(3))]


@case
def keyword_arguments(compile):
    f = compile(lambda x, *args, **kwargs: x + len(args) + sum(kwargs.values()) * list(kwargs).index("b"))
    return [f(ones(), a=1, b=2), f(ones(), b=2, a=1), f(ones(), 5, b=2, a=1, c=3)]


@case
def requires_grad_and_leaf(compile):
    f = compile(lambda x: x * 2 if x.requires_grad and x.is_leaf else x * 3)
    a = ones().requires_grad_()
    return [f(ones()), f(a), f(a * 1).detach(), f(ones())]


@case
def tensor_attribute(compile):
    x = ones()
    x.tag = 2
    f = compile(lambda x: x * x.tag)
    results = [f(x)]
    x.tag = 3
    return [*results, f(x)]


@case
def view_or_other_memory(compile):
    def f(a, b):
        a.add_(1)
        return b * 2

    f = compile(f)
    base = torch.zeros(6)
    return [f(ones(), ones()), f(base[:3], base[3:]), f(base[:3], base[:3]), f(base[:3], base[2:5]), base]


@case
def grad_of_a_parameter(compile):
    w = nn.Parameter(ones())
    f = compile(lambda x: x + 1 if w.grad is None else x + w.grad)
    results = [f(ones()).detach()]
    w.grad = ones() * 4
    results.append(f(ones()).detach())
    w.grad = ones() * 5
    return [*results, f(ones()).detach()]


@pytest.mark.parametrize("program", CASES, ids=lambda one: one.__name__)
def test_a_change_is_noticed(lab, equal, program) -> None:
    expected = program(lambda function: function)
    got = program(lab.compile)
    equal(copy.copy(got), copy.copy(expected))
    assert lab.failures == [None] * len(lab.failures), "a guard fails on the call it was made from"
