# ruff: noqa  (odd Python is the point)
"""More of Python in one graph: captured programs give eager's results without a break."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


@dataclasses.dataclass
class Point:
    x: int
    y: object = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    size: int
    items: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "twice", self.size * 2)


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


# ---- match


@program
def match_constants(x):
    def kind(v):
        match v:
            case 0 | 1:
                return "small"
            case int() if v > 100:
                return "large"
            case "a":
                return "letter"
            case None:
                return "none"
            case _:
                return "other"

    return x + 1, [kind(v) for v in (0, 1, 7, 101, "a", None, 2.5)]


@program
def match_sequences(x):
    def kind(v):
        match v:
            case []:
                return "empty"
            case [a]:
                return ("one", a)
            case (1, b):
                return ("pair", b)
            case [a, *rest, b]:
                return ("many", a, rest, b)
            case _:
                return "other"

    return x * 2, [kind(v) for v in ([], (3,), [1, 2], (2, 3, 4, 5), "ab", {1: 2})]


@program
def match_mappings(x):
    def kind(v):
        match v:
            case {"op": "add", "n": n}:
                return ("add", n)
            case {"op": op, **rest}:
                return (op, rest)
            case {}:
                return "map"
            case _:
                return "other"

    return x, [kind(v) for v in ({"op": "add", "n": 3}, {"op": "mul", "k": 1}, {"z": 1}, [1])]


@program
def match_classes(x):
    def kind(v):
        match v:
            case torch.Tensor(shape=shape):
                return ("tensor", shape)
            case Point(0, y):
                return ("axis", y)
            case Point(x=a, y=Point(y=b)):
                return ("nested", a, b)
            case Color.RED:
                return "red"
            case str(s) | bytes(s):
                return s
            case int(n) | float(n):
                return n
            case _:
                return "other"

    values = (Point(0, 5), Point(1, Point(2, 3)), Color.RED, "s", b"b", x, Point(1, 2), 3.5, True, [])
    return [kind(v) for v in values]


# ---- generators


@program
def generator_expression_consumed_in_part(x):
    g = (x * i for i in range(5))
    first = next(g)
    second = next(g)
    return first + second, sum(g)


@program
def generator_as_local(x):
    def numbers(n):
        total = 0
        for i in range(n):
            sent = yield total
            total += i if sent is None else sent
        return total

    g = numbers(4)
    a = next(g)
    b = g.send(10)
    rest = list(g)
    return x + a + b, rest


@program
def yield_from_with_result(x):
    def inner():
        got = yield 1
        try:
            yield got
        except ValueError as error:
            yield str(error)
        return "done"

    def outer():
        result = yield from inner()
        yield result

    g = outer()
    return x, next(g), g.send(5), g.throw(ValueError("bad")), next(g), list(g)


@program
def generator_closed_early(x):
    log = []

    def g():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    it = g()
    next(it)
    it.close()
    return x, log


@program
def generator_pipeline(x):
    def evens(source):
        yield from (i for i in source if i % 2 == 0)

    return [x * i for i in itertools.islice(evens(itertools.count(1)), 3)]


# ---- exceptions


@program
def finally_in_callee(x):
    log = []

    def f(n):
        try:
            if n == 0:
                return "zero"
            if n == 1:
                raise KeyError(n)
            return n
        except KeyError:
            log.append("except")
            return "key"
        finally:
            log.append(n)

    return x + 1, [f(i) for i in range(3)], log


class Own(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


@program
def nested_exceptions(x):
    def f():
        try:
            raise Own(3)
        except Own as error:
            raise ValueError("outer") from error

    try:
        f()
    except ValueError as error:
        return x, str(error), error.__cause__.code, str(error.__cause__)


@program
def loop_with_continue_in_finally(x):
    log = []
    for i in range(3):
        try:
            if i == 1:
                continue
            log.append(i)
        finally:
            log.append(-i)
    else:
        log.append("else")
    return x, log


@program
def assertion(x):
    try:
        if x.dim() != 7:
            raise AssertionError(f"dim is {x.dim()}")
    except AssertionError as error:
        return x + 1, str(error)


# ---- context managers


class Scaled:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append("exit" if kind is None else kind.__name__)
        return self.swallow


@contextlib.contextmanager
def managed(log, name):
    log.append(f"+{name}")
    try:
        yield name
    except ValueError:
        log.append("caught")
    finally:
        log.append(f"-{name}")


@program
def class_based_managers(x):
    log = []
    with Scaled(log) as one, Scaled(log, swallow=True):
        y = x * 2
        raise KeyError("inside")
    return y, log, one.swallow


@program
def generator_based_managers(x):
    log = []
    with managed(log, "a") as a, managed(log, "b"):
        y = x + len(a)
        raise ValueError("b catches")
    return y, log


@program
def manager_as_decorator(x):
    log = []

    @managed(log, "d")
    def f(v):
        return v + 1

    return f(x), f(x), log


@program
def exit_stack_and_nullcontext(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed(log, "s"))
        stack.callback(log.append, "called")
        with contextlib.nullcontext(3) as n:
            y = x * n
    return y, log


@torch.no_grad()
def without_grad(v):
    return v * 2, torch.is_grad_enabled()


@program
def no_grad_as_decorator(x):
    @torch.no_grad
    def inner(v):
        return torch.is_grad_enabled()

    @torch.enable_grad()
    def other(v):
        return torch.is_grad_enabled()

    with torch.no_grad():
        state = other(x)
    return *without_grad(x), inner(x), state, torch.is_grad_enabled()


@program
def inference_and_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.mT
    with torch.set_grad_enabled(False):
        z = x * 2
    return y, z


# ---- functions


@program
def walrus_and_star(x):
    if (n := len(x.shape)) > 1:
        a, *b, c = range(n + 2)
    total = [y := 1, y**2, *(b or [0])]
    first, (second, *third) = 1, (2, 3, 4)
    return x + n, total, a, c, first, second, third, {**{"k": 1}, "l": 2}, [*"ab", *(1, 2)]


@program
def nested_functions_with_nonlocal(x):
    count = 0

    def outer(step):
        nonlocal count

        def inner():
            nonlocal count, step
            count += step
            step += 1
            return count

        return inner

    f, g = outer(1), outer(10)
    return x, f(), f(), g(), f(), count


@program
def recursion(x):
    def depth(n):
        return n if n == 0 else 1 + depth(n - 1)

    def fold(v, n):
        return v if n == 0 else fold(v * 2, n - 1)

    return fold(x, 3), depth(10)


def logged(log):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            log.append(f.__name__)
            return f(*args, **kwargs)

        return wrapper

    return decorate


@program
def wraps_and_cache(x):
    log = []

    @logged(log)
    def scaled(v, by=2):
        return v * by

    @functools.lru_cache(maxsize=None)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return scaled(x), scaled(x, by=3), log, scaled.__name__, fib(10)


@program
def keyword_handling(x):
    def f(a, /, b=1, *args, c, d=4, **kwargs):
        return a, b, args, c, d, kwargs

    options = {"c": 3, "e": 5}
    partial = functools.partial(f, x, d=9)
    return f(x, **options), f(x, 2, 3, c=1), partial(c=2), partial(7, 8, c=1, z=0)


@program
def defaults_are_evaluated_once(x):
    def f(v, seen=[]):
        seen.append(v)
        return len(seen)

    return x, f(1), f(2), f(3)


@program
def lambdas_and_higher_order(x):
    compose = lambda *fs: functools.reduce(lambda f, g: lambda v: g(f(v)), fs)
    return (
        compose(torch.sin, lambda v: v * 2)(x),
        list(map(lambda a, b: a * b, [1, 2], [3, 4])),
        operator.itemgetter(1, 0)([5, 6]),
        operator.attrgetter("shape")(x)[0],
        operator.methodcaller("sum")(x),
    )


@program
def signature_and_names(x):
    def f(a, b=2, *, c=3):
        return a

    return x, f.__name__, f.__defaults__, f.__kwdefaults__, callable(f)


# ---- classes


@program
def dataclass_construction(x):
    p = Point(1, x)
    q = dataclasses.replace(p, x=3)
    f = Frozen(2, (1, 2))
    return p.y + q.x, p == Point(1, x), f.twice, f == Frozen(2, (1, 2)), dataclasses.asdict(Point(1, 2)), f.items


@program
def dataclass_result(x):
    return Point(1, x * 2), [Point(2, 3)]


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance, value):
        setattr(instance, self.name, abs(value))


class Described:
    size = Positive()

    def __init__(self, size):
        self.size = size


@program
def descriptors(x):
    d = Described(-3)
    d.size -= 10
    return x * d.size, d._size


class Shape:
    __slots__ = ("h", "w")

    def __init__(self, h, w):
        self.h, self.w = h, w

    @property
    def area(self):
        return self.h * self.w

    @area.setter
    def area(self, value):
        self.w = value // self.h

    def __eq__(self, other):
        return isinstance(other, Shape) and (self.h, self.w) == (other.h, other.w)

    def __lt__(self, other):
        return self.area < other.area

    def __hash__(self):
        return hash((self.h, self.w))

    def __repr__(self):
        return f"Shape({self.h}, {self.w})"

    def __iter__(self):
        yield self.h
        yield self.w

    def __contains__(self, item):
        return item in (self.h, self.w)

    def __bool__(self):
        return self.area > 0

    def __neg__(self):
        return Shape(-self.h, self.w)

    def __rmul__(self, other):
        return Shape(self.h * other, self.w)

    def __iadd__(self, other):
        self.h += other
        return self

    def __format__(self, spec):
        return f"<{spec}>"


@program
def user_operators(x):
    a, b = Shape(2, 3), Shape(4, 1)
    a += 1
    a.area = 9
    h, w = 2 * b
    return x * a.area, repr(a), f"{b:z}", h, w, 3 in a, bool(b), (-b).h, sorted([a, b])[0] is b, min(a, b).h, a != b


@program
def inheritance(x):
    return Child(2).run(x), Child.made(3).n, isinstance(Child(1), Base), Child.__mro__[1].__name__, Child(1).kind


class Base:
    kind = "base"
    registry = {}

    def __init__(self, n):
        self.n = n

    def __init_subclass__(cls, **kwargs):
        Base.registry[cls.__name__] = cls

    def run(self, x):
        return x * self.n

    @classmethod
    def made(cls, n):
        return cls(n)


class Mixin:
    def run(self, x):
        return super().run(x) + 1


class Child(Mixin, Base):
    kind = "child"

    def __init__(self, n):
        super().__init__(n)
        self.m = n + 1

    def run(self, x):
        return super().run(x) * self.m


@program
def enums(x):
    return (
        x * Color.RED,
        Color(2).name,
        Color.RED < Color.BLUE,
        [c.value for c in Color],
        Color["BLUE"],
        Flags.A in (Flags.A | Flags.B),
        len(Color),
        isinstance(Color.RED, int),
    )


# ---- the standard library


@program
def collections_types(x):
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    ordered["c"] = 3
    ordered.move_to_end("c", last=False)
    first = ordered.popitem(last=False)
    groups = collections.defaultdict(list)
    for i in range(4):
        groups[i % 2].append(x * i)
    counted = collections.Counter("abca")
    counted.update("b")
    queue = collections.deque([1, 2, 3], maxlen=3)
    queue.append(4)
    queue.appendleft(0)
    popped = queue.pop()
    chain = collections.ChainMap({"a": 1}, {"b": 2})
    return (
        list(ordered), first, dict(groups), counted["a"], counted.most_common(1), list(queue), popped, chain["b"],
        sum(counted.values()),
    )  # fmt: skip


@program
def itertools_functions(x):
    return (
        list(itertools.chain([1], (2, 3))),
        list(itertools.product("ab", [1, 2])),
        list(itertools.combinations(range(4), 2))[:2],
        list(itertools.permutations([1, 2, 3], 2))[-1],
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([1, 2, 3], operator.mul)),
        list(itertools.zip_longest([1, 2], [3], fillvalue=0)),
        list(itertools.repeat(x, 2)),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])],
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.pairwise([1, 2, 3])),
        list(itertools.islice(itertools.cycle([1, 2]), 3)),
        list(itertools.filterfalse(None, [0, 1])),
    )


@program
def math_and_operator(x):
    return (
        math.floor(2.5), math.ceil(x.shape[0] / 2), math.log2(8), math.gcd(4, 6), math.isclose(1.0, 1.0), math.inf,
        math.prod([2, 3]), operator.add(x, 1), operator.neg(3), operator.contains([1], 1), operator.truth([]),
        operator.setitem({}, 1, 2), operator.concat([1], [2]), round(2.567, 2), divmod(7, 3), abs(-2), pow(2, 3, 5),
        operator.length_hint([1, 2]), sum([[1], [2]], []), hash("a") == hash("a"), bin(5), float("1.5"), int("7", 8),
    )  # fmt: skip


@program
def typing_and_copy(x):
    y = typing.cast(torch.Tensor, x)
    data = {"a": [1, 2], "p": Point(1, [2])}
    deep, shallow = copy.deepcopy(data), copy.copy(data)
    deep["a"].append(3)
    shallow["a"].append(4)
    return y + 1, data["a"], deep["a"], deep["p"] == data["p"]


@program
def strings(x):
    name, n = "layer", 3
    words = "a,b;c".replace(";", ",").split(",")
    return (
        f"{name!r:>10}|{n:03d}|{x.shape}|{x.dtype}|{n=}", "%s-%d" % (name, n), f"{1}:{2}",
        "-".join(words), name.startswith(("la", "x")), name[::-1], name.partition("y"), "a" * n, name.title(), n.__str__(),
        str([1, "a"]), str(x.shape), int("7", base=8), round(2.5678, ndigits=2), str({"k": (1, None)}), b"x", b"ab".decode(), "abc".find("c"), ord("a"),
        "é".isalpha(), " a ".strip(), ["1", "2"], sorted("bca"), "a" in name, max("abc"), name.count("l"), f"{1.5:.2f}",
    )  # fmt: skip


@program
def list_methods(x):
    a = [3, 1, 2]
    a.sort(reverse=True)
    a.insert(1, 9)
    a.extend(i for i in (7, 8))
    a.remove(9)
    a += [5]
    a[1:3] = [0]
    del a[-1]
    b = a.copy()
    b.reverse()
    b.pop(0)
    return (
        x,
        a,
        b,
        a.index(0),
        [1, 2, 1].index(1, 1),
        a.count(0),
        a == b,
        a < b,
        a * 2,
        [1] + a,
        a[::2],
        [[]] * 2,
        list(reversed(a)),
        any(a),
        all(a),
    )


@program
def set_methods(x):
    a, b = {1, 2, 3}, frozenset({2, 4})
    a.discard(9)
    a |= {5}
    a -= {1}
    b |= {9}
    c = {1, 2}
    c ^= {2, 3}
    c &= {3, 4}
    c.add(c.pop())
    try:
        a.remove(77)
    except KeyError as error:
        missing = error.args
    c.update([5], (6,))
    c.difference_update([5])
    c.intersection_update({6, 7})
    return (
        c, missing, x, sorted(a | b), sorted(a & b), sorted(a ^ b), a.isdisjoint({9}), a >= {2}, b.union([7]) == {2, 4, 7, 9},
        sorted(a.symmetric_difference(b)), a.issuperset({2}), {i % 2 for i in range(5)}, len(a), 3 in a, sorted(a.difference(b)),
    )  # fmt: skip


@program
def dict_methods(x):
    d = {"a": 1, "b": x}
    d.update(c=3)
    d |= {"e": 5}
    popped = d.pop("a"), d.pop("zz", None), d.setdefault("f", []), d.get("q", 7)
    d["f"].append(1)
    return (
        d, popped, list(d), dict.fromkeys("ab", 0), {v: k for k, v in {"x": 1}.items()}, d.keys() - {"c"} == {"b", "e", "f"},
        list(d.items())[-1], len(d), "c" in d, list(reversed(d)), dict([("k", 1)], z=2), next(iter(d)), d.popitem()[0],
    )  # fmt: skip


@program
def zips_and_ranges(x):
    r = range(10, 0, -3)
    return (
        list(r), len(r), r[1], 4 in r, r[::2], list(zip(r, "ab")), list(enumerate("ab", 5)), list(zip(*[(1, 2), (3, 4)])),
        [i for i, _ in zip(itertools.count(), x)], sum(range(5)), max(r), list(filter(lambda v: v > 4, r)), range(3) == range(3),
    )  # fmt: skip


@program
def comprehensions(x):
    grid = [[i * j for j in range(3)] for i in range(2)]
    return (
        x,
        grid,
        {i: [j for j in range(i)] for i in range(3)},
        [a for r in grid for a in r if a],
        {(i, -i) for i in range(2)},
    )


@program
def tensor_containers(x):
    parts = x.unbind(0)
    stacked = torch.stack([p * i for i, p in enumerate(parts)])
    a, b = x.split([1, x.shape[1] - 1], dim=1)
    values, indices = x.max(dim=1)
    state = dict(zip("ab", (a, b), strict=True))
    return (
        stacked,
        torch.cat(list(state.values()), 1),
        values,
        indices,
        [t.shape for t in x],
        x[:, [0, 1]],
        x[x.new_zeros(2).long()],
    )


@program
def tensor_methods_and_indexing(x):
    y = x.clone()
    y[0] = 1.0
    y[:, 1] += 2
    y[..., -1:] = x[..., :1]
    y.add_(1).mul_(2)
    y[torch.tensor([True, False])] = 0
    return y, x.view(-1)[None], x.T.contiguous().flatten(), x.unsqueeze(-1).expand(-1, -1, 2), x.new_ones(2)


@program
def isinstance_checks(x):
    return (
        isinstance(x, (int, torch.Tensor)), isinstance(3, int | str), issubclass(bool, int), type(x) is torch.Tensor,
        isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping), isinstance(x, nn.Parameter),
        hasattr(x, "shape"), hasattr(3, "nope"), callable(F.relu), isinstance(None, type(None)), torch.is_tensor(x),
    )  # fmt: skip


@program
def ternaries_and_chains(x):
    n = x.shape[0]
    return (
        (x if n else -x),
        0 < n <= 5 != 7,
        n or 1,
        n and "yes",
        not n,
        n is not None,
        (n > 1) ^ True,
        ~n,
        n << 2,
        -n // 2,
        -7 % 3,
    )


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_one_graph(same, function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(function, torch.arange(6.0).reshape(2, 3))


def test_modules_made_inside_after_torch_compile_has_run(lab, equal):
    """torch.compile replaces `nn.Module.__init__` by one that records each module."""

    class GenerationTracker:
        seen = []

        @classmethod
        def tag(cls, module):
            cls.seen.append(id(module))

    GenerationTracker.tag.__func__.__module__ = "torch._dynamo.mutation_guard"
    GenerationTracker.tag.__func__.__qualname__ = "GenerationTracker.tag"
    plain = nn.Module.__init__

    def patched(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        GenerationTracker.tag(self)

    def loss(x):
        return nn.MSELoss()(x, x + 1)

    x = torch.randn(3)
    expected = loss(x)
    nn.Module.__init__ = patched
    try:
        equal(lab.compile(loss)(x), expected)
    finally:
        nn.Module.__init__ = plain
    assert len(lab.captures) == 1
    assert lab.breaks() == []


def test_operators_by_their_path(lab, equal):
    def function(x):
        return torch.ops.aten.mul.Tensor(x, x) + torch.ops.aten.relu(x)

    x = torch.randn(3)
    equal(lab.compile(function)(x), function(x))
    assert lab.breaks() == [] and len(lab.captures) == 1
