"""What is read of classes and signatures as data was a constant: `__dict__`, `__name__`, `__mro__`, defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln


def replaced_value(cls: Any) -> None:
    cls.k = 3.0


def new_name(cls: Any) -> None:
    cls.z = 5.0


def other_names(cls: Any) -> None:
    cls.__name__ = cls.__qualname__ = cls.__doc__ = cls.__module__ = "Other"


def other_bases(cls: Any) -> None:
    cls.__bases__ = (type("Second", (), {"inherited": 7.0}),)


def other_default(cls: Any) -> None:
    cls.method.__kwdefaults__["by"] = 3.0


def other_positional_default(cls: Any) -> None:
    cls.method.__defaults__ = (3.0,)


def other_signature(cls: Any) -> None:
    cls.method.__signature__ = inspect.Signature()


def other_annotation(cls: Any) -> None:
    cls.__annotations__["k"] = 11


READS: list[tuple[str, Callable[[Any], None]]] = [
    *((f"{of}['k']", replaced_value) for of in ("C.__dict__", "vars(C)", "type(o).__dict__", "vars(o.__class__)")),
    *((f"{of}['k']", replaced_value) for of in ("dict(vars(C))", "type(o).__mro__[0].__dict__", "C.mro()[0].__dict__")),
    *((text, replaced_value) for text in ("C.__dict__.get('k')", "[v for n, v in vars(C).items() if n == 'k'][0]")),
    *((text, replaced_value) for text in ("inspect.getattr_static(o, 'k')", "next(vars(c)['k'] for c in C.__mro__)")),
    *((text, new_name) for text in ("len(C.__dict__)", "('z' in vars(C))", "vars(C).get('z', 1)", "len([*vars(C)])")),
    *((f"len(C.{name} or '')", other_names) for name in ("__name__", "__qualname__", "__doc__", "__module__")),
    *((f"len(vars(C).get('{name}') or '')", other_names) for name in ("__doc__", "__module__")),
    *((text, other_bases) for text in ("C.__bases__[0].inherited", "C.__mro__[1].inherited", "o.inherited")),
    ("C.__annotations__['k']", other_annotation),
    ("vars(C)['method'].__kwdefaults__['by']", other_default),
    ("C.method.__defaults__[0]", other_positional_default),
    ("inspect.signature(C.method).parameters['by'].default", other_default),
    ("inspect.signature(o.method).parameters['plus'].default", other_positional_default),
    ("len(inspect.signature(C.method).parameters)", other_signature),
]


def made() -> dict[str, Any]:
    """A class `C` and an instance `o`, apart from those of other tests."""
    scope: dict[str, Any] = {"inspect": inspect, "torch": torch}
    text = """
class First:
    inherited = 2.0
class C(First):
    k: int = 2.0
    def method(self, x, plus=1.0, *, by=2.0):
        return x * by + plus
C.__annotations__["k"] = 4
o = C()
"""
    exec(text, scope)
    return scope


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize(("text", "change"), READS, ids=[text for text, _ in READS])
def test_a_change_is_noticed(text: str, change: Callable[[Any], None]) -> None:
    scope = made()
    program = eval(f"lambda x: x * {text}", scope)
    compiled, x = kiln.compile(program, backend="eager", options={"cache": False}), torch.ones(2)
    before = program(x)
    assert torch.equal(compiled(x), before)
    compiles = kiln.report_of(compiled).compiles
    for _ in range(3):
        assert torch.equal(compiled(x), before)
    assert kiln.report_of(compiled).compiles == compiles
    change(scope["C"])
    assert not torch.equal(program(x), before)
    assert torch.equal(compiled(x), program(x))
