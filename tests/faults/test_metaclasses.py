"""Classes of metaclasses of the program, hooks of classes, classes changed after they were made, copies."""

from __future__ import annotations

import abc
import copy
import dataclasses
import enum
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from tests.faults.outcome import assert_like_eager

CALLED: list[str] = []


class Meta(type):
    def __new__(mcs, name: str, bases: Any, names: Any, **keywords: Any) -> Any:
        CALLED.append("new")
        made = super().__new__(mcs, name, bases, names)
        made.keywords = keywords  # type: ignore[attr-defined]
        made.order = [name for name in names if not name.startswith("__")]  # type: ignore[attr-defined]
        return made

    def __init__(cls, name: str, bases: Any, names: Any, **keywords: Any) -> None:
        super().__init__(name, bases, names)
        cls.named = name

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.called = True
        return made

    def __getattr__(cls, name: str) -> str:
        if name.startswith("x"):
            return name
        raise AttributeError(name)

    @property
    def shown(cls) -> str:
        return cls.__name__ + "!"

    def __len__(cls) -> int:
        return 7

    def __contains__(cls, item: Any) -> bool:
        return bool(item == 4)

    def __instancecheck__(cls, value: Any) -> bool:
        return value == 5 or type.__instancecheck__(cls, value)


class Made(metaclass=Meta):
    def one(self) -> int:
        return 1


class Hook:
    def __init_subclass__(cls, **keywords: Any) -> None:
        CALLED.append("hook")
        cls.hooked = True  # type: ignore[attr-defined]
        super().__init_subclass__()


def with_methods(x: Any) -> Any:
    class A(Made, z=1):
        a = 1

        def total(self) -> Any:
            return self.one() + self.a

    made = A()
    facts = (A.keywords, A.named, made.called, A.xyz, A.shown, len(A), 4 in A, isinstance(5, A), A.order)  # type: ignore
    return x + made.total(), facts, isinstance(made, A), type(A) is Meta, A.__mro__[1] is Made, A.__dict__["a"]


def prepared(x: Any) -> Any:
    class M(type):
        def __new__(mcs, name: str, bases: Any, names: Any) -> Any:
            return type.__new__(mcs, name, bases, {**names, "added": name})

        @classmethod
        def __prepare__(mcs, name: str, bases: Any) -> Any:
            return {"before": name}

        def __setattr__(cls, name: str, value: Any) -> None:
            type.__setattr__(cls, name, (value, "set"))

    class A(metaclass=M):
        got = before  # type: ignore # noqa: F821

    class B(A):
        pass

    A.q = 3  # type: ignore
    return x, A.added, A.got, A.before, B.added, B.q, type(B) is M, "q" in A.__dict__  # type: ignore


def hooks(x: Any) -> Any:
    CALLED.clear()

    class A(Hook, metaclass=Meta):
        k = 2

    return x + A.k, A.hooked, A().called, list(CALLED), A.named  # type: ignore


def made_again(x: Any) -> Any:
    class A(Hook, metaclass=Meta):
        k = 2

    return x, A().k, [A]


def abstract(x: Any) -> Any:
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self) -> Any: ...

    class C(A, metaclass=type("Own", (abc.ABCMeta,), {})):
        pass

    class D(C):
        def f(self) -> Any:
            return x

    try:
        C()  # type: ignore
    except TypeError as error:
        return D().f(), str(error), isinstance(D(), A), sorted(C.__abstractmethods__)


def changed_later(x: Any) -> Any:
    class A:
        def f(self) -> int:
            return 1

    A.__eq__ = lambda self, other: True  # type: ignore
    A.__len__ = lambda self: 5  # type: ignore
    A.__doc__, A.__name__, A.__qualname__, A.__module__ = "doc", "Z", "Q", "m"
    del A.f
    names = sorted(A.__dict__)
    return x, A() == 3, len(A()), A.__doc__, A.__name__, A.__qualname__, A.__module__, hasattr(A, "f"), names, [A]


def of_changed(x: Any) -> Any:
    cls = changed_later(x)[-1][0]
    return x, sorted(cls.__dict__), cls.__qualname__, cls() == 3, hash(cls()) is not None


def entries(x: Any) -> Any:
    class Entry:
        def __mro_entries__(self, bases: Any) -> Any:
            return (Made,)

    class A(Entry()):  # type: ignore
        pass

    class L(list[int]):
        pass

    return x, A.__mro__[1] is Made, len(A.__orig_bases__), list(L([1])), L.__orig_bases__  # type: ignore


def wrong(x: Any) -> Any:
    class Other(type):
        pass

    found = []
    calls = [
        *(lambda: type("A", (int, str), {}), lambda: type("A", [], {}), lambda: type(1, (), {})),  # type: ignore
        *(lambda: type("A", (), []), lambda: Other("A", (Made,), {})),  # type: ignore
    ]
    for call in calls:
        try:
            call()
        except TypeError as error:
            found.append(str(error))
    return x, found


def callable_as_metaclass(x: Any) -> Any:
    def collect(name: str, bases: Any, names: Any) -> Any:
        return name, len(bases), sorted(name for name in names if not name.startswith("__"))

    class A(metaclass=collect):  # type: ignore
        u = 1

    return x, A


def compared_classes(x: Any) -> Any:
    class M(type):
        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return 1

        def __repr__(cls) -> str:
            return "shown"

    class A(metaclass=M):
        pass

    return x, A == 2, repr(A), f"{A}", hash(A)


def enumeration(x: Any) -> Any:
    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

        def twice(self) -> int:
            return int(self.value) * 2

    names = [member.name for member in Colour]
    return x + Colour.BLUE.twice(), names, Colour(1) is Colour.RED, Colour["BLUE"].value, repr(Colour.RED), len(Colour)


class Virtual:
    def __eq__(self, other: object) -> Any:
        CALLED.append("virtual")
        return NotImplemented


class Registry(metaclass=abc.ABCMeta):  # noqa: B024
    def __eq__(self, other: object) -> Any:
        CALLED.append("registry")
        return NotImplemented


Registry.register(Virtual)


def order_of_comparison(x: Any) -> Any:
    CALLED.clear()
    return x, Registry() == Virtual(), list(CALLED)


class OnlySet:
    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["a"] = value


class HasOnlySet:
    a = OnlySet()


def without_get(x: Any) -> Any:
    made = HasOnlySet()
    before = type(made.a).__name__
    made.a = 5
    return x, before, made.a


def copies(x: Any) -> Any:
    flat, nested, kept = (1, 2), ([1], 2), frozenset([1])
    items: list[Any] = [1]
    items.append(items)
    again = copy.deepcopy(items)
    same = [copy.copy(flat) is flat, copy.deepcopy(flat) is flat, copy.copy(kept) is kept, copy.copy(nested) is nested]
    return x, same, copy.deepcopy(nested) is nested, again[1] is again, again is items, copy.copy(items)[1] is items


PROGRAMS: list[Callable[[Any], Any]] = [
    *(with_methods, prepared, hooks, made_again, abstract, changed_later, of_changed, entries, wrong, copies),
    *(callable_as_metaclass, enumeration, order_of_comparison, without_get),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Callable[[Any], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for _ in range(2):
        assert_like_eager(compiled, program, torch.arange(4.0))
    assert not kiln.report_of(compiled).eager_reasons


def test_hooks_are_called_once() -> None:
    compiled = kiln.compile(made_again, backend="eager", options={"cache": False})
    compiled(torch.ones(2))
    CALLED.clear()
    (made,) = compiled(torch.ones(2))[2]
    assert (
        CALLED == ["new", "hook"]
        and made.hooked
        and made.named == "A"
        and type(made) is Meta
        and made.__bases__ == (Hook,)
    )


def signatures(x: Any) -> Any:
    class A:
        def __init__(self, q: int, r: int = 2) -> None:
            pass

    made = inspect.signature(A), inspect.signature(A.__init__)
    return x, [str(signature) for signature in made]


def documented(x: Any) -> Any:
    @dataclasses.dataclass
    class P:
        a: int
        b: int = 3

    return x, P.__doc__, [field.name for field in dataclasses.fields(P)], repr(P(1)), P(1) == P(1)


def descriptors(x: Any) -> Any:
    @abc.abstractmethod
    def g(self: Any) -> None:
        "of g"

    first, second = property(g, None, None, "own"), property(g)
    held = staticmethod(g)
    return x, first.__doc__, second.__doc__, second.__isabstractmethod__, held.__name__, held.__isabstractmethod__


def refused(x: Any) -> Any:
    class Returns:
        def __init__(self) -> Any:
            return 5

    class Fails:
        def __set_name__(self, owner: Any, name: str) -> None:
            raise KeyError(name)

    class Loses(type):
        def __new__(mcs, name: str, bases: Any, names: Any) -> Any:
            return super().__new__(mcs, name, bases, {k: v for k, v in names.items() if k != "__classcell__"})

    def named() -> None:
        type("A", (), {"a": Fails()})

    def celled() -> None:
        class A(metaclass=Loses):
            def f(self) -> Any:
                return __class__  # type: ignore

    found = []
    for call in (Returns, named, celled, lambda: super(1, 2).f, lambda: g(), lambda: g(1, 2, 3), lambda: h(a=1)):  # type: ignore
        try:
            call()
        except Exception as error:
            found.append((type(error).__name__, str(error), type(error.__cause__).__name__))
    return x, found


def g(a: int, b: int, *, c: int) -> None: ...


def h(a: int, /) -> None: ...


def addresses(x: Any) -> Any:
    a, b = [1], [1]
    memo = {id(a): "a"}
    return (
        x,
        memo[id(a)],
        id(b) in memo,
        id(a) == id(a),
        id(a) != id(b),
        {id(a)} == {id(a)},
        isinstance(id(a), int),
        memo.pop(id(a)),
    )


@pytest.mark.parametrize(
    "program",
    [signatures, documented, descriptors, refused, addresses, compared_classes],
    ids=lambda program: program.__name__,
)
def test_classes_and_functions_describe_themselves(program: Callable[[Any], Any]) -> None:
    assert_like_eager(kiln.compile(program, backend="eager", options={"cache": False}), program, torch.arange(4.0))
