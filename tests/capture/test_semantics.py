"""Python's semantics: captured functions give eager's results in one graph."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import math
import operator

import pytest
import torch

Pair = collections.namedtuple("Pair", "left right")
SCALE = 3


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    size: int = 2
    name: str = "c"


class Base:
    factor = 2

    def __init__(self, scale):
        self.scale = scale

    @property
    def double(self):
        return self.scale * 2

    @classmethod
    def make(cls, scale):
        return cls(scale)

    @staticmethod
    def add(a, b):
        return a + b

    def __call__(self, x):
        return x * self.scale

    def __getitem__(self, key):
        return self.scale + key

    def __len__(self):
        return 4

    def __add__(self, other):
        return self.scale + other

    def __eq__(self, other):
        return isinstance(other, Base) and self.scale == other.scale

    __hash__ = None


class Derived(Base):
    def __init__(self, scale):
        super().__init__(scale + 1)

    def __getattr__(self, name):
        if name.startswith("lazy_"):
            return len(name)
        raise AttributeError(name)


def arithmetic(x, n):
    y = (x + n) * 2 - x / (n + 1) // 1
    y += n**2
    return -y, ~(y > 0), n % 2, n << 1, divmod(n, 2), round(n / 3, 2)


def comparisons(x, n):
    return x > n, n == 3, n != 3, 1 < n < 5, x is None, n in (1, 3), n not in [3], not n


def branches(x, n):
    if n > 2 and x.dim() == 2:
        x = x + 1
    elif n:
        x = x - 1
    return x if n else -x, n or 5, n and 6


def loops(x, n):
    total = x * 0
    for i in range(n):
        if i == 1:
            continue
        total = total + x * i
    else:
        total = total + 1
    while n > 0:
        n -= 1
        if n == 1:
            break
    return total, n


def containers(x, n):
    items = [x, x + 1, *[x * i for i in range(n)]]
    items.append(n)
    items[0] = "first"
    d = dict(a=1, b=items[1:3])
    d.setdefault("c", []).append(x)
    s = {1, 2, n} | {7}
    (first, *rest), last = items[:3], items[-1]
    return items, d, sorted(s), first, rest, last, list(d.items()), d.pop("a"), len(items), tuple(reversed([1, 2]))


def strings(x, n):
    text = f"{n:>4}|{n!r}|{x.shape[0]}" + "abc".upper()
    return text.split("|"), operator.mod("%d-%s", (n, "q")), ",".join(str(i) for i in range(n)), text[1:3], "b" in "abc"


def closures(x, n):
    count = 0

    def bump(by=1, *, twice=False):
        nonlocal count
        count += by * (2 if twice else 1)
        return count

    bump()
    bump(2, twice=True)
    fs = [lambda y, i=i: y + i for i in range(n)]
    return count, [f(x) for f in fs], functools.partial(operator.add, x)(n)


def arguments(x, n):
    def f(a, /, b, *args, c=5, **kwargs):
        return a + b, args, c, kwargs

    return f(x, n), f(x, n, 1, 2, c=3, d=4), f(*[x, n], z=1)


def classes(x, n):
    a, b = Base(n), Derived.make(n)
    a.extra = x
    return (
        a(x),
        a.double,
        b.double,
        a[1],
        len(a),
        a + 1,
        a == Base(n),
        b.lazy_thing,
        hasattr(b, "nope"),
        Base.add(1, 2),
        a.extra,
        a.factor,
    )


def dataclass_and_enum(x, n):
    c = dataclasses.replace(Config(size=n), name="d")
    p = Pair(x, right=n)
    return c.size, c.name, p.left, p[1], p, Color.RED.value, Color(2) is Color.BLUE, Color["RED"] == Color.RED


def exceptions(x, n):
    log = []
    try:
        try:
            raise ValueError("bad", n)
        except KeyError:
            log.append("no")
        finally:
            log.append("finally")
    except (ValueError, TypeError) as error:
        log.append(error.args)
    try:
        {}["missing"]
    except KeyError as error:
        log.append(str(error))
    else:
        log.append("else")
    return x + 1, log


def generators(x, n):
    def gen(k):
        for i in range(k):
            got = yield x + i
            assert got is None
        yield from (10, 20)
        return 5

    def outer():
        result = yield from gen(n)
        yield result

    return list(outer()), sum(i for i in range(n)), any(i > 1 for i in range(n)), next(iter([n]), None)


def iteration(x, n):
    pairs = [(i, a, b) for i, (a, b) in enumerate(zip("abc", [1, 2, 3], strict=False), 1)]
    return (
        pairs,
        list(map(lambda v: v + n, [1, 2])),
        list(filter(None, [0, 1])),
        max([3, n, 1]),
        min(4, n),
        {k: v for k, v in zip("xy", [x, n], strict=True)},
        {i % 2 for i in range(4)},
    )


def sizes(x, n):
    b, c = x.shape
    return (
        x.view(c, b),
        x.size(0),
        x.shape[-1],
        x.numel(),
        math.prod(x.shape),
        math.sqrt(c),
        x.reshape(-1, *x.shape[:1]),
        len(x),
        x[None, :, 1:],
        x[..., 0],
    )


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield "value"
    finally:
        log.append("out")


def with_statements(x, n):
    log = []
    with managed(log) as v:
        y = x + 1
        log.append(v)
    with contextlib.suppress(ValueError):
        raise ValueError
    with torch.no_grad():
        grad = torch.is_grad_enabled()
    return y, log, grad, torch.is_grad_enabled()


def uses_globals(x, n):
    return x * SCALE, math.pi, isinstance(x, torch.Tensor), type(n) is int, callable(len), getattr(x, "nope", 7)


@torch.no_grad()
def decorated(x, n):
    return x.exp(), torch.is_grad_enabled()


def star_unpacking(x, n):
    a, (b, *c) = 1, [2, 3, 4]
    return [*range(n), *c], {"k": x, "z": a}, (lambda *v: v)(*"ab"), b


def dict_views(x, n):
    d = {"a": 1, "b": 2}
    return (
        d.keys() & {"a", "q"},
        list(d.values()),
        ("a", 1) in d.items(),
        {**d, "c": n} | {"d": x},
        sorted(d, reverse=True),
        dict(sorted(d.items(), key=lambda kv: -kv[1])),
    )


def sorting(x, n):
    rows = [(2, "b"), (1, "a"), (n, "c")]
    rows.sort(key=operator.itemgetter(0)) if False else rows.sort(key=lambda r: r[1], reverse=True)
    return rows, [1, 2] < [1, 3], tuple([1]) + tuple([n]), [0] * n, [1] == [1], rows.index((1, "a"))


def constant_results(x, n):
    def checked(name):
        return True, "", (1, "ab")

    valid, _, (one, letters) = checked("a")
    return x * valid, [item for item in checked("b")], one, "a" in letters, checked("c")[::2], len(checked("d"))


FUNCTIONS = [
    *(arithmetic, comparisons, branches, loops, containers, strings, closures, arguments, classes, dataclass_and_enum),
    *(
        exceptions,
        generators,
        iteration,
        sizes,
        with_statements,
        uses_globals,
        decorated,
        star_unpacking,
        dict_views,
        sorting,
        constant_results,
    ),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph_equal_to_eager(same, function):
    same(function, torch.randn(2, 3), 3)
