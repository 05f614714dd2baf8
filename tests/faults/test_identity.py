"""Objects that were not the ones of eager: `self` in a compiled module, and what a special method is called with."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln


class Registered(nn.Module):
    """Knows itself by address, by identity, as a key and through a weak reference."""

    def __init__(self, known: dict[Any, str]) -> None:
        super().__init__()
        self.known = known
        self.hidden = [self]
        self.weak = weakref.ref(self)
        known[self] = "itself"

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        return x + 1, id(self), self.known.get(self), self is self.hidden[0], self.weak() is self, type(self)


@pytest.mark.parametrize("wrapped", [False, True])
def test_self_in_a_compiled_module(wrapped: bool) -> None:
    model: nn.Module = Registered({})
    expected = model(torch.ones(2))
    compiled = kiln.compile(model)
    if wrapped:
        compiled = kiln.compile(nn.Sequential(compiled))
    for _ in range(2):
        result = compiled(torch.ones(2))
        assert result[1:] == expected[1:] and torch.equal(result[0], expected[0])


def test_hooks_get_the_module_that_was_compiled() -> None:
    model = nn.Linear(2, 2)
    seen = []
    model.register_forward_hook(lambda module, args, result: seen.append(module))
    kiln.compile(model)(torch.ones(1, 2))
    assert seen == [model]


class Other:
    def length(self) -> int:
        return 3

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return args


class Delegating:
    """Special methods that are no functions of this class are not called with `self`."""

    __len__ = Other().length
    __call__ = Other()
    __bool__ = staticmethod(lambda: False)
    __getitem__ = [10, 20].__getitem__
    __contains__ = staticmethod(lambda item: item == 2)
    __iter__ = classmethod(lambda cls: iter([cls.__name__]))  # type: ignore[var-annotated]


def test_special_methods_that_are_no_functions() -> None:
    thing: Any = Delegating()

    def program(x: Tensor) -> tuple[Any, ...]:
        return x + len(thing), thing(1), bool(thing), thing[1], 2 in thing, 3 in thing, list(thing)

    result, expected = kiln.compile(program)(torch.ones(1)), program(torch.ones(1))
    assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:]


def test_operators_that_give_the_tuple_itself() -> None:
    def program(x: Tensor, t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
        mine: tuple[Any, ...] = (x, 1)
        return (
            x + 1,
            [
                t.__mul__(1) is t,
                t.__rmul__(1) is t,
                t.__add__(()) is t,
                ().__add__(t) is t,
                tuple.__new__(tuple, t) is t,
            ],
            [mine.__mul__(1) is mine, mine.__rmul__(n) is mine, mine.__add__(()) is mine, mine.__add__(t) is mine],
            [t is tuple(), t * 0 is t[2:], mine[2:] is t[2:], tuple([]) is mine[:0]],
            t.__mul__(2) + t.__rmul__(0) + t.__add__(mine[1:]),
        )

    compiled = kiln.compile(program)
    for known, times in (((1, "a"), 1), ((), 1), ((2.0,), 2), ((), 0), ((1, "a"), 1)):
        result, expected = compiled(torch.ones(1), known, times), program(torch.ones(1), known, times)
        assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:]


def test_tuples_with_wrong_operands() -> None:
    def program(x: Tensor, t: Any, other: Any) -> tuple[Any, ...]:
        texts = []
        for operation in (tuple.__add__, tuple.__mul__, tuple.__rmul__):
            try:
                operation(t, other)
            except TypeError as error:
                texts.append(str(error))
        return x + 1, texts

    compiled = kiln.compile(program, options={"variants": 16})
    for other in ([1], "a", 1.0, 2, torch.Size([3]), (4,)):
        for known in ((1, 2), torch.Size([1])):
            assert compiled(torch.ones(1), known, other)[1] == program(torch.ones(1), known, other)[1]
