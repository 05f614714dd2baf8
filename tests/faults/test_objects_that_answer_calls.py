"""Objects that are no tensors and have `__torch_function__`: torch's functions and operators ask their class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln


class Named:
    """A tensor with names; of a call it tells what it was asked."""

    def __init__(self, tensor: Tensor, names: str) -> None:
        self.tensor, self.names = tensor, names

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.cumsum:
            return NotImplemented
        own = args[0] if args and isinstance(args[0], Named) else None
        made = None if own is None else Named(own.tensor.tanh(), own.names)
        kinds = [kind.__name__ for kind in types]
        return func.__qualname__, kinds, [type(arg).__name__ for arg in args], sorted(kwargs or {}), made


class Adds(Named):
    def __add__(self, other: object) -> Any:
        return "own", torch.add(self, other)  # type: ignore[call-overload]


class Instance(Named):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return self.names, func.__qualname__, self.tensor


CALLS: dict[str, Callable[[Tensor, Any], Any]] = {
    "function": lambda x, n: torch.add(x, n),
    "first": lambda x, n: torch.sum(n, 1),
    "keyword": lambda x, n: torch.sum(input=n, dim=1),
    "method": lambda x, n: x.add(n),
    "operator": lambda x, n: x + n,
    "reflected": lambda x, n: n + x,
    "equality": lambda x, n: x == n,
    "power": lambda x, n: x**n,
    "floor division": lambda x, n: x // n,
    "index": lambda x, n: x[n],
    "list": lambda x, n: torch.stack([x, n]),
    "functional": lambda x, n: F.relu(n),
    "with tensors": lambda x, n: torch.einsum("a,a->a", x, n),
    "out": lambda x, n: torch.sin(n, out=x.clone()),
    "nested": lambda x, n: torch.mul(n, 2)[-1],
    "question": lambda x, n: (torch.equal(n, x), torch.is_tensor(n)),
    "refused": lambda x, n: torch.cumsum(n, 0),
    "wrong arguments": lambda x, n: torch.sum(n, dim="a"),
    "too few": lambda x, n: torch.gather(n, 0),
    "a list of them": lambda x, n: torch.cat([n, n], dim=x.dim() - 1),
    "data": lambda x, n: torch.tensor(n),
}


def plain(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return [plain(item) for item in result]
    if isinstance(result, Named):
        return type(result).__name__, result.tensor.tolist(), result.names
    return result.tolist() if isinstance(result, Tensor) else result


@pytest.mark.filterwarnings("ignore:Defining your")
@pytest.mark.parametrize("kind", [Named, Adds, Instance])
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_answered_as_in_eager(name: str, kind: type[Named]) -> None:
    call = CALLS[name]

    def outside(x: Tensor, given: Named) -> Any:
        return call(x, given), x * 2

    def inside(x: Tensor) -> Any:
        return call(x, kind(x * 3, "b")), x * 2

    for function, arguments in ((outside, (torch.ones(2), kind(torch.ones(2), "a"))), (inside, (torch.ones(2),))):
        compiled = kiln.compile(function, backend="eager", options={"cache": False})
        try:
            expected = plain(function(*arguments))
        except (TypeError, RuntimeError) as error:
            with pytest.raises(type(error)):
                compiled(*arguments)
            continue
        for _ in range(2):
            assert plain(compiled(*arguments)) == expected
        report = kiln.report_of(compiled)
        assert (report.compiles, report.breaks, report.eager) == (1, [], 0)


class First(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Second(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func.__qualname__, [kind.__name__ for kind in types]


def test_the_default_leaves_unrelated_classes_to_themselves() -> None:
    def f(x: Tensor) -> Any:
        return torch.add(x.as_subclass(First), x.as_subclass(Second)), torch.equal(x.as_subclass(Second), x)

    compiled = kiln.compile(f, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)) == f(torch.ones(2))


def test_a_gradient_goes_through_what_an_object_computes() -> None:
    def f(x: Tensor) -> Tensor:
        found: Tensor = torch.exp(Named(x, "a"))[-1].tensor  # type: ignore[call-overload, index]
        return found * x

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    f(x).sum().backward()
    kiln.compile(f, fullgraph=True)(y).sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
