"""What `__torch_function__` of a tensor's class is called with, and what it is not called for: as in eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

OPTIONS = {"cache": False}
SEEN: list[tuple[object, tuple[type, ...]]] = []


class Watched(Tensor):
    """Notes each call."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append((func, tuple(type(arg) for arg in args)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Silent(Tensor):
    """Results are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


ARITHMETIC = "add sub mul truediv floordiv mod pow matmul lt le gt ge eq ne iadd isub imul itruediv ifloordiv imod ipow"
BITS = "and_ or_ xor lshift rshift iand ior ixor ilshift irshift"


def calls(function: Callable[..., object], *args: object) -> tuple[object, list[object]]:
    SEEN.clear()
    try:
        function(*args)
    except TypeError as error:
        return type(error), list(SEEN)
    return None, list(SEEN)


@pytest.mark.parametrize("name", f"{ARITHMETIC} {BITS}".split())
def test_operators_show_the_function_that_eager_shows(name: str) -> None:
    function = getattr(operator, name)
    plain = torch.arange(4).view(2, 2) if name in BITS.split() else torch.arange(1.0, 5.0).view(2, 2)
    watched = plain.as_subclass(Watched)
    for left, right in ((watched, watched), (watched, plain), (plain, watched), (watched, 2), (2, watched)):
        compiled = kiln.compile(lambda x, y: function(x, y), backend="eager", options=OPTIONS)
        given = [value.clone() if isinstance(value, Tensor) else value for value in (left, right)]
        kept = [value.clone() if isinstance(value, Tensor) else value for value in (left, right)]
        assert calls(compiled, *given) == calls(function, *kept)


METHODS: dict[str, Callable[[Any], object]] = {
    "nelement":   lambda x: x.nelement(),
    "ndimension": lambda x: x.ndimension(),
    "tolist":     lambda x: x.tolist(),
    "numpy":      lambda x: x.numpy().sum(),
    "data_ptr":   lambda x: x.data_ptr() == 0,
    "tensor":     lambda x: torch.tensor(x),
    "as_tensor":  lambda x: torch.as_tensor(x) is x,
    "abs":        abs,
    "block_diag": lambda x: torch.block_diag(x, x),
    "vmap":       lambda x: torch.func.vmap(torch.sin)(x),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", METHODS)
def test_methods_show_what_eager_shows(name: str) -> None:
    method = METHODS[name]
    x = torch.arange(1.0, 5.0).view(2, 2).as_subclass(Watched)
    compiled = kiln.compile(lambda x: method(x), backend="eager", options=OPTIONS)
    assert calls(compiled, x) == calls(method, x)
    expected, found = method(x), compiled(x)
    assert type(found) is type(expected)
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


class Frozen(Tensor):
    """Refuses changes in place."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.endswith("_") and not func.__name__.endswith("__"):
            raise TypeError(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_type_error_of_an_operator_is_not_implemented() -> None:
    """`x += 1` then is `x = x + 1`; `x.add_(1)` raises."""

    def f(x: Any) -> tuple[object, ...]:
        kept = x
        x += 1
        try:
            kept.add_(1)
        except TypeError as error:
            return kept, x, str(error)
        return ()

    expected = f(torch.ones(2).as_subclass(Frozen))
    assert expected
    assert str(kiln.compile(f, backend="eager", options=OPTIONS)(torch.ones(2).as_subclass(Frozen))) == str(expected)


@pytest.mark.parametrize("cls", [Watched, Silent])
def test_a_tensor_of_a_subclass_changes_in_place(cls: type[Tensor]) -> None:
    def f(x: Any, y: Tensor) -> tuple[object, ...]:
        alias = x
        x += y
        x[0] -= y[0]
        return alias, x is alias, y < x

    y = torch.full((2, 2), 3.0)
    expected = f(torch.ones(2, 2).as_subclass(cls), y)
    found = kiln.compile(f, backend="eager", options=OPTIONS)(torch.ones(2, 2).as_subclass(cls), y)
    assert str(found) == str(expected)


def test_compiling_calls_no_torch_function() -> None:
    """Its own questions about a tensor are not the program's."""
    weight = torch.nn.Parameter(torch.ones(2, 2).as_subclass(Watched))
    f = kiln.compile(lambda x, w: x, backend="eager", options=OPTIONS)
    assert calls(f, torch.ones(2, 2), weight) == (None, [])
