"""Class statements in compiled functions: the class is interpreted, made again where it is needed, never stale."""

from __future__ import annotations

import abc
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from tests.faults.outcome import assert_like_eager


class Base:
    factor = 3

    def __init__(self, v: Any) -> None:
        self.v = v

    def scaled(self, x: Any) -> Any:
        return x * self.factor

    @staticmethod
    def shifted(x: Any) -> Any:
        return x + 1

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.factor


def plain(x: Any) -> Any:
    class A:
        k = 2

        def __init__(self, y: Any) -> None:
            self.y = y

        def go(self) -> Any:
            return self.y * self.k

    return A(x).go() + A.k


def derived(x: Any) -> Any:
    class A(Base):
        def __init__(self, v: Any) -> None:
            super().__init__(v)
            self.w = v + 1

        @property
        def both(self) -> Any:
            return self.v + self.w

        @both.setter
        def both(self, new: Any) -> None:
            self.v = new

        @staticmethod
        def ten(q: Any) -> Any:
            return q * 10

        @classmethod
        def of(cls, q: Any) -> Any:
            return cls(q)

    a = A.of(x)
    a.both = x * 4
    facts = (isinstance(a, Base), A.__name__, A.__qualname__, A.__mro__[1] is Base, issubclass(A, Base), type(a) is A)
    return a.both + a.scaled(x) + A.ten(x) + A.of_class(x) + a.shifted(x), facts


def abstract(x: Any) -> Any:
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self) -> Any: ...

    class B(A):
        def f(self) -> Any:
            return x

    try:
        A()  # type: ignore[abstract]
    except TypeError as error:
        return B().f(), str(error)


def wrong_length(x: Any) -> Any:
    class Bad:
        def __len__(self) -> int:
            return -1

    try:
        len(Bad())
    except ValueError as error:
        return str(error), x + 1


def own_exception(x: Any) -> Any:
    class Own(Exception):
        def __init__(self, a: Any) -> None:
            self.a = a

    try:
        raise Own(x)
    except Own as error:
        return error.a + 1


def descriptor(x: Any) -> Any:
    class D:
        def __get__(self, owner: Any, kind: Any) -> Any:
            return x if owner is None else x + owner.z

        def __set_name__(self, owner: Any, name: str) -> None:
            self.name = name

    class A:
        d = D()
        z = 3

    A.z = 4
    return A().d + A.d + A.z, A.__dict__["d"].name


def from_names(x: Any) -> Any:
    A = type("A", (Base,), {"factor": 7, "__module__": "q"})
    return A(x).scaled(x), A.__name__, A.__module__


def slots(x: Any) -> Any:
    class A:
        __slots__ = ("q",)
        a: int

        def __init__(self) -> None:
            self.q = x

    made = A()
    try:
        made.other = 1  # type: ignore[attr-defined]
    except AttributeError as error:
        return str(error), made.q, list(A.__annotations__)


def breaks_inside(x: Any) -> Any:
    class A(Base):
        def __init__(self) -> None:
            super().__init__(x)

        def f(self) -> Any:
            return super().scaled(self.v).sum().tolist()

    a = A()
    return a.f(), type(a).__name__, type(a) is A, [base.__name__ for base in type(a).__bases__]


def property_of_a_base(x: Any) -> Any:
    class Own(property):
        pass

    class A:
        @Own
        def p(self) -> Any:
            return x

    class B(A):
        @property
        def p(self) -> Any:
            return super().p + 1

    return B().p


def autograd_function(x: Any) -> Any:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.round()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 3

    return x * 2 if len(x) == 3 else Straight.apply(x)


def applied_function(x: Any) -> Any:
    x = x.detach().requires_grad_()
    y = autograd_function(torch.cat([x, x]))
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


PROGRAMS = (
    *(plain, derived, abstract, wrong_length, own_exception, descriptor, from_names, slots, breaks_inside),
    *(property_of_a_base, autograd_function, applied_function),
)
X = torch.arange(3.0)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_like_eager(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, backend="eager")
    assert_like_eager(compiled, program, X)
    assert_like_eager(compiled, program, X + 1)


@pytest.mark.parametrize("program", [plain, derived, abstract, own_exception, from_names, slots, autograd_function])
def test_without_a_break(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    compiled(X)


def test_each_call_makes_its_own_class() -> None:
    def program(x: Any) -> Any:
        class A:
            def itself(self) -> Any:
                return A, x

        return A

    compiled = kiln.compile(program, backend="eager")
    first, second = compiled(X), compiled(X + 1)
    assert first is not second
    made, x = second().itself()
    assert made is second and torch.equal(x, X + 1)
    assert first.__qualname__.endswith("program.<locals>.A") and first.__module__ == __name__


def test_bases_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kiln.compile(derived, backend="eager")
    compiled(X)
    changes: dict[str, Any] = {
        "factor": 5,
        "shifted": staticmethod(lambda x: x * 100),
        "of_class": classmethod(lambda cls, x: x - cls.factor),
        "scaled": lambda self, x: x - 1,
        "__init__": lambda self, v: setattr(self, "v", v * 2),
    }
    for name, value in changes.items():
        monkeypatch.setattr(Base, name, value)
        assert torch.equal(compiled(X)[0], derived(X)[0]), name


LOG: list[str] = []


class Named:
    def __set_name__(self, owner: Any, name: str) -> None:
        LOG.append(name)
        self.name = name

    def __get__(self, owner: Any, kind: Any) -> str:
        return self.name


def test_a_returned_class_names_its_attributes_once() -> None:
    def program(x: Any) -> Any:
        class A:
            a = 1
            f = Named()
            b = 2

        A.late = Named()  # type: ignore[attr-defined]
        return A, x + 1

    LOG.clear()
    compiled = kiln.compile(program, backend="eager")
    for calls in (1, 2):
        made, _ = compiled(X)
        assert ["f"] * calls == LOG
        assert [name for name in vars(made) if not name.startswith("__")] == ["a", "f", "b", "late"]
        assert made.f == made().f == "f" and not hasattr(vars(made)["late"], "name")


def test_stand_ins_are_no_subclasses_of_the_program() -> None:
    kiln.compile(plain, backend="eager")(X)
    kiln.compile(derived, backend="eager")(X)
    gc.collect()
    assert Base.__subclasses__() == []
