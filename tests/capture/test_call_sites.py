"""Which operations resume when code that they call breaks the graph, and which break in front of them."""

from __future__ import annotations

import functools
from collections import defaultdict

import pytest
import torch


def opaque(x):
    """Something that is not traced."""
    return x


opaque._torchdynamo_disable = True


def function(x):
    return opaque(x * 2)


def from_method(self, *args):
    return opaque(args[-1] * 2) if args and isinstance(args[-1], torch.Tensor) else opaque(torch.ones(2))


def write(self, *args):
    object.__getattribute__(self, "__dict__")["written"] = opaque(args[-1])


class Getter:
    def __get__(self, instance, owner):
        return opaque(instance.scale * 3)

    def __set__(self, instance, value):
        instance.__dict__["_field"] = opaque(value)


class Subject:
    """Every special method calls something that is not traced."""

    field = Getter()

    def __init__(self):
        self.scale = torch.full((2,), 3.0)
        self.computed = 0

    __call__ = __getitem__ = __add__ = __lt__ = __neg__ = __enter__ = from_method
    __setitem__ = __delitem__ = __exit__ = write

    @property
    def size(self):
        return opaque(self.scale + 1)

    @size.setter
    def size(self, value):
        self.written = opaque(value)

    @functools.cached_property
    def once(self):
        self.computed += 1
        return opaque(self.scale + self.computed)

    def __iter__(self):
        return opaque(iter([self.scale]))

    def __len__(self):
        return opaque(3)

    def __contains__(self, item):
        return opaque(True)


class Dynamic:
    def __getattr__(self, name):
        return opaque(torch.full((2,), len(name)))


class Writes:
    __setattr__ = __delattr__ = write


class ReadsAll:
    def __getattribute__(self, name):
        return opaque(torch.full((2,), len(name)))


class Point:
    def __init__(self, x):
        self.x = opaque(x)


class Made:
    def __new__(cls, x):
        opaque(x)
        return object.__new__(cls)


class Falsy:
    def __bool__(self):
        return opaque(False)


class Items:
    @classmethod
    def __class_getitem__(cls, key):
        return opaque(torch.ones(2))


class Missing(dict):
    def __missing__(self, key):
        return opaque(torch.ones(2))


class Child(Subject):
    def grown(self):
        return super().size


class Layer(torch.nn.Module):
    def forward(self, x):
        return opaque(x * 2)


def make(kind):
    return defaultdict(lambda: opaque(torch.ones(2))) if kind is defaultdict else kind()


def set_item(o, x):
    o[0] = x
    return o.written


def del_item(o, x):
    del o[x]
    return o.written


def set_property(o, x):
    o.size = x
    return o.written


def set_descriptor(o, x):
    o.field = x
    return o._field


def set_attribute(o, x):
    o.anything = x
    return o.written


def delete_attribute(o, x):
    del o.anything
    return o.written


def in_loop(o, x):
    return sum(item * x for item in o)


def in_plain_loop(o, x):
    for item in o:
        x = x + item
    return x


def in_with(o, x):
    with o as value:
        return value + x


def default_item(o, x):
    return o["k"] + x, o["k"] is o["k"], len(o)


def once(o, x):
    return o.once + x, o.once + x, o.computed


# The operation, the class of its operand, the number of frames that the break resumes.
OPERATIONS = {
    "call of a function": (lambda o, x: function(x) + 1, Subject, 2),
    "call of an instance": (lambda o, x: o(x) + 1, Subject, 2),
    "call of a module": (lambda o, x: o(x) + 1, Layer, 2),
    "call of a partial": (lambda o, x: functools.partial(function, x)() + 1, Subject, 2),
    "constructor": (lambda o, x: Point(x * 2).x + 1, Subject, 2),
    "subscript": (lambda o, x: o[0] + x, Subject, 2),
    "subscript of a class": (lambda o, x: Items["k"] + x, Subject, 2),
    "assignment to a subscript": (set_item, Subject, 2),
    "deletion of a subscript": (del_item, Subject, 2),
    "property": (lambda o, x: o.size + x, Subject, 2),
    "property through super": (lambda o, x: o.grown() + x, Child, 3),
    "descriptor": (lambda o, x: o.field + x, Subject, 2),
    "__getattr__": (lambda o, x: o.anything + x, Dynamic, 2),
    "property setter": (set_property, Subject, 2),
    "descriptor setter": (set_descriptor, Subject, 2),
    "__setattr__": (set_attribute, Writes, 2),
    "__delattr__": (delete_attribute, Writes, 2),
    "start of a loop": (in_plain_loop, Subject, 2),
    "start of a generator expression": (in_loop, Subject, 2),
    "__getattribute__": (lambda o, x: o.anything + x, ReadsAll, 1),
    "__new__": (lambda o, x: type(Made(x)) is Made and x, Subject, 1),
    "binary operator": (lambda o, x: (o + x) + 1, Subject, 1),
    "comparison": (lambda o, x: (o < x) + 1, Subject, 1),
    "unary operator": (lambda o, x: -o + x, Subject, 1),
    "truth": (lambda o, x: x if o else x + 1, Falsy, 1),
    "membership": (lambda o, x: x + (1 in o), Subject, 1),
    "builtin function": (lambda o, x: x + len(o), Subject, 1),
    "getattr": (lambda o, x: getattr(o, "size") + x, Subject, 1),  # noqa: B009
    "with": (in_with, Subject, 2),
    "missing key": (lambda o, x: o["k"] + x, Missing, 1),
    "default factory": (default_item, defaultdict, 1),
    "cached property": (once, Subject, 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(lab, equal, name):
    program, kind, frames = OPERATIONS[name]
    x = torch.ones(2)
    expected = program(make(kind), x)
    got = lab.compile(program)(make(kind), x)
    equal(got, expected)
    assert lab.skipped() == []
    assert len(lab.captures[0].breaks[0].frames) == frames
