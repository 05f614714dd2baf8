"""A compiled module behaves like the original."""

from __future__ import annotations

import abc
import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import remove_parametrizations
from torch.testing import assert_close

import kiln
from kiln.pipeline.session import KilnWarning


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.dropout = nn.Dropout(0.5)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(torch.relu(self.first(x)))) * self.scale


@pytest.fixture
def net() -> Net:
    return Net().eval()


def test_same_values_and_gradients(net: Net) -> None:
    compiled, x = kiln.compile(net, fullgraph=True), torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), net(x))
    net(x).sum().backward()
    expected = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    compiled(x).sum().backward()
    for parameter, grad in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_identity(net: Net) -> None:
    compiled = kiln.compile(net)
    assert isinstance(compiled, Net)
    assert compiled.first.weight is net.first.weight
    assert list(compiled.state_dict()) == list(net.state_dict())
    compiled.scale = 3.0
    assert net.scale == 3.0
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), net(x))


def test_training_mode_is_shared(net: Net) -> None:
    compiled, x = kiln.compile(net), torch.randn(64, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        net.train()
        assert compiled.training
        assert not torch.equal(compiled(x), compiled(x))
        compiled.eval()
        torch.testing.assert_close(compiled(x), net(x))


def test_hooks(net: Net) -> None:
    compiled, x = kiln.compile(net), torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), net(x))
    handle = net.first.register_forward_hook(lambda module, args, output: output * 2)
    torch.testing.assert_close(compiled(x), net(x))
    handle.remove()
    torch.testing.assert_close(compiled(x), net(x))
    whole = compiled.register_forward_hook(lambda module, args, output: output + 1)
    torch.testing.assert_close(compiled(x), net(x))
    whole.remove()


def test_pickle_gives_the_original(net: Net) -> None:
    loaded: Any = pickle.loads(pickle.dumps(kiln.compile(net)))
    assert type(loaded) is Net
    x = torch.randn(3, 8)
    torch.testing.assert_close(loaded(x), net(x))


def test_deepcopy_is_compiled_and_independent(net: Net) -> None:
    compiled = kiln.compile(net)
    other, x = copy.deepcopy(compiled), torch.randn(3, 8)
    assert type(other) is not Net
    assert other.first.weight is not net.first.weight
    with torch.no_grad():
        other.first.weight.zero_()
    torch.testing.assert_close(compiled(x), net(x))
    assert not torch.allclose(other(x), net(x))


def test_changed_parameters_are_used(net: Net) -> None:
    compiled, x = kiln.compile(net), torch.randn(3, 8)
    compiled(x)
    with torch.no_grad():
        net.second.weight.mul_(2)
    torch.testing.assert_close(compiled(x), net(x))
    net.second.weight = nn.Parameter(torch.zeros(4, 16))
    torch.testing.assert_close(compiled(x), net(x))
    net.second = nn.Linear(16, 5).eval()
    torch.testing.assert_close(compiled(x), net(x))


@pytest.mark.parametrize("compiled_first", [True, False])
@pytest.mark.parametrize("parametrize", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_parametrization_changes_the_class(
    parametrize: Callable[[nn.Module], nn.Module], compiled_first: bool
) -> None:
    linear = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    compiled = kiln.compile(linear)
    if compiled_first:
        compiled(x)
    parametrize(linear)
    for _ in range(3):
        assert_close(compiled(x), linear(x))
    assert isinstance(compiled, type(linear)) and kiln.report_of(compiled).eager == 0
    for parameter in linear.parameters():
        parameter.data.mul_(2)
    assert_close(compiled(x), linear(x))
    remove_parametrizations(linear, "weight")
    assert_close(compiled(x), linear(x))
    assert type(linear) is nn.Linear and "parametrizations" not in repr(compiled)


def test_a_parametrization_of_the_compiled_module() -> None:
    linear = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    compiled = kiln.compile(linear)
    compiled(x)
    parametrizations.weight_norm(compiled)
    for _ in range(3):
        assert_close(compiled(x), linear(x))
    remove_parametrizations(compiled, "weight")
    assert_close(compiled(x), linear(x))


def test_the_class_that_the_program_sees() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, type, type]:
            return x * len(self.__class__.__name__), self.__class__, type(self).__mro__[-2]

    net = Named()
    compiled = kiln.compile(net)
    assert compiled.__class__ is Named and isinstance(compiled, Named)
    for _ in range(2):
        assert compiled(torch.ones(1)) == net(torch.ones(1))


def test_a_lazy_module_is_compiled_after_its_first_call() -> None:
    lazy = nn.LazyLinear(3)
    compiled = kiln.compile(lazy)
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KilnWarning)
        results = [compiled(x) for _ in range(3)]
    for result in results:
        assert_close(result, lazy(x))
    assert type(lazy) is nn.Linear and isinstance(compiled, nn.Linear)
    report = kiln.report_of(compiled)
    assert (report.regions, report.eager) == (1, 1)


def test_lazy_parts_of_a_module() -> None:
    net = nn.Sequential(nn.LazyConv1d(2, 1), nn.ReLU(), nn.LazyBatchNorm1d())
    compiled = kiln.compile(net)
    x = torch.randn(2, 3, 5)
    for _ in range(2):
        compiled(x)
    net.eval()
    assert_close(compiled(x), net(x))
    assert kiln.report_of(compiled).eager == 1


class Registered(nn.Module):
    known: dict[str, type] = {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if cls.__name__ in Registered.known:
            raise ValueError(f"{cls.__name__} exists already")
        Registered.known[cls.__name__] = cls


class Scaled(Registered, abc.ABC):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Slotted(nn.Module):
    __slots__ = ("extra",)

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


@pytest.mark.parametrize("cls", [Scaled, Slotted])
def test_a_class_that_notes_its_subclasses(cls: type[nn.Module]) -> None:
    module = cls()
    compiled = kiln.compile(module)
    assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert isinstance(compiled, cls) and type(compiled).__mro__[1] is cls and Registered.known == {"Scaled": Scaled}
    assert not isinstance(nn.Linear(1, 1), type(compiled)) and isinstance(copy.deepcopy(compiled), cls)


def test_compiling_reads_no_attributes_that_the_program_computes() -> None:
    class Forwarding(nn.Module):
        asked: list[str] = []

        def __getattr__(self, name: str) -> Any:
            self.asked.append(name)
            return super().__getattr__(name)

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    kiln.compile(Forwarding())(torch.ones(2))
    assert not {"__self__", "__func__", "__qualname__"} & set(Forwarding.asked)
