"""Functions of torch that the program replaces by ones that call them: each call is made once."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from kiln.capture.interpreter.builtins.torch_bodies import reads_of

CALLS: dict[str, tuple[Any, str, Callable[[Tensor], Tensor]]] = {
    "linear": (F, "linear", lambda x: F.linear(x, torch.ones(2, 4))),
    "linear of rank 3": (F, "linear", lambda x: F.linear(x[None], torch.ones(2, 4))),
    "interpolate": (F, "interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2)),
    "normalize": (F, "normalize", lambda x: F.normalize(x)),
    "one_hot": (F, "one_hot", lambda x: F.one_hot(x.long(), 5)),
    "matmul": (torch, "matmul", lambda x: torch.matmul(x, x.t())),
    "products of batches": (torch, "matmul", lambda x: torch.matmul(x[None], x.t())),
    "linspace": (torch, "linspace", lambda x: torch.linspace(0, 1, x.shape[0]) + x.sum()),
    "arange": (torch, "arange", lambda x: torch.arange(x.shape[0]) + x.sum()),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_calls_what_it_replaces(name: str, dynamic: bool | None, monkeypatch: Any) -> None:
    owner, attribute, program = CALLS[name]
    original, compiled = getattr(owner, attribute), kiln.compile(program, dynamic=dynamic)

    def thrice(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 3

    for rows, replaced in ((2, False), (3, True), (4, True), (3, False), (2, True)):
        with monkeypatch.context() as patches:
            if replaced:
                patches.setattr(owner, attribute, thrice)
            x = torch.arange(rows * 4.0).view(rows, 4) % 5
            torch.testing.assert_close(compiled(x), program(x))


INSIDE: dict[str, tuple[Any, str, Callable[[Tensor], Tensor]]] = {
    "relu in F.relu": (torch, "relu", lambda x: F.relu(x)),
    "relu in a module": (torch, "relu", torch.nn.ReLU()),
    "layer_norm in a module": (torch, "layer_norm", torch.nn.LayerNorm(4)),
    "pad in stft": (F, "pad", lambda x: torch.stft(x, 4, window=torch.ones(4), return_complex=True).abs()),
    "a method in F.softmax": (Tensor, "softmax", lambda x: F.softmax(x, -1)),
    "vector_norm in torch.norm in Tensor.norm": (torch.linalg, "vector_norm", lambda x: x.norm(p=3)),
    "cosine_embedding_loss": (
        *(torch, "cosine_embedding_loss"),
        lambda x: F.cosine_embedding_loss(x, x + 1, torch.ones(16)),
    ),
    "einsum": (torch._VF, "einsum", lambda x: torch.einsum("ij,kj->ik", x, x)),
    "a method that calls _VF": (torch._VF, "split", lambda x: torch.stack(x.split(8)).sum(0)),
    "batch_norm": (torch, "batch_norm", lambda x: F.batch_norm(x, None, None, training=True)),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_function_that_torch_itself_calls(name: str, monkeypatch: Any) -> None:
    """Torch's own Python functions ran below the interpreter, where no guard saw what they read."""
    owner, attribute, program = INSIDE[name]
    original, compiled = getattr(owner, attribute), kiln.compile(program)
    times: list[int] = []

    def scaled(*args: Any, **kwargs: Any) -> Any:
        times.append(1)
        result = original(*args, **kwargs)
        return result * 3 if isinstance(result, Tensor) else tuple([part * 3 for part in result])

    x = torch.arange(64.0).view(16, 4) % 5
    for replaced in (False, True, True, False, True):
        with monkeypatch.context() as patches:
            if replaced:
                patches.setattr(owner, attribute, scaled)
            expected, called = program(x), len(times)
            torch.testing.assert_close(compiled(x), expected)
            assert (called > 0) == replaced and len(times) == 2 * called
            times.clear()


@pytest.mark.parametrize("function", [lambda x: F.local_response_norm(x, 2), lambda x: F.pad(x, (1, 1), "circular")])
def test_a_function_of_torch_is_one_call_where_nothing_is_replaced(function: Callable[[Tensor], Tensor]) -> None:
    calls: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        calls.extend(node.target.__name__ for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    kiln.compile(function, backend=backend)(torch.ones(1, 3, 4))
    assert calls in (["local_response_norm"], ["pad"])


class Doubled(torch.nn.Linear):
    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs) * 2


def test_a_module_with_a_call_of_its_own() -> None:
    """The call of a module is modelled, and what it calls was not asked for."""
    model, layer = torch.nn.Sequential(Doubled(4, 4), torch.nn.ReLU()), Doubled(4, 4)
    for program in (model, layer, lambda x: model(x) + 1):
        torch.testing.assert_close(kiln.compile(program)(torch.ones(2, 4)), program(torch.ones(2, 4)))


def step() -> Tensor:
    weight = torch.nn.Parameter(torch.ones(4))
    (weight * 3).sum().backward()
    return torch.zeros(4) if weight.grad is None else weight.grad.clone()


PLAIN = torch.nn.Sequential(torch.nn.Linear(2, 2))
REPLACED: dict[str, tuple[Any, str, Callable[..., Any], Callable[[], Any]]] = {
    "_call_impl of modules": (
        *(torch.nn.Module, "_call_impl", lambda module, x: module.forward(x) * 2),
        lambda: PLAIN(torch.ones(1, 2)),
    ),
    "backward": (torch.autograd, "backward", lambda *args, **kwargs: None, step),
    "__len__": (Tensor, "__len__", lambda x: 9, lambda: torch.ones(2) + len(torch.ones(3))),
    "__bool__": (Tensor, "__bool__", lambda x: False, lambda: 1 if torch.ones(2).sum() > 0 else 2),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_the_compiler_models(name: str, monkeypatch: Any) -> None:
    owner, attribute, new, program = REPLACED[name]
    compiled = kiln.compile(program)
    for replaced in (False, True, False):
        with monkeypatch.context() as patches:
            if replaced:
                patches.setattr(owner, attribute, new)
            expected, found = program(), compiled()
        torch.testing.assert_close(found, expected)


def test_bodies_of_torch_are_read_for_functions_alone() -> None:
    """A class is never replaced by a function that computes: its name does not make a body interpreted."""
    found = [
        getattr(sys.modules[module], name)
        for function in vars(F).values()
        if isinstance(function, types.FunctionType) and function.__module__ == F.__name__
        for module, name in reads_of(function).functions
    ]
    assert torch._C._nn.pad in found and torch.relu in found
    assert all(isinstance(each, types.FunctionType | types.BuiltinFunctionType) for each in found)


METADATA: dict[str, Any] = {
    "size": lambda x, *dim: 7,
    "stride": lambda x, *dim: 7,
    "dim": lambda x: 7,
    "dtype": property(lambda x: torch.int8),
    "device": property(lambda x: "here"),
    "requires_grad": property(lambda x: "perhaps"),
    "is_leaf": property(lambda x: "perhaps"),
}


@pytest.mark.filterwarnings("error:(?s).*KILN900")
@pytest.mark.parametrize("name", METADATA)
def test_what_the_compiler_itself_asks_of_tensors(name: str, monkeypatch: Any) -> None:
    """Its own questions got the answers of the program, and failed on them."""

    def program(x: Tensor) -> tuple[Any, ...]:
        asked = getattr(x, name)
        return x * 2, x.ndim, x.shape, asked() if callable(asked) else asked

    compiled = kiln.compile(program)
    for rows, replaced in ((2, False), (2, True), (3, True), (3, False), (4, True), (4, False)):
        x = torch.ones(rows)
        with monkeypatch.context() as patches:
            if replaced:
                patches.setattr(Tensor, name, METADATA[name])
            result, expected = compiled(x), program(x)
        assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:]
