"""Tensors of subclasses as inputs, parameters, intermediates and results: as eager, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import kiln

OPTIONS = {"cache": False}


class Tagged(Tensor):
    """Nothing but another class."""


class Logged(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubling(Tensor):
    """Its sums are twice as large."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            return made * 2 if func is torch.Tensor.add or func is torch.add else made


class Scaled(Tensor):
    """A quantised weight: integers and a scale."""

    elem: Tensor
    scale: Any

    @staticmethod
    def __new__(cls, elem: Tensor, scale: Any) -> Scaled:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, elem.shape, strides=elem.stride(), dtype=torch.float32, device=elem.device, requires_grad=False
        )
        return made  # type: ignore[no-any-return]

    def __init__(self, elem: Tensor, scale: Any) -> None:
        self.elem = elem
        self.scale = scale

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mul.Tensor and isinstance(args[0], Scaled) and not isinstance(args[1], Scaled):
            return Scaled(args[0].elem, args[0].scale * args[1])
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return Scaled(func(args[0].elem), args[0].scale)
        plain = [tree_map(lambda x: x.plain() if isinstance(x, Scaled) else x, part) for part in (args, kwargs or {})]
        return func(*plain[0], **plain[1])

    def plain(self) -> Tensor:
        return self.elem.float() * self.scale


class Pair(Tensor):
    """Two tensors, on each of which an operator runs."""

    a: Tensor
    b: Tensor

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> Pair:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.size(), strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, layout=a.layout,
            device=a.device, requires_grad=a.requires_grad,
        )  # fmt: skip
        return made  # type: ignore[no-any-return]

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a = a
        self.b = b

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        results = []
        for name in ("a", "b"):
            own = tree_map(lambda x, name=name: getattr(x, name) if isinstance(x, Pair) else x, (args, kwargs or {}))
            results.append(func(*own[0], **own[1]))
        flat, spec = tree_flatten(results[0])
        pairs = zip(flat, tree_leaves(results[1]), strict=True)
        made = tree_unflatten([Pair(x, y) if isinstance(x, Tensor) else x for x, y in pairs], spec)
        return return_and_correct_aliasing(func, args, kwargs, made)


def tagged(cls: type[Tensor]) -> Callable[[], Tensor]:
    return lambda: torch.randn(3, 3).as_subclass(cls)


def integers() -> Tensor:
    return torch.randint(-8, 8, (3, 3), dtype=torch.int8)


def scaled() -> Tensor:
    return Scaled(integers(), torch.tensor(0.5))


def pair() -> Tensor:
    return Pair(torch.randn(3, 3), torch.randn(3, 3))


class Quantised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(scaled(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight).relu()


torch.manual_seed(0)
NET = torch.nn.Sequential(Quantised(), Quantised(), Quantised())
F = torch.nn.functional
PARTS = [torch.ones(2).as_subclass(Tagged), torch.zeros(1).as_subclass(Tagged)]
MAKERS: dict[str, Callable[[], Tensor]] = {
    "tagged": tagged(Tagged), "logged": tagged(Logged), "doubling": tagged(Doubling), "scaled": scaled, "pair": pair,
    "plain": lambda: torch.randn(3, 3), "integers": integers, "nested": lambda: Pair(pair(), pair()),
}  # fmt: skip
PROGRAMS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("tagged", lambda w, x: (w + x, w.sum(0).mul(2) @ x, w.norm())),
    ("tagged", lambda w, x: (w.shape, w.dtype, w.size(0), isinstance(w, Tagged), type(w * 2).__name__, w.T)),
    ("tagged", lambda w, x: F.linear(x, w).relu() + w.split(1)[0] + torch.cat([w, x]).sum()),
    ("tagged", lambda w, x: w.add_(x)[0] + w[:, 1]),
    ("tagged", lambda w, x: (w.split(1), w.chunk(3)[0], w.unbind()[1], torch.max(w, 0), torch.cat(PARTS))),
    ("plain", lambda w, x: torch.cat(PARTS)),
    ("tagged", lambda w, x: (w.relu_() is w, w.contiguous() is w, w.add_(x) is w, w.view(9) is w)),
    ("plain", lambda w, x: w.as_subclass(Tagged) * 2),
    ("logged", lambda w, x: (2 - w) * x + w.sum()),
    ("doubling", lambda w, x: (w + x, x + w, torch.add(w, 1), w * 2, w.shape)),
    ("scaled", lambda w, x: (x @ w, F.linear(x, w), (w * 2).plain() + x)),
    ("scaled", lambda w, x: (w * 2, x * 2, w.shape, w.t().shape, w.size(), isinstance(w, Tensor), w.elem.dtype)),
    ("integers", lambda w, x: (Scaled(w, torch.tensor(2.0)) @ x, Scaled(w, torch.tensor(2.0)))),
    ("plain", lambda w, x: NET(x)),
    ("pair", lambda w, x: ((w * 2).sin() + w, w + x, w.view(9)[2:].sum(), F.layer_norm(w, (3,)))),
    ("pair", lambda w, x: (F.gelu(w) @ w.T, (w * 1).mul_(2).add_(w), w.chunk(3)[1] + torch.cat([w, w])[0])),
    ("nested", lambda w, x: w + 1),
    ("pair", lambda w, x: (len({w, w}), {w: 1}[w], w in {w + 0}, w * 2)),
    ("tagged", lambda w, x: (len({w, w}), {w: 1}[w], w in {w + 0}, w * 2)),
]


def content(value: Any) -> Any:
    """What can be compared: of a wrapper its metadata and its inner tensors."""
    if isinstance(value, tuple | list):
        return tuple(map(content, value))
    if not isinstance(value, Tensor):
        return value
    inner = {name: content(part) for name, part in vars(value).items()}
    if inner:
        return type(value), value.shape, value.dtype, inner
    return type(value), value.dtype, value.as_subclass(Tensor).detach().double().numpy().round(4).tolist()


def outcome(function: Callable[[Any, Any], Any], kind: str) -> Any:
    torch.manual_seed(1)
    w, x = MAKERS[kind](), torch.randn(3, 3)
    return content(function(w, x)), content(w)


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_as_eager(backend: str) -> None:
    for kind, function in PROGRAMS:
        keywords: Any = {} if backend == "kiln" else {"backend": backend}
        compiled = kiln.compile(function, options=OPTIONS, **keywords)
        expected = outcome(function, kind)
        for _ in range(2):
            assert outcome(compiled, kind) == expected, (kind, function.__code__.co_firstlineno)
        report = compiled.report()
        assert report.regions == 1 and not report.breaks and not report.eager_reasons, report


def product(w: Any, x: Any) -> Any:
    return x @ w


def test_wrappers_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kiln.compile(product, backend="eager", options=OPTIONS)
    x = torch.randn(3, 3)
    w = Scaled(integers(), 0.25)

    def check(w: Tensor) -> None:
        assert content(compiled(w, x)) == content(product(w, x))

    check(w)
    w.scale = 0.75
    check(w)
    w.elem = w.elem + 1
    check(w)
    check(Scaled(integers()[:, :2], 0.75))
    check(torch.randn(3, 3))
    check(torch.randn(3, 3).as_subclass(Tagged))
    monkeypatch.setattr(Scaled, "plain", lambda self: self.elem.float() * self.scale * 10)
    check(w)
    assert not compiled.report().breaks and not compiled.report().eager


def test_parameters_of_a_plain_subclass() -> None:
    class Weight(torch.nn.Parameter):
        pass

    x = torch.randn(3, 3)
    weight = Weight(torch.randn(3, 3))
    compiled = kiln.compile(product, options=OPTIONS)
    compiled(weight, x).sum().backward()
    product(weight, -x).sum().backward()
    assert weight.grad is not None and torch.allclose(weight.grad, torch.zeros(3, 3))
    assert not compiled.report().breaks and not compiled.report().eager


def padded(x: Any) -> Any:
    return (x * 2).sin().to_padded_tensor(0.0)


def lengths(x: Any) -> Any:
    return [part.sum() for part in x.unbind()], x.size(0), x.dim(), x.is_nested


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors() -> None:
    """They run eager, with one code."""
    for layout in (torch.jagged, torch.strided):
        for function in (padded, lengths):
            x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=layout)
            compiled = kiln.compile(function, backend="eager", options=OPTIONS)
            for _ in range(2):
                assert content(compiled(x)) == content(function(x))
            (found,) = compiled.report().eager_reasons
            assert found.code == "KILN2502" and found.reason.endswith("it is a nested tensor")


def sorts(x: Tensor) -> Any:
    found = torch.max(x, 0)
    pair = torch.return_types.sort((x, x + 1))
    doubled = tree_map(lambda part: part * 2, x.min(1))
    return found.values, found[1], found, tuple(found), found[::-1], len(found), pair, pair.indices, doubled


def test_struct_sequences() -> None:
    compiled = kiln.compile(sorts, backend="eager", options=OPTIONS)
    x = torch.randn(3, 3)
    made, expected = compiled(x), sorts(x)
    assert content(made) == content(expected)
    assert [type(part) for part in made] == [type(part) for part in expected]
    taken = kiln.compile(lambda m: (m.values + 1, m[1], m), backend="eager", options=OPTIONS)
    assert type(taken(expected[2])[2]) is torch.return_types.max
    with pytest.raises(TypeError, match="sequence"):
        kiln.compile(lambda x: torch.return_types.max((x,)), backend="eager", options=OPTIONS)(x)
    assert not compiled.report().breaks and not taken.report().breaks
