"""Closures, containers and their order, classes, numbers and strings of Python."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats

PROGRAMS = Programs("python")
program, scenario = PROGRAMS.program, PROGRAMS.scenario
FACTOR = 2.0
REGISTRY: dict[str, Any] = {}


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclasses.dataclass
class Box:
    value: Tensor
    items: list[Any] = dataclasses.field(default_factory=list)
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    size: int
    name: str = "a"


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@scenario
def a_variable_of_the_closure_that_changes(compile: Compile) -> Iterator[Any]:
    scale = 2

    def scaled(x: Tensor) -> Tensor:
        return x * scale

    f = compile(scaled)
    for scale in (2, 3, 3, 2.5, True):  # noqa: B007
        yield f(torch.ones(2))


@scenario
def nonlocal_counts(compile: Compile) -> Iterator[Any]:
    count, total = 0, torch.zeros(2)

    def counted(x: Tensor) -> Tensor:
        nonlocal count, total
        count += 1
        total = total + x
        return x * count

    f = compile(counted)
    for n in range(4):
        yield f(torch.full((2,), float(n))), count, total


@scenario
def a_global_that_changes(compile: Compile) -> Iterator[Any]:
    global FACTOR

    def scaled(x: Tensor) -> Tensor:
        global FACTOR
        FACTOR = FACTOR + 1
        return x * FACTOR

    FACTOR = 2.0
    f = compile(scaled)
    for _ in range(3):
        yield f(torch.ones(2)), FACTOR
    FACTOR = 10.0
    yield f(torch.ones(2)), FACTOR


@scenario
def closures_made_in_a_loop(compile: Compile) -> Iterator[Any]:
    def make(x: Tensor) -> Any:
        late = [lambda: x * i for i in range(3)]  # noqa: B023
        early = [lambda i=i: x * i for i in range(3)]
        return [g() for g in late], [g() for g in early]

    f = compile(make)
    yield f(floats(2))
    yield f(floats(3))


@scenario
def a_function_returned(compile: Compile) -> Iterator[Any]:
    def make(x: Tensor) -> Any:
        y = x * 2

        def inner(z: Tensor) -> Tensor:
            return y + z

        return inner, y

    f = compile(make)
    for n in (2, 2, 3):
        inner, y = f(floats(n))
        y.add_(1)
        yield inner(torch.ones(n)), y


@scenario
def a_dictionary_and_its_order(compile: Compile) -> Iterator[Any]:
    def ordered(d: dict[str, Tensor]) -> Any:
        d["z"] = d.pop("a") * 2
        d.setdefault("new", d["b"])
        return list(d), dict(reversed(d.items())), {**d, "b": 1}, sum(d.values())

    f = compile(ordered)
    for keys in ("ab", "ba", "bca"):
        d = {key: floats(2) for key in keys}
        yield f(d), d


@scenario
def dictionaries_with_tensors_as_keys(compile: Compile) -> Iterator[Any]:
    def keyed(x: Tensor, y: Tensor) -> Any:
        d = {x: 1, y: 2}
        return len(d), d[x], x in d

    f = compile(keyed)
    x = floats(2)
    yield f(x, floats(2))
    yield f(x, x)


@program()
def dictionary_views(x: Tensor) -> Any:
    d = {"a": x, "b": x + 1}
    keys, values = d.keys(), d.values()
    d["c"] = x + 2
    return list(keys), list(values), d.keys() & {"a", "z"}, "c" in keys, d | {"a": 1}


@program()
def default_and_ordered_dictionaries(x: Tensor) -> Any:
    d: Any = collections.defaultdict(list)
    d["a"].append(x)
    d["b"].append(x * 2)
    o = collections.OrderedDict(p=x, q=1)
    o.move_to_end("p")
    return dict(d), d, o, collections.Counter("hello").most_common(1), len(d["zzz"])


@program()
def sets_of_numbers(x: Tensor) -> Any:
    s = {1, 2, 3}
    s.discard(2)
    s |= {7}
    return x * sum(s), s, s - {1}, frozenset(s), 2 in s, {i % 2 for i in s}


@scenario
def a_list_that_is_changed(compile: Compile) -> Iterator[Any]:
    def changed(items: list[Any], x: Tensor) -> Any:
        items.append(x * 2)
        items[0] = x
        items.extend([1, 2])
        items.insert(1, "a")
        del items[-1]
        items += [x]
        return items, len(items), items[::-1]

    f = compile(changed)
    for n in (2, 2, 3):
        items: list[Any] = [floats(n), 5]
        yield f(items, floats(n)), items


@scenario
def lists_that_are_the_same(compile: Compile) -> Iterator[Any]:
    f = compile(lambda a, b: (a.append(1), b.append(2), a is b, len(a))[2:])
    a: list[int] = []
    yield f(a, a), a
    yield f([], a), a
    yield f(a, a), a


@program()
def sorting_by_keys(x: Tensor) -> Any:
    items = [(3, "c"), (1, "z"), (3, "a")]
    items.sort(key=lambda item: item[0], reverse=True)
    return items, sorted(items), max(items), min(items, key=operator.itemgetter(1)), x * items[0][0]


@program()
def slices_and_stars(x: Tensor) -> Any:
    first, *rest = x.unbind()
    a, (b, *c) = 1, (2, 3, 4)
    return first, rest[-1], c, [*rest, first][::-2], (*c, a, b)


@program()
def strings_and_formats(x: Tensor) -> Any:
    return (
        f"{x.shape[0]:03d}|{x.dtype}|{tuple(x.shape)}",
        "%s" % x.ndim,  # noqa: UP031
        "-".join(map(str, x.shape)),
        x * len(f"{x.ndim!r}"),
    )


@program()
def integers_of_python(x: Tensor) -> Any:
    n = x.shape[0]
    return (
        n // -3,
        n % -3,
        -n // 3,
        divmod(-n, 4),
        n**2,
        n**-1,
        n << 3,
        n & 5,
        ~n,
        n / 2,
        round(n / 4),
        int(-2.7),
        abs(-n),
    )


@program()
def large_integers_of_python(x: Tensor) -> Any:
    n = x.shape[0] + 2**61
    return n * 8, (n * n) % 97, n**3 // 2**100, float(n), hash(n) == hash(n), n.bit_length()


@program()
def floats_of_python(x: Tensor) -> Any:
    y = x.shape[0] * 0.1
    return y // 0.3, y % 0.3, -y % 0.3, round(y, 1), y**0.5, int(y * 10), y.is_integer(), str(y), x * y


@scenario
def numbers_as_arguments(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, k: (x * k, k * 2, k == 1, type(k).__name__))
    for k in (1, 1.0, True, 2, 0, -1, 2.5, float("nan"), float("inf"), 2**40, 1j):
        yield attempt(f, torch.ones(2), k)


@scenario
def kinds_of_arguments(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor, *args: Any, scale: float = 1.0, **kwargs: Any) -> Any:
        return x * scale, len(args), sorted(kwargs), args, kwargs.get("bias")

    f = compile(program)
    x = floats(2)
    yield f(x)
    yield f(x, 1, "a", scale=2)
    yield f(x, None, bias=x, other=3)
    yield f(x, x, x, scale=2, bias=None)
    yield attempt(f)
    yield attempt(f, x, x=1)


@scenario
def mutable_defaults(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor, seen: list[Any] = []) -> Any:  # noqa: B006
        seen.append(x.shape[0])
        return x * len(seen)

    f = compile(program)
    for n in (2, 2, 3):
        yield f(torch.ones(n))


@scenario
def named_tuples_and_dataclasses(compile: Compile) -> Iterator[Any]:
    def program(p: Point, b: Box) -> Any:
        b.items.append(p.x.shape[0])
        b.value = p.x + p.y * b.scale
        return p._replace(x=b.value), dataclasses.replace(b, scale=b.scale + 1), Point(*p) == p, p._fields

    f = compile(program)
    for scale in (1.0, 1.0, 2.0):
        p, b = Point(floats(2), floats(2)), Box(floats(2), scale=scale)
        yield attempt(f, p, b), b.value, b.items


@scenario
def hashable_objects_as_keys(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, key: {Frozen(1): x, Frozen(2, "b"): x * 2, Colour.RED: x * 3}.get(key, x * 0))
    for key in (Frozen(1), Frozen(2, "b"), Frozen(3), Colour.RED, Colour.BLUE):
        yield f(torch.ones(2), key)


@scenario
def a_module_global_registry(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor, name: str) -> Tensor:
        REGISTRY[name] = REGISTRY.get(name, 0) + 1
        return x * REGISTRY[name] + len(REGISTRY)

    REGISTRY.clear()
    f = compile(program)
    for name in "abaab":
        yield f(torch.ones(2), name), dict(REGISTRY)


@scenario
def properties_and_descriptors(compile: Compile) -> Iterator[Any]:
    class Thing:
        def __init__(self) -> None:
            self._value = 2.0

        @property
        def value(self) -> float:
            return self._value

        @value.setter
        def value(self, new: float) -> None:
            self._value = new * 2

        @functools.cached_property
        def costly(self) -> float:
            return self._value * 100

        def __getattr__(self, name: str) -> Any:
            if name == "dynamic":
                return 7.0
            raise AttributeError(name)

    def program(thing: Thing, x: Tensor) -> Any:
        thing.value = thing.value + 1
        return x * thing.value, thing.costly, thing.dynamic, hasattr(thing, "missing")

    f = compile(program)
    thing = Thing()
    for _ in range(3):
        yield f(thing, torch.ones(2)), thing._value


@scenario
def operators_of_classes(compile: Compile) -> Iterator[Any]:
    class Vector:
        def __init__(self, data: Tensor) -> None:
            self.data = data

        def __add__(self, other: Any) -> Any:
            return NotImplemented if isinstance(other, str) else Vector(self.data + getattr(other, "data", other))

        __radd__ = __add__

        def __iadd__(self, other: Any) -> Any:
            self.data = self.data * 2
            return self

        def __len__(self) -> int:
            return self.data.shape[0]

        def __getitem__(self, i: int) -> Tensor:
            return self.data[i]

        def __contains__(self, n: int) -> bool:
            return n == 3

        def __call__(self, n: int) -> Tensor:
            return self.data * n

        def __bool__(self) -> bool:
            return len(self) > 2

    def program(v: Vector) -> Any:
        w = 1 + v + v
        w += 1
        try:
            v + "a"  # type: ignore[operator]
        except TypeError:
            failed = True
        return w.data, len(v), v[0], [part for part in v], 3 in v, v(2), "yes" if v else "no", failed

    f = compile(program)
    for n in (2, 2, 3):
        yield attempt(f, Vector(floats(n)))


@scenario
def class_attributes_and_methods(compile: Compile) -> Iterator[Any]:
    class Base:
        total = 0

        @classmethod
        def count(cls) -> int:
            cls.total += 1
            return cls.total

        @staticmethod
        def twice(x: Tensor) -> Tensor:
            return x * 2

        def run(self, x: Tensor) -> Tensor:
            return self.twice(x) + self.count()

    class Derived(Base):
        def run(self, x: Tensor) -> Tensor:
            return super().run(x) * 10

    f = compile(lambda thing, x: thing.run(x))
    for thing in (Base(), Derived(), Base(), Derived()):
        yield f(thing, torch.ones(2)), Base.total, Derived.total


@scenario
def partial_functions_and_caches(compile: Compile) -> Iterator[Any]:
    calls: list[int] = []

    @functools.cache
    def cached(n: int) -> int:
        calls.append(n)
        return n * 2

    scaled = functools.partial(torch.mul, other=3)
    f = compile(lambda x, n: scaled(x) * cached(n))
    for n in (1, 1, 2, 1):
        yield attempt(f, torch.ones(2), n), list(calls)
    cached.cache_clear()
    yield attempt(f, torch.ones(2), 1), list(calls)


@scenario
def a_list_from_the_closure_that_grows(compile: Compile) -> Iterator[Any]:
    history: list[Tensor] = []

    def program(x: Tensor) -> Tensor:
        history.append(x * 2)
        return torch.stack(history[-2:]).sum(0)

    f = compile(program)
    for _ in range(4):
        yield f(floats(2)), list(history)


@program()
def copies(x: Tensor) -> Any:
    original = {"a": [x, 1], "b": (x,)}
    shallow, deep = copy.copy(original), copy.deepcopy(original)
    original["a"].append(2)  # type: ignore[union-attr]
    deep["a"][0].add_(1)  # type: ignore[index, union-attr]
    return shallow, deep, original


@program()
def walrus_and_comprehensions(x: Tensor) -> Any:
    values = [y := x * 2, y + 1]
    nested = {i: [j for j in range(i) if j % 2] for i in range(4)}
    return values, nested, y, {k: v for k, v in zip("ab", x, strict=False)}


@scenario
def prints_and_their_order(compile: Compile) -> Iterator[Any]:
    lines: list[str] = []

    def program(x: Tensor) -> Tensor:
        lines.append("start")
        print("shape", tuple(x.shape), file=Stream(lines))
        y = x * 2
        lines.append("end")
        return y

    f = compile(program)
    for n in (2, 2, 3):
        yield f(floats(n)), list(lines)


class Stream:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)


@scenario
def identity_of_returned_objects(compile: Compile) -> Iterator[Any]:
    marker = object()
    settings = {"a": [1]}
    f = compile(lambda x, items: (items, items[0], settings, settings["a"], marker, x))
    x, items = floats(2), [{"k": 1}, 2]
    for _ in range(2):
        result = f(x, items)
        yield (result[0] is items, result[1] is items[0], result[2] is settings, result[3] is settings["a"],
               result[4] is marker, result[5] is x)  # fmt: skip


@scenario
def bound_methods_as_arguments(compile: Compile) -> Iterator[Any]:
    f = compile(lambda method, x: (method(x * 2), x + 1))
    for n in (2, 2, 3):
        items: list[Any] = []
        total = floats(n)
        yield f(items.append, floats(n)), items
        yield f(total.add_, floats(n)), total
        yield f({floats(n): 1}.get, floats(n))
        yield f(len, floats(n))


@scenario
def a_bound_method_that_lives_over_a_break(compile: Compile) -> Iterator[Any]:
    lines: list[str] = []

    def program(y: Tensor, items: list[Any], x: Tensor) -> Tensor:
        write, append = y.__setitem__, items.append
        print("between", file=Stream(lines))
        write(0, x.sum())
        append(y * 2)
        return y

    f = compile(program)
    for n in (2, 2, 3):
        y, items = torch.zeros(n), [1]
        yield f(y, items, floats(n)), y, items


@scenario
def tensors_in_sets(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y, seen: (len({x, y}), x in seen, y in seen))
    x, y, z = floats(2), floats(2), floats(2)
    for a, b, seen in ((x, y, {z}), (x, x, {z}), (x, y, {x}), (x, y, {y, z}), (y, y, {y})):
        yield f(a, b, seen)
